"""`basecagg reproduce bounded-sums`: one contributor of a hundred lies, with and without a bound on sums.

With a clip norm in the epoch, a sum that is longer than honest members can make it is not applied. A liar that
goes further is seen; one that stays just below the bound is not, and what it does then is told here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, beyond_paper, settled
from reproduction.simulated import (
    Run,
    accuracy_columns,
    by_group,
    by_version,
    ends,
    simulation_job,
)

FACTOR, HIDDEN = -100.0, 0.0
"""What the liar multiplies its update by: a hundred, backwards; or as much as the bound hides, backwards."""
CHANCE, MOST_LOST = 15.0, 0.5
_TASK: Mapping[str, Any] = {
    "cryptography": "arithmetic",
    "holders": 20,
    "clip_norm": 0.5,
    "delta": 1e-5,
    "max_uses": 60,
    "max_colluding_contributors": 1,
    "evaluate_every": 5,
    "evaluate_last": 10,
    "checkpoint_every": 100,
}
_SMALL: Mapping[str, Any] = {
    "users": 12,
    "buffer_size": 4,
    "holders": 6,
    "model": "logistic",
    "private_levels": 2**9,
    "evaluate_last": 1,
}
_UNDER_WAY = 10
"""From this version on a model has learned something."""
_VERSIONS: Mapping[Size, int] = {"full": 60, "quick": 60, "smoke": 3}
_SEEDS: Mapping[Size, int] = {"full": 10, "quick": 2, "smoke": 1}


class Case(NamedTuple):
    """Whether sums have a bound, their noise z, and what the liar multiplies by; None if there is no liar."""

    bound: bool
    noise: float = 0.0
    factor: float | None = None

    @property
    def name(self) -> str:
        """Its key in the ledger."""
        sums = f"z{self.noise:g}" if self.bound else "unbounded"
        return f"{sums}/{'honest' if self.factor is None else f'{self.factor:g}'}"


CASES = {
    Case(False): "no bound, everybody honest",
    Case(False, factor=FACTOR): "no bound, one lies by a factor of 100",
    Case(True): "a bound, everybody honest",
    Case(True, factor=FACTOR): "a bound, one lies by a factor of 100",
    Case(True, factor=HIDDEN): "a bound, one lies just below it",
    Case(True, 2.0): "a bound and noise z = 2, everybody honest",
    Case(True, 2.0, FACTOR): "a bound and noise z = 2, one lies by a factor of 100",
    Case(True, 2.0, HIDDEN): "a bound and noise z = 2, one lies just below it",
}
"""All rows, in words."""


def jobs(order: Order, results: Results) -> list[Job]:
    """Seed by seed."""
    seeds = range(1, _SEEDS[order.size] + 1)
    return [
        simulation_job(f"{case.name}/{seed}", config_of(order.size, case, seed), order)
        for seed in seeds
        for case in CASES
    ]


def config_of(size: Size, case: Case, seed: int) -> SimulationConfig:
    """One run: the default one, but for what is compared."""
    values = {**_TASK, **(_SMALL if size == "smoke" else {})}
    if case.factor is not None:
        values |= {"attack": "sign-flip", "attackers": 0.01}  # at least one
        values["attack_strength"] = -case.factor or None
    return SimulationConfig(
        **values,
        method="basecagg-dp" if case.bound else "fedbuff",
        staleness="constant" if case.bound else "polynomial",
        noise=case.noise if case.bound else None,
        versions=_VERSIONS[size],
        seed=seed,
    )


# --- reporting ----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """A table, curves with and without a bound, and what one liar costs."""
    groups = by_group(results)
    return Publication(
        "bounded-sums",
        "One liar among a hundred",
        f"The default run (an MLP on digits, N = 100, K = 10, 20 training at once), {_VERSIONS[size]} versions."
        f" One user multiplies its updates by {FACTOR:g} and sends them whole; with a bound everybody else"
        f" clips to C = {_TASK['clip_norm']}, and a sum that is too long moves the version, not the model.",
        [_line(case, groups[case.name]) for case in CASES if case.name in groups],
        notes=_NOTES,
        figures={
            "bounded-sums": (
                plot.bands(_curves(groups), "version of the model", "test accuracy, %"),
                "Accuracy without noise; bands from the worst seed to the best.",
            )
        },
        claims=_claims(groups),
    )


def _line(case: Case, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "sums": CASES[case],
        **accuracy_columns(ends(runs)),
        "lowest, %": f"{max(map(_lowest, runs)):.1f}",
        "sums not applied": f"{mean(map(_not_applied, runs)):.1f}",
        "seeds": len(runs),
    }


def _lowest(run: Run) -> float:
    """The worst accuracy once training is under way: a model without a bound may come back after a lie."""
    scores = by_version(run)
    return min(score for version, score in scores if version >= min(_UNDER_WAY, scores[-1][0]))


def _not_applied(run: Run) -> int:
    return int(run.get("counts", {}).get("sums not applied", 0))


def _curves(groups: Mapping[str, Sequence[Run]]) -> dict[str, list[plot.Curve]]:
    return {
        words: list(map(by_version, groups[case.name]))
        for case, words in CASES.items()
        if case.name in groups and not case.noise
    }


def _claims(groups: Mapping[str, Sequence[Run]]) -> list[Claim]:
    found = {case: mean(ends(groups[case.name])) for case in CASES if case.name in groups}
    if len(found) < len(CASES):
        return []
    honest, lied = Case(True), Case(True, factor=FACTOR)
    lost = found[honest] - found[lied]
    unbounded = Case(False, factor=FACTOR)
    broken = max(map(_lowest, groups[unbounded.name]))
    noisy = found[Case(True, 2.0)] - found[Case(True, 2.0, HIDDEN)]
    holds = broken <= CHANCE and lost <= MOST_LOST
    return [
        Claim(
            "A liar far above the bound",
            "One liar of a hundred throws a model back to guessing; with a bound, one far above it costs half a"
            " point.",
            f"Without a bound it falls to {broken:.1f} % or less with every seed (chance is 10 %), and ends at"
            f" {found[unbounded]:.1f} % on average; with it {found[lied]:.2f} % instead of"
            f" {found[honest]:.2f} %: {lost:.2f} points.",
            beyond_paper(holds, len(groups[lied.name])),
            "about every tenth sum has the liar in it, and is not applied",
            "bounded-sums",
            beyond=True,
        ),
        Claim(
            "A liar just below the bound",
            "What a liar does who stays just below the bound.",
            f"Without noise {found[Case(True, factor=HIDDEN)]:.2f} % instead of {found[honest]:.2f} %; with"
            f" z = 2 {found[Case(True, 2.0, HIDDEN)]:.2f} % instead of {found[Case(True, 2.0)]:.2f} %, which is"
            f" {noisy:.2f} points: noise hides a longer lie.",
            settled("measured", len(groups[honest.name])),
            "",
            "bounded-sums",
            beyond=True,
        ),
    ]


_NOTES = (
    "Accuracy is the mean of the last ten versions, ± half of what lies between the worst and the best seed.",
    f"Lowest: the worst evaluation from version {_UNDER_WAY} on, of the seed that was hurt least.",
    "Sums not applied: of one run, on average. Without a lie there are none.",
    "A lie just below the bound is as long as all K honest updates together may be (with noise: as long as what"
    " its tail leaves open; `basecagg plan` prints it), points backwards, and has no noise of its own.",
    "With K = 10 and z = 2 there is more noise than signal, whoever lies: that row is here for the lie, not as"
    " a recipe.",
    "The liar skips clipping and noise; that takes a changed program. All runs did the arithmetic only.",
)
BOUNDED_SUMS = Experiment("bounded-sums", jobs, report)
