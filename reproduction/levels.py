"""`basecagg reproduce levels-…`: accuracy against c_l, the paper's second figure, with the reason beside it.

A small c_l rounds coarsely; with a large one sums leave the field and wrap around. Both errors are measured in
every run, so that the picture explains itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from basecagg.simulation.config import SimulationConfig
from reproduction import accuracy, levels_plot, plot
from reproduction.accuracy import Setting
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Line, Publication, Verdict, seeds_missing, settled
from reproduction.simulated import (
    Run,
    accuracy_columns,
    by_group,
    by_version,
    ends,
    gap,
    simulation_job,
)

PAPERS_BEST = 16
"""log₂ c_l that the paper found best."""
VISIBLE = 2.0
"""Points that an end of the range must lose to count as worse."""
_PLAIN = "fedbuff"


@dataclass(frozen=True)
class Range:
    """A setting, and the exponents of c_l that are tried in it."""

    setting: Setting
    exponents: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """One of the paper's two plots."""

    name: str
    ranges: Mapping[Size, Range]
    noise: float
    """Points within which two accuracies count as the same."""
    notes: tuple[str, ...] = ()


# --- running ------------------------------------------------------------------------------------


def jobs(figure: Figure, order: Order, results: Results) -> list[Job]:
    """FedBuff and every c_l, seed by seed: the ends and the middle first."""
    tried = figure.ranges[order.size]
    return [
        simulation_job(f"{name}/{seed}", config(tried.setting, exponent, seed), order)
        for seed, (name, exponent) in product(tried.setting.seeds, _in_turn(tried.exponents))
    ]


def _in_turn(exponents: Sequence[int]) -> list[tuple[str, int | None]]:
    """FedBuff, the paper's best, the two ends, and the others."""
    first = [PAPERS_BEST, min(exponents), max(exponents)]
    order = [*first, *(exponent for exponent in exponents if exponent not in first)]
    return [(_PLAIN, None), *((f"2^{exponent}", exponent) for exponent in order)]


def config(setting: Setting, exponent: int | None, seed: int) -> SimulationConfig:
    """A run with c_l = 2^exponent in which sums may wrap around; FedBuff without an exponent."""
    if exponent is None:
        return setting.config(method="fedbuff", staleness="polynomial", seed=seed)
    return setting.config(
        method="basecagg",
        staleness="polynomial",
        seed=seed,
        update_levels=2**exponent,
        **accuracy.PROTOCOLS["unmasked"],
    )


# --- reporting ----------------------------------------------------------------------------------


def lines_of(results: Results) -> list[dict[str, Any]]:
    """One line for every c_l: accuracy, both errors relative to the mean update, and the wrap-around rate."""
    groups = by_group(results)
    lines = [
        {
            **_line(name, groups[name]),
            "from 2^16, 95 %": gap(results, name, f"2^{PAPERS_BEST}").interval,
        }
        for name in groups
        if name != _PLAIN
    ]
    return sorted(lines, key=lambda line: line["log2 c_l"])


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    errors = [run["field errors"] for run in runs if "field errors" in run]
    return {
        "log2 c_l": int(name.removeprefix("2^")),
        **accuracy_columns(ends(runs)),
        "rounding error": _relative(errors, "squared_rounding"),
        "wrap-around error": _relative(errors, "squared_wraparound"),
        "wrapped, %": 100 * _share(errors, "wrapped", "elements"),
        "seeds": len(runs),
        "diverged": sum("stopped" in run for run in runs),
    }


def _relative(errors: Sequence[Mapping[str, float]], which: str) -> float:
    return math.sqrt(_share(errors, which, "squared_signal"))


def _share(errors: Sequence[Mapping[str, float]], part: str, whole: str) -> float:
    total = sum(error[whole] for error in errors)
    return sum(error[part] for error in errors) / total if total else math.nan


def report(figure: Figure, results: Results, size: Size) -> Publication:
    """The picture, the table, and what it says about the paper's sentence."""
    lines = lines_of(results)
    plain = mean(ends(by_group(results)[_PLAIN]))
    setting = figure.ranges[size].setting
    return Publication(
        figure.name,
        f"Quantisation levels: {setting.title}",
        f"Polynomial weights, {setting.length},"
        f" {setting.versions} versions, batches of {setting.batch}, otherwise as for the accuracy; sums may"
        f" wrap around. FedBuff in the same runs: {plain:.2f} %.",
        lines,
        notes=[
            "Errors are root mean squares over all elements of all steps, relative to that of the exact"
            " mean update Σ s̄·Δ / Σ s̄: at 1 the error is as large as what it spoils.",
            "An element wraps when its weighted sum of integers leaves ±(q − 1)/2: the larger c_l, the"
            f" smaller the update that fits. {_clipped(results)} elements of updates were clipped to ±4.",
            "Quantised, summed in the field and read back as contributors, holders and server do it, but"
            " without masks: they cancel to the last bit, and no epoch accepts parameters with which a sum"
            " may wrap around.",
            "The elements that wrap are the largest: most of what an update says is in them, so the error is"
            " soon as large as the update.",
            "Accuracy is the mean over the last ten versions and all seeds; ± seeds is half the distance from"
            " the worst seed to the best; the last column: how far runs end from those of 2^16, seed by seed.",
            *accuracy.departures(setting),
            *figure.notes,
        ],
        figures={
            figure.name: (
                levels_plot.against_levels(lines, plain),
                f"{setting.heading}. Above: accuracy against c_l, the dashed line is FedBuff. Below:"
                " what each source of error adds, relative to the update itself.",
            ),
            f"{figure.name}-curves": (
                plot.bands(_curves(results), "version of the model", "test accuracy, %"),
                "The same runs by version, some values of c_l.",
            ),
        },
        claims=[claim(figure, setting, lines)],
        identified_by=("log2 c_l",),
        repeatable={"accuracy, %": 2 * figure.noise},
    )


def _clipped(results: Results) -> int:
    return sum(run["field errors"]["clipped"] for run in results.values() if "field errors" in run)


def claim(figure: Figure, setting: Setting, lines: Sequence[Line]) -> Claim:
    """Whether 2¹⁶ is as good as the best, no other is, and both ends are worse."""
    found = {line["log2 c_l"]: float(line["accuracy, %"]) for line in lines}
    low, high, best = min(found), max(found), max(found, key=lambda e: found[e])
    middle = found.get(PAPERS_BEST, -math.inf)
    as_good = middle >= found[best] - figure.noise
    worse = [found[end] <= middle - VISIBLE for end in (low, high)]
    same = [e for e in sorted(found) if found[e] >= found[best] - figure.noise]
    alone = same == [PAPERS_BEST] and all(worse)
    verdict: Verdict = "reproduced" if alone else "partly" if as_good else "not reproduced"
    seeds = min(line["seeds"] for line in lines)
    return Claim(
        f"The best c_l: {setting.title}",
        f"With {setting.title}, c_l = 2¹⁶ is best; smaller values suffer from rounding, larger ones from"
        " wrap-around.",
        f"2^16: {middle:.2f} %, best (2^{best}): {found[best]:.2f} %, 2^{low}: {found[low]:.2f} %,"
        f" 2^{high}: {found[high]:.2f} %.",
        settled(verdict, seeds),
        f"the means of all values tried from 2^{same[0]} to 2^{same[-1]} are within {figure.noise:g} points of"
        f" the best: {_why_alike([line for line in lines if line['log2 c_l'] in same])}{seeds_missing(seeds)}",
        figure.name,
    )


def _why_alike(lines: Sequence[Line]) -> str:
    """What rounding does to the updates of these levels."""
    most = max(line["rounding error"] for line in lines)
    if most < 1:
        return "the errors there are smaller than the update"
    return (
        f"rounding there makes errors of up to {most:.1f} times the update, but they are unbiased and average"
        " out over the versions"
    )


def _curves(results: Results) -> dict[str, list[plot.Curve]]:
    groups = by_group(results)
    shown = [_PLAIN, *(f"2^{line['log2 c_l']}" for line in lines_of(results))]
    chosen = [shown[0], shown[1], *shown[2:-1][:: max(1, len(shown) // 4)], shown[-1]]
    return {_label(name): list(map(by_version, groups[name])) for name in dict.fromkeys(chosen)}


def _label(name: str) -> str:
    return "FedBuff" if name == _PLAIN else f"$c_l = 2^{{{name.removeprefix('2^')}}}$"


def _experiment(figure: Figure) -> Experiment:
    return Experiment(figure.name, partial(jobs, figure), partial(report, figure))


_SMOKE = Range(replace(accuracy.SMOKE, versions=8, local_steps=None, local_epochs=2), (0, 16, 34))
_MNIST = replace(accuracy.MNIST_STEPS, versions=450, evaluate_every=50, trials=())
MNIST = _experiment(
    Figure(
        "levels-mnist",
        {
            "full": Range(_MNIST, (0, 4, 8, 16, 28, 34)),
            "quick": Range(replace(_MNIST, versions=40, seeds=(1,)), (0, 4, 16, 28, 34)),
            "smoke": _SMOKE,
        },
        noise=0.5,
    )
)
_CIFAR10 = replace(
    accuracy.CIFAR10_STEPS, local_steps=2, batch=10, versions=3000, evaluate_every=300
)
CIFAR10 = _experiment(
    Figure(
        "levels-cifar10",
        {
            "full": Range(_CIFAR10, (0, 4, 8, 16, 28, 34)),
            "quick": Range(replace(_CIFAR10, versions=200, seeds=(1,)), (0, 8, 16, 28, 34)),
            "smoke": _SMOKE,
        },
        noise=1.0,
        notes=(accuracy.JPEG,),
    )
)
