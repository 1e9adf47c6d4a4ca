"""`basecagg reproduce accuracy-…`: FedBuff beside BASecAgg, the paper's first figure.

The paper's setting: N = 100, K = 10, staleness uniform on 0…10, IID, batches of 50, η_g = 1, λ = 5·10⁻⁴,
c_l = 2¹⁶, c_g = 2⁶, q = 2³² − 5; weights constant, or (1 + τ)⁻¹. It leaves E, the number of versions, U, T and
D open: they are chosen here, and trials show what E and the batch do.

Not the paper's: masks from keys, with weights that contributors apply themselves, beside both methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean, median
from typing import Any, Literal, NamedTuple

from basecagg.maths.approved_rings import ERROR_VARIANCE, KEY_MODULI
from basecagg.maths.staleness import constant, polynomial
from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.delayed_steps import largest_stable_step, largest_stable_step_on_average
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import (
    SEEDS_NEEDED,
    Claim,
    Line,
    Publication,
    Verdict,
    seeds_missing,
    settled,
)
from reproduction.simulated import (
    Run,
    by_group,
    by_version,
    curve_of,
    ends,
    final_accuracy,
    gap,
    simulation_job,
    spread,
    swing,
)

METHODS = ("fedbuff", "basecagg")
KEYS = "keys"
NAMES = {"fedbuff": "FedBuff", "basecagg": "BASecAgg", KEYS: "BASecAgg, masks from keys"}
Weighting = Literal["constant", "polynomial"]
WEIGHTINGS: tuple[Weighting, ...] = ("constant", "polynomial")
Protocol = Literal["sealed", "arithmetic", "unmasked"]
"""How much of BASecAgg is run; what is opened is the same."""
PROTOCOLS: Mapping[Protocol, Mapping[str, Any]] = {
    "sealed": {},
    "arithmetic": {"cryptography": "arithmetic"},
    "unmasked": {"cryptography": "arithmetic", "allow_wraparound": True},
}
_PROTOCOL_WORDS: Mapping[Protocol, str] = {
    "sealed": "its whole protocol, sealed and signed",
    "arithmetic": "masks, shares and recovery, but nothing was sealed or signed",
    "unmasked": "quantisation and the sum in the field, without masks: they cancel to the last bit",
}
_WORDS = {
    "lenet5": "LeNet-5",
    "small-cnn": "a small CNN of our own",
    "fedasync-cnn": "the CNN of FedAsync",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
}
PAPER: Mapping[str, Any] = {
    "clock": "uniform-staleness",
    "min_per_version": 1,
    "users": 100,
    "buffer_size": 10,
    "max_staleness": 10,
    "global_rate": 1.0,
    "batch_size": 50,
    "weight_decay": 5e-4,
    "update_levels": 2**16,
    "weights": "field",
    "weight_levels": 2**6,
    "masks": "long",
    "correctness": "honest-holders",
}

_FROM_KEYS: Mapping[str, Any] = {
    "method": "basecagg",
    "weights": "own",
    "weight_levels": None,
    "masks": "keys",
    "modulus": KEY_MODULI[0],
}
"""What a run of ours has instead of the paper's: own weights 2^−t, the narrowest approved q, and errors."""

PAPERS_RATE = {"mnist": 0.01, "cifar10": 0.1, "digits": 0.1}
"""η_l; digits are ours, for the short form."""
_STEPS_OF_A_PASS = {"mnist": 12, "cifar10": 10, "digits": 1}
"""Of 100 users, each with a hundredth of the examples, in batches of 50."""


class Trial(NamedTuple):
    """A run of FedBuff with another E, batch, step or staleness, to choose by or to explain."""

    steps: int
    """E."""
    versions: int
    batch: int = PAPER["batch_size"]
    rate: float = 0.0
    """η_l; 0: the paper's."""
    max_staleness: int = PAPER["max_staleness"]

    @property
    def name(self) -> str:
        """As it is called in ledgers and plots."""
        name = f"E = {self.steps}, batches of {self.batch}"
        name += f", η_l = {self.rate:g}" if self.rate else ""
        return name + ("" if self.max_staleness else ", no staleness")


@dataclass(frozen=True)
class Setting:
    """What the paper leaves open, and what differs between its data sets."""

    dataset: str
    model: str
    local_rate: float
    local_epochs: int | None
    """E as passes over a user's examples; None if `local_steps` is given."""
    versions: int
    evaluate_every: int
    seeds: tuple[int, ...] = (1, 2, 3)
    local_steps: int | None = None
    """E as the paper counts it: steps of SGD."""
    batch: int = PAPER["batch_size"]
    trials: tuple[Trial, ...] = ()
    """Each sees about as many examples as the others."""
    weightings: tuple[Weighting, ...] = WEIGHTINGS
    protocol: Protocol = "sealed"
    holders: int | None = None
    """A committee of this size. Not set: every user holds shares, as in the paper."""
    keys: tuple[int, ...] = ()
    """Seeds with which polynomial weights are run with masks from keys too."""
    keys_versions: int | None = None
    """Versions of these runs, if they are shorter than the others."""

    @property
    def title(self) -> str:
        """What is learned, in words."""
        return f"{_WORDS.get(self.model, self.model)} on {_WORDS.get(self.dataset, self.dataset)}"

    @property
    def length(self) -> str:
        """E in words: steps, as the paper counts it."""
        steps = self.local_steps or (self.local_epochs or 0) * _STEPS_OF_A_PASS[self.dataset]
        return f"E = {steps} local steps"

    @property
    def heading(self) -> str:
        """The title at the beginning of a sentence."""
        return self.title[0].upper() + self.title[1:]

    def config(self, **changes: Any) -> SimulationConfig:
        """A run in this setting."""
        values: dict[str, Any] = {
            **PAPER,
            "dataset": self.dataset,
            "model": self.model,
            "local_rate": self.local_rate,
            "local_epochs": self.local_epochs,
            "local_steps": self.local_steps,
            "versions": self.versions,
            "evaluate_every": self.evaluate_every,
            "evaluate_last": 10,
            "batch_size": self.batch,
            "holders": self.holders,
        }
        return SimulationConfig(**values | changes)

    def compared(self, method: str, weighting: Weighting, seed: int) -> SimulationConfig:
        """A run of one of the methods."""
        changes: dict[str, Any] = {"method": method, "staleness": weighting, "seed": seed}
        if method != "fedbuff":
            changes |= PROTOCOLS[self.protocol]
        if method == KEYS:
            changes |= {**_FROM_KEYS, "versions": self.keys_versions or self.versions}
        return self.config(**changes)

    def methods(self, weighting: Weighting, seed: int) -> tuple[str, ...]:
        """What is run with this weighting."""
        return (*METHODS, KEYS) if weighting == "polynomial" and seed in self.keys else METHODS


SMOKE = Setting(
    "digits",
    "mlp",
    0.1,
    None,
    12,
    4,
    seeds=(1,),
    local_steps=2,
    trials=(Trial(4, 8),),
    holders=20,
    keys=(1,),
)
SMOKE_BY_AGE = replace(SMOKE, weightings=("polynomial",), trials=())


@dataclass(frozen=True)
class Figure:
    """One plot: its settings, and the gap that counts as none."""

    name: str
    settings: Mapping[Size, Setting]
    tolerance: float
    """Points of accuracy."""
    repeats_within: float
    """Points by which another machine may differ: it adds in another order, and training is chaotic."""
    notes: tuple[str, ...] = ()


# --- running ------------------------------------------------------------------------------------


def jobs(figure: Figure, order: Order, results: Results) -> list[Job]:
    """All runs, seed by seed, so that a stopped experiment has every method."""
    setting = figure.settings[order.size]
    wanted = [*_trials(setting), *_compared(setting)]
    return [simulation_job(key, config, order) for key, config in wanted]


def _compared(setting: Setting) -> list[tuple[str, SimulationConfig]]:
    return [
        (f"{method}/{weighting}/{seed}", setting.compared(method, weighting, seed))
        for seed, weighting in product(setting.seeds, setting.weightings)
        for method in setting.methods(weighting, seed)
    ]


def _trials(setting: Setting) -> list[tuple[str, SimulationConfig]]:
    """FedBuff, where it can with constant weights: nothing damps old updates, so that E shows most."""
    points = setting.versions // setting.evaluate_every
    return [
        (
            f"{trial.name}/{setting.seeds[0]}",
            setting.config(
                method="fedbuff",
                staleness=setting.weightings[0],
                local_epochs=None,
                local_steps=trial.steps,
                batch_size=trial.batch,
                local_rate=_rate(setting, trial),
                max_staleness=trial.max_staleness,
                versions=trial.versions,
                evaluate_every=max(1, trial.versions // points),
            ),
        )
        for trial in setting.trials
    ]


# --- reporting ----------------------------------------------------------------------------------


def report(figure: Figure, results: Results, size: Size) -> Publication:
    """The curves, the gaps, and the effect of E."""
    setting = figure.settings[size]
    tried = _tried(setting, results)
    main = {key: result for key, result in results.items() if not key.startswith("E = ")}
    lines = lines_of(main)
    drawn = {
        figure.name: (
            plot.bands(_curves(main), "version of the model", "test accuracy, %"),
            f"Test accuracy, {setting.title}: mean over seeds, bands from the worst seed to the best.",
        )
    }
    if tried:
        curves = {
            trial.name: [_by_example(run, trial)]
            for trial, run in tried.items()
            if "stopped" not in run
        }
        drawn[f"{figure.name}-trials"] = (
            plot.bands(curves, "examples seen, thousands", "test accuracy, %"),
            f"Trials on equal examples: FedBuff with {setting.weightings[0]} weights, first seed.",
        )
    return Publication(
        figure.name,
        f"Accuracy: {setting.title}",
        _lead(setting, main),
        lines,
        tables={"Trials": _trial_lines(setting, tried)} if tried else {},
        notes=[
            *_choices(setting),
            *_about_keys(setting, main),
            *_added_seeds(figure, setting, main),
            *_cost_of_staleness(setting, tried),
            *figure.notes,
        ],
        figures=drawn,
        claims=_claims(figure, setting, main, lines),
        identified_by=("method", "weights"),
        repeatable={"accuracy, %": figure.repeats_within},
    )


def lines_of(results: Results) -> list[dict[str, Any]]:
    """The end of every method and weighting: mean over the last ten versions and all seeds, and the gap."""
    groups = by_group(results)
    lines = []
    for weighting, method in product(WEIGHTINGS, NAMES):
        runs = groups.get(f"{method}/{weighting}", [])
        own, ahead = ends(runs), gap(results, f"{method}/{weighting}", f"fedbuff/{weighting}")
        if own and not math.isnan(ahead.mean):
            lines.append(
                {
                    "method": NAMES[method],
                    "weights": weighting,
                    "seeds": len(own),
                    "versions": max(curve_of(run)[-1].version for run in runs),
                    "accuracy, %": f"{mean(own):.2f}",
                    "± seeds": f"{spread(own):.2f}",
                    "last version, %": f"{mean(100 * curve_of(run)[-1].score for run in runs):.2f}",
                    "gap to FedBuff, points": f"{ahead.mean:+.2f}",
                    "95 %": ahead.interval if method != "fedbuff" else "–",
                    # Not the mean: of a run that was resumed only the last stretch is counted.
                    "minutes a run": median(run["seconds"] for run in runs) / 60,
                }
            )
    return lines


def _claims(figure: Figure, setting: Setting, runs: Results, lines: Sequence[Line]) -> list[Claim]:
    """Both weightings together, the quantised weights by themselves, and one weighting beside the other."""
    ours = [line for line in lines if line["method"] == "BASecAgg"]
    by_age = [line for line in ours if line["weights"] == "polynomial"]
    claims = [
        _as_good(
            figure,
            setting,
            (
                f"As good as FedBuff: {setting.title}",
                f"With {setting.title}, BASecAgg learns as well as FedBuff,"
                f" {' and '.join(f'with {weighting}' for weighting in setting.weightings)} weights.",
            ),
            runs,
            ours,
        )
    ]
    if by_age:
        said = (
            f"Quantised staleness weights: {setting.title}",
            f"With {setting.title}, staleness weights quantised with c_g = 2⁶ do as well as the real-valued"
            " (1 + τ)⁻¹ (the same runs as above, in which updates are quantised too).",
        )
        claims.append(_as_good(figure, setting, said, runs, by_age))
    if len(ours) == len(WEIGHTINGS):
        claims.append(_by_age_is_better(figure, setting, runs, ours))
    claims.extend(
        _keys_cost_nothing(figure, setting, runs, line)
        for line in lines
        if line["method"] == NAMES[KEYS]
    )
    return claims


def _keys_cost_nothing(figure: Figure, setting: Setting, runs: Results, line: Line) -> Claim:
    """Of our own: beside FedBuff in clear and beside long masks, each interval whole within the tolerance."""
    rivals = {"FedBuff in clear": "fedbuff", "long masks": "basecagg"}
    gaps = {
        who: gap(runs, f"{KEYS}/polynomial", f"{rival}/polynomial") for who, rival in rivals.items()
    }
    verdict: Verdict = "does not hold"
    if all(abs(each.mean) <= figure.tolerance for each in gaps.values()):
        narrow = all(each.within(figure.tolerance) for each in gaps.values())
        verdict = "holds" if narrow else "undecided"
    found = "; ".join(
        f"{each.mean:+.2f} points from {who}{_interval(each.interval)}"
        for who, each in gaps.items()
    )
    return Claim(
        f"Masks from keys: {setting.title}",
        f"With {setting.title}, masks from keys with q = {KEY_MODULI[0]} (24 bits) and own weights learn as"
        " well as FedBuff in clear, and as long masks with weights in the field.",
        f"{_level(setting, line)}{found} (mean of {_compared_at(setting)}; seeds: {line['seeds']}).",
        settled(verdict, line["seeds"]),
        f"a gap of at most {figure.tolerance:g} points counts as none{seeds_missing(line['seeds'])}",
        figure.name,
        beyond=True,
    )


def _level(setting: Setting, line: Line) -> str:
    """Accuracy, where it is that of what is compared."""
    return "" if setting.keys_versions else f"{line['accuracy, %']} %, "


def _compared_at(setting: Setting) -> str:
    if setting.keys_versions is None:
        return "the last ten versions"
    return (
        f"every {setting.evaluate_every}th version from {setting.keys_versions // 2} to"
        f" {setting.keys_versions}"
    )


def _as_good(
    figure: Figure,
    setting: Setting,
    said: tuple[str, str],  # heading and sentence
    runs: Results,
    lines: Sequence[Line],
) -> Claim:
    """Reproduced if the whole interval of every gap is within the tolerance, not its middle alone."""
    gaps = [gap(runs, f"basecagg/{w}", f"fedbuff/{w}") for w in (line["weights"] for line in lines)]
    seeds = min((line["seeds"] for line in lines), default=0)
    verdict: Verdict = "not reproduced"
    if all(abs(each.mean) <= figure.tolerance for each in gaps):
        verdict = (
            "reproduced" if all(each.within(figure.tolerance) for each in gaps) else "undecided"
        )
    found = "; ".join(
        f"{line['weights']}: BASecAgg {line['accuracy, %']} %,"
        f" {line['gap to FedBuff, points']} points from FedBuff{_interval(line['95 %'])}"
        for line in lines
    )
    wide = (
        ", and an interval is wider than that: more seeds are needed"
        if verdict == "undecided"
        else ""
    )
    return Claim(
        *said,
        f"{found} (mean of the last ten versions; seeds: {seeds}{_unlike_the_paper(setting)}).",
        settled(verdict, seeds),
        f"a gap of at most {figure.tolerance:g} points counts as none{wide}{seeds_missing(seeds)}",
        figure.name,
    )


def _unlike_the_paper(setting: Setting) -> str:
    others = [f"; {each}" for each in (_other_rate(setting), _other_batch(setting)) if each]
    alone = "" if len(setting.weightings) > 1 else "; constant weights were not run"
    return "".join(others) + alone + ("; without masks" if setting.protocol == "unmasked" else "")


def _other_rate(setting: Setting) -> str:
    papers = PAPERS_RATE[setting.dataset]
    return f"η_l = {setting.local_rate:g}, not {papers:g}" if setting.local_rate != papers else ""


def _other_batch(setting: Setting) -> str:
    papers = PAPER["batch_size"]
    return f"batches of {setting.batch}, not of {papers}" if setting.batch != papers else ""


def _by_age_is_better(
    figure: Figure, setting: Setting, runs: Results, ours: Sequence[Line]
) -> Claim:
    ahead = gap(runs, "basecagg/polynomial", "basecagg/constant")
    seeds = min(line["seeds"] for line in ours)
    verdict: Verdict = "reproduced" if ahead.low >= -figure.tolerance else "undecided"
    return Claim(
        f"Polynomial against constant weights: {setting.title}",
        f"With {setting.title}, polynomial weights do as well as constant ones, or better.",
        f"BASecAgg ends {ahead.mean:+.2f} points from constant weights with polynomial ones"
        f"{_interval(ahead.interval)}.",
        settled("not reproduced" if ahead.mean < -figure.tolerance else verdict, seeds),
        f"a loss of at most {figure.tolerance:g} points counts as none{seeds_missing(seeds)}",
        figure.name,
    )


def _interval(interval: str) -> str:
    return "" if interval == "–" else f" ({interval} with 95 % confidence over seeds)"


def _lead(setting: Setting, results: Results) -> str:
    shown = setting.config()
    return (
        f"{setting.heading}: N = {shown.users}, K = {shown.buffer_size}, staleness"
        f" uniform on 0…{shown.max_staleness}, IID, batches of {shown.batch_size}, η_g ="
        f" {shown.global_rate:g}, η_l = {shown.local_rate:g}, λ = {shown.weight_decay:g}, c_l = 2¹⁶,"
        f" c_g = 2⁶, q = 2³² − 5. {len(results)} runs."
    )


def _choices(setting: Setting) -> list[str]:
    p = setting.config().protocol_parameters(model_size=1)
    people = f"N = {p.num_holders}, T = {p.max_colluders}, D = {p.max_dropouts}, U = {p.recovery_threshold}"
    if setting.protocol == "unmasked":
        people = "U, T and D, which play no part without masks"
    return [
        f"Chosen, because the paper leaves it open: {setting.length}, {setting.versions} versions, {people}."
        f" BASecAgg ran {_PROTOCOL_WORDS[setting.protocol]}.",
        *departures(setting),
        _why_so_short(setting.config()),
        "τ counts sums that were closed, also those that are not published yet: an update cannot know of them"
        " either.",
        *(
            []
            if len(setting.weightings) > 1
            else ["Constant weights were not run with this network."]
        ),
        "± seeds is half the distance from the worst seed to the best; gaps are taken seed by seed.",
        "Both methods start from the same weights, meet the same users and draw the same staleness: what"
        " differs is the quantisation of updates and weights.",
    ]


def _about_keys(setting: Setting, runs: Results) -> list[str]:
    if not any(key.startswith(f"{KEYS}/") for key in runs):
        return []
    return [
        "Masks from keys: q ="
        f" {KEY_MODULI[0]}, and an error of {ERROR_VARIANCE**0.5:.2f} steps of 1/c_l on every number that is"
        " sent. Updates are weighed by their contributors, by 2^−t with t = ⌊log₂(1 + τ)⌋, and not by s̄ in the"
        " field; on this clock the age that they tell is the age at the opening. Only errors and weights tell"
        " these runs from the others: that masks cancel to the last bit is a test"
        " (`tests/simulation/test_key_runs.py`).",
        "The committed runs with keys are younger than those beside them. Today's code repeats the first"
        " versions of FedBuff's, but for the order in which another machine adds.",
        *(
            [
                f"Runs with keys have {setting.keys_versions} versions only. Their gaps are those at"
                f" {_compared_at(setting)} of both runs, not at their ends; their accuracy above is that at"
                " their own end."
            ]
            if setting.keys_versions
            else []
        ),
    ]


def _added_seeds(figure: Figure, setting: Setting, runs: Results) -> list[str]:
    """Whoever adds seeds until a claim is settled must say so."""
    added = [str(seed) for seed in setting.seeds[SEEDS_NEEDED:]]
    first = {key: run for key, run in runs.items() if key.rpartition("/")[2] not in added}
    if len(first) == len(runs):
        return []
    before = _claims(figure, setting, first, lines_of(first))
    open_then = [claim for claim in before if claim.verdict == "undecided"]
    found = " ".join(dict.fromkeys(claim.found for claim in open_then))
    return [
        f"{SEEDS_NEEDED} seeds were planned. {len(open_then)} of {len(before)} claims were undecided with them,"
        f" so more were added: the interval is that of a fixed number of seeds. Found then: {found}"
    ]


def departures(setting: Setting) -> list[str]:
    """Where the paper's own choice was left, and what shows the difference."""
    notes = []
    if batch := _other_batch(setting):
        notes.append(
            f"Departs from the paper: {batch}. As many examples, and as many minutes, then make more versions;"
            " [trials](accuracy-cifar10-large.md) show what either gives."
        )
    if rate := _other_rate(setting):
        notes.append(f"Departs from the paper: {rate}; the trials show what either gives.")
    return notes


def _cost_of_staleness(setting: Setting, tried: Mapping[Trial, Run]) -> list[str]:
    """The same run with and without it, where both were tried."""
    notes = []
    for trial in (each for each in tried if not each.max_staleness):
        stale = trial._replace(max_staleness=PAPER["max_staleness"])
        if stale in tried:
            without, with_it = (f"{100 * final_accuracy(tried[t]):.1f}" for t in (trial, stale))
            notes.append(
                f"What staleness costs: {trial.versions} versions with E = {trial.steps}, batches of"
                f" {trial.batch} and η_l = {_rate(setting, trial):g} reach {without} % if no update is stale,"
                f" and {with_it} % with staleness uniform on 0…{stale.max_staleness}."
            )
    return notes


def _rate(setting: Setting, trial: Trial) -> float:
    return trial.rate or PAPERS_RATE[setting.dataset]


def _why_so_short(config: SimulationConfig) -> str:
    ages, k = range(config.max_staleness + 1), config.buffer_size
    alike = tuple(constant()(tau) for tau in ages)
    by_age = tuple(polynomial()(tau) for tau in ages)
    return (
        "Why E is small: a step computed from an old model must be short. Along a direction of curvature h,"
        f" staleness uniform on 0…{config.max_staleness} lets errors grow when η_l·E·h exceeds"
        f" {largest_stable_step(alike, k):.2f} with constant weights, and"
        f" {largest_stable_step(by_age, k):.1f} with polynomial ones, at K = {k} (simulated; a very large"
        f" buffer would bear {largest_stable_step_on_average(by_age):.1f}): weighing by age does not only"
        " discount old updates, it also damps the swings."
    )


def _curves(results: Results) -> dict[str, list[plot.Curve]]:
    groups = by_group(results)
    return {
        f"{NAMES[method]}, {weighting}": list(map(by_version, groups[f"{method}/{weighting}"]))
        for weighting, method in product(WEIGHTINGS, NAMES)
        if f"{method}/{weighting}" in groups
    }


def _tried(setting: Setting, results: Results) -> dict[Trial, Run]:
    """The trials and, if none was like it, the figure's own run."""
    seed = setting.seeds[0]
    other_rate = setting.local_rate if setting.local_rate != PAPERS_RATE[setting.dataset] else 0.0
    own = Trial(setting.local_steps or 0, setting.versions, setting.batch, other_rate)
    keys = {trial: f"{trial.name}/{seed}" for trial in setting.trials}
    if keys and own.name not in [trial.name for trial in keys]:
        keys = {own: f"fedbuff/{setting.weightings[0]}/{seed}"} | keys
    return {trial: results[key] for trial, key in keys.items() if key in results}


def _by_example(run: Run, trial: Trial) -> plot.Curve:
    seen = PAPER["buffer_size"] * trial.steps * trial.batch / 1000
    return [(seen * version, score) for version, score in by_version(run)]


def _trial_lines(setting: Setting, tried: Mapping[Trial, Run]) -> list[dict[str, Any]]:
    return [
        {
            "E, local steps": trial.steps,
            "batch": trial.batch,
            "η_l": _rate(setting, trial),
            "τ up to": trial.max_staleness,
            "versions": trial.versions,
            "examples seen": PAPER["buffer_size"] * trial.steps * trial.batch * trial.versions,
            **_outcome(run),
        }
        for trial, run in tried.items()
    ]


def _outcome(run: Run) -> dict[str, str]:
    diverged = "stopped" in run
    return {
        "accuracy, %": "diverged" if diverged else f"{100 * final_accuracy(run):.2f}",
        "swing over the last ten versions, points": "–" if diverged else f"{swing(run):.2f}",
    }


def _experiment(figure: Figure) -> Experiment:
    return Experiment(figure.name, partial(jobs, figure), partial(report, figure))


MNIST_SETTING = Setting("mnist", "lenet5", PAPERS_RATE["mnist"], 5, 64, 4)
MNIST_STEPS = replace(
    MNIST_SETTING,
    local_epochs=None,
    local_steps=4,
    versions=1000,
    evaluate_every=50,
    keys=(1, 2, 3),
    seeds=(1, 2, 3, 4, 5),
    protocol="arithmetic",
    trials=(Trial(60, 64),),
)
MNIST = _experiment(
    Figure(
        "accuracy-mnist",
        {
            "full": MNIST_STEPS,
            "quick": replace(MNIST_STEPS, versions=100, seeds=(1,), trials=()),
            "smoke": SMOKE,
        },
        tolerance=0.5,
        repeats_within=0.5,
    )
)
JPEG = (
    "The committed figures come from CIFAR-10 images that went through JPEG (quality 75), so accuracies can"
    " differ from those of the original files, by how much we have not measured."
)
CIFAR10_SETTING = Setting(
    "cifar10", "small-cnn", PAPERS_RATE["cifar10"], 1, 30, 10, protocol="arithmetic"
)
CIFAR10_STEPS = replace(
    CIFAR10_SETTING,
    local_epochs=None,
    local_steps=1,
    versions=4000,
    evaluate_every=200,
    keys=(1, 2, 3),
    keys_versions=2000,
)
CIFAR10 = _experiment(
    Figure(
        "accuracy-cifar10",
        {
            "full": CIFAR10_STEPS,
            "quick": replace(CIFAR10_STEPS, versions=40, seeds=(1,), keys_versions=None),
            "smoke": SMOKE_BY_AGE,
        },
        tolerance=1.0,
        repeats_within=2.0,
        notes=(
            "The paper trains the CNN of FedAsync, which has [a page of its own](accuracy-cifar10-large.md)."
            " This one is a much smaller substitute: it shows what protection costs,"
            " not what the paper's network reaches.",
            JPEG,
        ),
    )
)
_LARGE = Setting(
    "cifar10",
    "fedasync-cnn",
    0.03,
    None,
    2000,
    250,
    seeds=(1, 2, 3, 4),
    local_steps=2,
    batch=10,
    trials=(
        Trial(1, 100),
        Trial(1, 500, batch=10),
        Trial(2, 50),
        Trial(2, 250, batch=10),
        Trial(1, 200, batch=25),
        Trial(4, 125, batch=10),
        Trial(2, 250, batch=10, rate=0.03),
        Trial(2, 250, batch=10, rate=0.2),
        Trial(2, 250, batch=10, max_staleness=0),
    ),
    weightings=("polynomial",),
    protocol="unmasked",
)
CIFAR10_LARGE = _experiment(
    Figure(
        "accuracy-cifar10-large",
        {
            "full": _LARGE,
            "quick": replace(_LARGE, versions=2, seeds=(1,), trials=()),
            "smoke": SMOKE_BY_AGE,
        },
        tolerance=1.0,
        repeats_within=2.0,
        notes=(
            "Trials are one seed each, early in training, where two seeds of the same setting can be some"
            " points apart: they chose batch and η_l between settings that differ by more, and E within the"
            " noise.",
            JPEG,
        ),
    )
)
