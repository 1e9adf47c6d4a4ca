"""`basecagg reproduce attacks`: contributors that lie, by every attack, against sums with and without buckets.

A second group of runs asks who is found: the posterior of every contributor, every third version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any, NamedTuple

from basecagg.maths.robust_means import ROBUST_MEANS, USUAL
from basecagg.simulation.build import build
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.logbook import VersionRecord
from basecagg.simulation.simulate import play
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import SEEDS, Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper
from reproduction.simulated import Run, by_group, ends, simulation_job, task_of

PARTITIONS = {"iid": "IID", "dirichlet": "Dirichlet 0.3"}
ALLOWED = {"iid": 3.0, "dirichlet": 5.0}
"""Points that the usual robust mean may lose to an attack."""
BREAKS = 10.0
"""Points from which on an attack works."""
FEW, MANY = 0.05, 0.1
"""Shares of the contributors that lie."""
_TASK: Mapping[str, Any] = {
    "dataset": "mnist",
    "model": "logistic",
    "users": 100,
    "concurrency": 60,
    "buffer_size": 50,
    "holders": 10,
    "cryptography": "arithmetic",
    "local_steps": 5,
    "batch_size": 32,
    "local_rate": 0.2,
    "dirichlet_alpha": 0.3,
    "evaluate_every": 5,
    "evaluate_last": 3,
    "checkpoint_every": 100,
}
_SMALL: Mapping[str, Any] = {
    "dataset": "digits",
    "users": 30,
    "concurrency": 20,
    "buffer_size": 15,
    "holders": 6,
    "evaluate_last": 1,
}
_VERSIONS: Mapping[Size, int] = {"full": 20, "quick": 20, "smoke": 3}
_BUCKET = 5
_BOUND: Mapping[str, Any] = {
    "method": "basecagg-dp",
    "noise": 0.0,
    "clip_norm": 1.0,
    "delta": 1e-5,
    "max_uses": 100,
}


class Lie(NamedTuple):
    """An attack of the table, and how strong it is."""

    words: str
    attack: str
    strength: float | None = None


LIES = {
    "scaled": Lie("scaled, × 100", "scaled", 100.0),
    "sign-flip": Lie("sign flip", "sign-flip", 1.0),
    "sign-flip-10": Lie("sign flip, × 10", "sign-flip", 10.0),
    "gaussian": Lie("Gaussian noise, 100 × as long", "gaussian", 100.0),
    "label-flip": Lie("label flip", "label-flip"),
    "alie": Lie("ALIE, z = 1.5", "alie", 1.5),
    "ipm": Lie("IPM, × 20", "ipm", 20.0),
    "false-staleness": Lie("false staleness", "false-staleness"),
}
"""By their keys in the ledger."""
DEFENCES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fedbuff": ("FedBuff", {"method": "fedbuff"}),
    "sum": ("one sum", {}),
    "bound": ("one sum with a bound", _BOUND),
    **{kind: (f"buckets, {kind}", {"robust_mean": kind}) for kind in ROBUST_MEANS},
}
"""Key in the ledger: words, and what is set. All but the first three have buckets."""
HONEST, _NOBODY = "honest", 0.0


class Case(NamedTuple):
    """One cell of the table."""

    partition: str
    share: float
    lie: str
    defence: str

    @property
    def name(self) -> str:
        """Its key in the ledger."""
        return f"{self.partition}/{self.share:g}/{self.lie}/{self.defence}"


def cases(size: Size = "full") -> Iterator[Case]:
    """All of them, the most wanted first."""
    if size == "smoke":
        yield from (Case("iid", FEW, "alie", defence) for defence in DEFENCES)
        return
    few = [(HONEST, _NOBODY), *((lie, FEW) for lie in LIES)]
    many = [(lie, MANY) for lie in LIES]
    main = ("sum", USUAL)
    for partition in PARTITIONS:
        yield from (Case(partition, share, lie, by) for lie, share in few for by in main)
    for partition in PARTITIONS:
        others = [by for by in DEFENCES if by not in main]
        yield from (Case(partition, share, lie, by) for lie, share in few for by in others)
    for partition in PARTITIONS:
        yield from (Case(partition, share, lie, by) for lie, share in many for by in main)


def jobs(order: Order, results: Results) -> list[Job]:
    """Seed by seed, and who is found."""
    found = [
        Job(f"found/{partition}/{seed}", find_liars, replace_data(config, order))
        for partition in PARTITIONS
        for seed in _FOUND_SEEDS[order.size]
        for config in [_found(order.size, partition, seed)]
    ]
    table = [
        simulation_job(f"{case.name}/{seed}", config_of(order.size, case, seed), order)
        for seed in SEEDS[order.size]
        for case in cases(order.size)
    ]
    few = [job for job in table if f"/{MANY:g}/" not in job.key]
    many = [job for job in table if f"/{MANY:g}/" in job.key]
    lost = [
        Job(f"lost/{g}/{at_work}/{seed}", count_lost, replace_data(config, order))
        for seed in SEEDS[order.size]
        for at_work in AT_WORK
        for g in (1, 10)
        if order.size != "smoke"
        for config in [_all_at_work(order.size, at_work, g, seed)]
    ]
    return [*few, *found, *lost, *many]


def replace_data(config: SimulationConfig, order: Order) -> SimulationConfig:
    """The same run, on the data of the order."""
    return replace(config, data_dir=str(order.data_dir))


def config_of(size: Size, case: Case, seed: int) -> SimulationConfig:
    """One run."""
    _, settings = DEFENCES[case.defence]
    values = {**_TASK, **settings, **(_SMALL if size == "smoke" else {})}
    if case.defence in ROBUST_MEANS:
        values["buckets"] = values["buffer_size"] // _BUCKET
    if case.lie != HONEST:
        lie = LIES[case.lie]
        values |= {"attack": lie.attack, "attackers": case.share, "attack_strength": lie.strength}
    values |= {"partition": case.partition, "versions": _VERSIONS[size]}
    return SimulationConfig(**values, seed=seed)


# --- who is found -------------------------------------------------------------------------------

_FOUND_SEEDS: Mapping[Size, range] = {
    "full": range(21, 31),
    "quick": range(21, 22),
    "smoke": range(21, 22),
}
"""Not those with which the posterior was made."""
_LONG, _LOOKS = 60, 3
SUSPECTED, ACCUSED = 0.9, 0.5


def _found(size: Size, partition: str, seed: int) -> SimulationConfig:
    config = config_of(size, Case(partition, FEW, "sign-flip", USUAL), seed)
    if size == "smoke":
        return config
    # A model that still learns at the end: where updates agree on nothing, none that is turned round is seen.
    return replace(config, model="mlp", local_steps=10, local_rate=0.1, versions=_LONG)


AT_WORK = (60, 100)


def _all_at_work(size: Size, at_work: int, g: int, seed: int) -> SimulationConfig:
    config = config_of(size, Case("iid", _NOBODY, HONEST, USUAL), seed)
    return replace(config, concurrency=at_work, buckets=g, versions=_LONG)


def find_liars(config: SimulationConfig) -> dict[str, Any]:
    """Every few versions: the least probable attacker, and the most suspected honest contributor."""
    parts = build(config, task_of(config), {})
    liars = {f"user-{user}" for user in range(config.num_attackers)}
    least, most = list[float](), list[float]()

    def note(record: VersionRecord) -> None:
        if record.version % _LOOKS:
            return
        probable = parts.aggregator.suspects.probabilities()
        least.append(round(min(probable.get(name, 0.0) for name in liars), 4))
        honest = (each for name, each in probable.items() if name not in liars)
        most.append(round(max(honest, default=0.0), 4))

    play(parts, progress=note)
    parts.workshop.close()
    return {"least liar": least, "most honest": most}


def count_lost(config: SimulationConfig) -> dict[str, Any]:
    """How many trainings were for nothing."""
    parts = build(config, task_of(config), {})
    play(parts)
    parts.workshop.close()
    return {"lost": parts.lost(), "updates": parts.workshop.updates}


# --- reporting ----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """Tables by partition, and who is found."""
    curves = {key: run for key, run in results.items() if "curve" in run}
    groups = by_group(curves)
    found = {key: run for key, run in results.items() if key.startswith("found/")}
    tables = {
        f"{words}: accuracy, %, with {100 * FEW:g} % that lie": _lines(groups, partition, FEW)
        for partition, words in PARTITIONS.items()
    }
    tables |= {
        f"{words}: accuracy, %, with {100 * MANY:g} % that lie": lines
        for partition, words in PARTITIONS.items()
        if (lines := _lines(groups, partition, MANY))
    }
    if lost := _lost_lines(results):
        tables["Trainings that were for nothing, %"] = lost
    return Publication(
        "attacks",
        "Contributors that lie",
        f"MNIST, logistic regression, N = 100, K = 50, {_VERSIONS[size]} versions of 5 local steps; short runs,"
        f" of which there are many. Buckets: g = 10 of b = {_BUCKET} members."
        f" Each attack of the simulator, by {100 * FEW:g} % of the users (5 of 100), against updates in clear,"
        " one masked sum, one masked sum with a bound on its length, and buckets with each robust mean.",
        _found_lines(found) or [{"runs": len(results)}],
        tables={heading: lines for heading, lines in tables.items() if lines},
        notes=_NOTES,
        figures=_figures(found),
        claims=_claims(groups, found),
    )


def _end(groups: Mapping[str, Sequence[Run]], case: Case) -> float | None:
    runs = groups.get(case.name)
    return mean(ends(runs)) if runs else None


def _lines(
    groups: Mapping[str, Sequence[Run]], partition: str, share: float
) -> list[dict[str, Any]]:
    if not any(Case(partition, share, lie, USUAL).name in groups for lie in LIES):
        return []
    rows = {HONEST: "nobody lies", **{key: lie.words for key, lie in LIES.items()}}
    defences = DEFENCES if share == FEW else ("sum", USUAL)
    lines = list[dict[str, Any]]()
    for lie, words in rows.items():
        part = _NOBODY if lie == HONEST else share
        cells = {by: _end(groups, Case(partition, part, lie, by)) for by in defences}
        if any(cell is not None for cell in cells.values()):
            shown = {
                DEFENCES[by][0]: "–" if cell is None else f"{cell:.1f}"
                for by, cell in cells.items()
            }
            lines.append({"attack": words, **shown})
    return lines


def _found_lines(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    lines = []
    for partition, words in PARTITIONS.items():
        runs = [run for key, run in found.items() if key.startswith(f"found/{partition}/")]
        if runs:
            firsts = [at for run in runs if (at := _first(run)) is not None]
            lines.append(
                {
                    "data": words,
                    "seeds": len(runs),
                    "all five found": len(firsts),
                    "by version, at the latest": max(firsts) if firsts else "–",
                    "most suspected honest one, ever": f"{max(map(_worst, runs)):.2f}",
                    "at the end": f"{max(run['most honest'][-1] for run in runs):.2f}",
                }
            )
    return lines


def _first(run: Mapping[str, Any]) -> int | None:
    """The version from which all liars are suspected to the end."""
    late = [at for at, least in enumerate(run["least liar"]) if least <= SUSPECTED]
    at = late[-1] + 1 if late else 0
    return at * _LOOKS if at < len(run["least liar"]) else None


def _worst(run: Mapping[str, Any]) -> float:
    return float(max(run["most honest"]))


def _lost_lines(results: Results) -> list[dict[str, Any]]:
    lines = []
    for at_work in AT_WORK:
        runs = {
            g: [run for key, run in results.items() if key.startswith(f"lost/{g}/{at_work}/")]
            for g in (1, 10)
        }
        if all(runs.values()):
            share = {
                g: 100 * mean(run["lost"] / run["updates"] for run in each)
                for g, each in runs.items()
            }
            lines.append(
                {
                    "users that train at once": at_work,
                    "one sum of 50": f"{share[1]:.1f}",
                    "ten of 5": f"{share[10]:.1f}",
                    "seeds": len(runs[10]),
                }
            )
    return lines


def _figures(found: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    curves = {
        who: [
            [(at * _LOOKS, each) for at, each in enumerate(run[key])]
            for name, run in found.items()
            if name.startswith("found/iid/")
        ]
        for who, key in (
            ("the liar that is suspected least", "least liar"),
            ("the honest one that is suspected most", "most honest"),
        )
    }
    if not all(curves.values()):
        return {}
    figure = plot.bands(curves, "version of the model", "probability of lying")
    return {"attacks": (figure, "IID, sign flip; bands from the lowest seed to the highest.")}


def _claims(groups: Mapping[str, Sequence[Run]], found: Mapping[str, Any]) -> list[Claim]:
    claims = list[Claim]()
    for partition, words in PARTITIONS.items():
        honest = _end(groups, Case(partition, _NOBODY, HONEST, "sum"))
        with_buckets = {lie: _end(groups, Case(partition, FEW, lie, USUAL)) for lie in LIES}
        alone = {lie: _end(groups, Case(partition, FEW, lie, "sum")) for lie in LIES}
        if honest is None or None in with_buckets.values() or None in alone.values():
            continue
        lost = {lie: honest - end for lie, end in with_buckets.items() if end is not None}
        worst = max(lost, key=lambda lie: lost[lie])
        undefended = {lie: honest - end for lie, end in alone.items() if end is not None}
        works = [LIES[lie].words for lie, points in undefended.items() if points > BREAKS]
        harmless = [LIES[lie].words for lie, points in undefended.items() if points <= BREAKS]
        seeds = len(groups[Case(partition, FEW, worst, USUAL).name])
        claims.append(
            Claim(
                f"Buckets against 5 % liars, {words}",
                f"{words}: with 5 % liars and b = 5, g = 10, {USUAL} loses at most {ALLOWED[partition]:g}"
                " points, whatever the attack.",
                f"One sum without liars ends at {honest:.1f} %. Buckets lose {lost[worst]:.1f} points at most"
                f" ({LIES[worst].words}). One sum alone loses more than {BREAKS:g} points to:"
                f" {', '.join(works) or 'none'}; not to: {', '.join(harmless) or 'none'}.",
                beyond_paper(lost[worst] <= ALLOWED[partition], seeds),
                beyond=True,
            )
        )
    for line, partition in zip(_found_lines(found), PARTITIONS, strict=False):
        runs = [run for key, run in found.items() if key.startswith(f"found/{partition}/")]
        limit = ACCUSED if partition == "iid" else SUSPECTED
        finds = (
            f"nine of ten times five sign-flippers of 100 are found within {_LONG} versions, and "
        )
        finds = finds if partition == "iid" else ""
        enough = partition != "iid" or line["all five found"] >= 0.9 * len(runs)
        claims.append(
            Claim(
                f"Suspects, {PARTITIONS[partition]}",
                f"{PARTITIONS[partition]}: {finds}no honest one is ever above {limit:g}.",
                f"All five are above {SUSPECTED:g}, and stay there, in {line['all five found']} of {len(runs)}"
                f" seeds; the honest one that was suspected most, ever, had"
                f" {line['most suspected honest one, ever']}.",
                beyond_paper(enough and max(map(_worst, runs)) <= limit, len(runs)),
                figure="attacks" if partition == "iid" else "",
                beyond=True,
            )
        )
    return claims


_NOTES = (
    "Accuracy is the mean of the last versions, over three seeds. All runs did the arithmetic only: in a"
    " federation there are no buckets yet.",
    "Liars under ALIE and IPM see the last K updates of all others in clear, as no liar in a federation can.",
    "The bound: everybody else clips to C = 1, and a sum that is too long moves the version, not the model."
    " With K = 50 and 5 % liars nearly every sum has a liar: one that goes far above the bound stops the"
    " training.",
    "A lie just below the bound, as long as it hides, is on the page of one liar among a hundred.",
    "Who was in fewer than six buckets is not named: an attacker on a slow device takes longer.",
    "Found: all five sign-flippers (an update turned round, as long as it was) are above 0.9 from a version on"
    " to the end. The posterior was made with seeds 1 to 11; these are seeds 21 to 30.",
    f"Who is found: an MLP, {_LONG} versions of 10 local steps.",
    f"For nothing: updates in no sum, because too few others trained from their version; {_LONG} versions.",
)
ATTACKS = Experiment("attacks", jobs, report)
