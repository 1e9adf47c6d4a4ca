"""`basecagg reproduce autotune`: B and c_l found by the federation itself, from starts that spoil the training.

The paper points to the auto-tuning of Bonawitz et al. (2019) and does not try it; the method here is our own.
Each start runs untuned, to show what it costs, and tuned: the first epoch has the bad parameters, and the
reports in its sums choose those of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from reproduction import plot
from reproduction.accuracy import MNIST_SETTING, PROTOCOLS, Setting
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, Verdict, seeds_missing, settled
from reproduction.simulated import (
    Gap,
    Run,
    accuracy_columns,
    by_group,
    by_version,
    ends,
    gap,
    simulation_job,
)

GOOD = "2^16"
"""The start that the others must come up to: the paper's best c_l."""
LOST = 5.0
"""Points that a start must lose untuned to count as bad."""
REGAINED = 0.5
"""Points that a tuned run may end below the good start."""
_TUNE_AFTER = 3
_REPEATS_WITHIN = 1.0
"""Points by which another machine may differ."""


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    update_levels: int
    """c_l"""
    words: str
    wraps: bool = False
    """No epoch accepts it, so its own runs without masks."""


STARTS = {
    GOOD: Start(2**16, words="the paper's best"),
    "2^0": Start(1, words="rounds almost every element to 0 or ±1"),
    "2^33": Start(
        2**33,
        words="sums wrap around; no epoch accepts it, so the first runs without masks",
        wraps=True,
    ),
}
BAD = tuple(name for name in STARTS if name != GOOD)
RUNS = ((GOOD, "untuned"), *product(BAD, ("untuned", "tuned")))

SETTINGS: Mapping[Size, Setting] = {
    "full": replace(
        MNIST_SETTING, local_epochs=4, versions=75, evaluate_every=3, seeds=(1, 2, 3), holders=20
    ),
    "quick": replace(
        MNIST_SETTING, local_epochs=2, versions=40, evaluate_every=2, seeds=(1,), holders=20
    ),
    "smoke": Setting("digits", "mlp", 0.1, 3, 20, 5, seeds=(1,), holders=8),
}


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """The good start, and every bad one untuned and tuned, seed by seed."""
    setting, wanted = SETTINGS[order.size], list[Job]()
    for seed, (name, mode) in product(setting.seeds, RUNS):
        start = STARTS[name]
        without_masks = mode == "untuned" or start.wraps
        config = setting.config(
            method="basecagg",
            staleness="polynomial",
            seed=seed,
            update_levels=start.update_levels,
            auto_tune=mode == "tuned",
            tune_after=_TUNE_AFTER,
            **PROTOCOLS["unmasked" if without_masks else "arithmetic"],
        )
        wanted.append(simulation_job(f"{name}/{mode}/{seed}", config, order))
    return wanted


# --- reporting ----------------------------------------------------------------------------------


def gaps_of(results: Results) -> dict[tuple[str, str], Gap]:
    """How far every start and mode ends above the good start untuned, seed by seed."""
    found = {run: gap(results, "/".join(run), f"{GOOD}/untuned") for run in RUNS}
    return {run: each for run, each in found.items() if not math.isnan(each.mean)}


def lines_of(results: Results, gaps: Mapping[tuple[str, str], Gap]) -> list[dict[str, Any]]:
    """The end of every run, beside that of the good start untuned; and what was found."""
    groups, lines = by_group(results), []
    for (name, mode), ahead in gaps.items():
        runs = groups[f"{name}/{mode}"]
        lines.append(
            {
                "start": name,
                "tuned": mode == "tuned",
                "seeds": len(runs),
                **accuracy_columns(ends(runs)),
                "points from 2^16": f"{ahead.mean:+.2f}",
                "95 %": "–" if name == GOOD else ahead.interval,
                **_found(runs),
            }
        )
    return lines


def _found(runs: Iterable[Run]) -> dict[str, str]:
    """B, c_l and the version from which they were used, from the least of the seeds to the largest."""
    epochs = [run.get("epochs", []) for run in runs]
    tuned = [each for each in epochs if len(each) > 1]
    return {
        "found B": _range((each[-1]["clip"] for each in tuned), "{:g}".format),
        "found c_l": _range((each[-1]["update_levels"] for each in tuned), _power),
        "from version": _range(each[1]["first_version"] for each in tuned),
        "epochs": _range(len(each) or 1 for each in epochs),
    }


def _range(values: Iterable[Any], show: Callable[[Any], str] = str) -> str:
    """The least and the largest of the values, or the only one."""
    known = sorted(set(values))
    return (
        " … ".join(show(value) for value in dict.fromkeys((known[0], known[-1]))) if known else "–"
    )


def _power(levels: int) -> str:
    return f"2^{levels.bit_length() - 1}"


def report(results: Results, size: Size) -> Publication:
    """The curves, the table, and whether tuning undoes a bad start."""
    setting, gaps = SETTINGS[size], gaps_of(results)
    seeds = min(map(len, by_group(results).values()), default=0)
    return Publication(
        "autotune",
        "Auto-tuning of c_l",
        f"{setting.heading}. {_setting_in_words(setting)} Each bad start runs untuned and tuned.",
        lines_of(results, gaps),
        notes=_notes(),
        claims=[_claim(gaps, seeds)],
        identified_by=("start", "tuned"),
        repeatable={"accuracy, %": _REPEATS_WITHIN},
        figures={
            "autotune": (
                plot.bands(_curves(results), "version of the model", "test accuracy, %"),
                "Accuracy from good and bad starts, untuned and tuned; bands from the worst to the best seed.",
            )
        },
    )


def _setting_in_words(setting: Setting) -> str:
    run = setting.config()
    return (
        f"N = {run.users} users, {run.holders} of them hold shares; K = {run.buffer_size}, staleness uniform on"
        f" 0…{run.max_staleness}, weights (1 + τ)⁻¹ with c_g = {_power(run.weight_levels or 1)};"
        f" {setting.length} in batches of {run.batch_size}, η_l = {run.local_rate:g}, η_g ="
        f" {run.global_rate:g}, {run.versions} versions. All begin with B = {run.clip:g}."
    )


def _notes() -> list[str]:
    return [
        "The method is ours, not that of Bonawitz et al. (2019), to which the paper points: they rotate updates"
        " at random, which makes the distribution of elements predictable, and tune by that."
        " [How ours works](../how-to/auto-tuning.md).",
        "The server learns nothing but sums over a buffer: every update carries one number per octave of its"
        " largest element, each turned around with probability ¼, masked and summed with it.",
        "B is four times the octave that most updates are in, and c_l the finest with which no sum of K clipped"
        " updates can wrap around. Both change only between epochs. Where seeds found different values, the"
        " least and the largest are shown.",
        *(f"{name}: {start.words}." for name, start in STARTS.items()),
        "Tuned runs go through masks, shares and recovery (nothing sealed or signed), but for the first epoch"
        " from 2^33; untuned ones are summed in the field without masks, which cancel to the last bit.",
        "95 %: where the mean gap to 2^16 lies, by Student's t over the gaps of each seed.",
    ]


def _claim(gaps: Mapping[tuple[str, str], Gap], seeds: int) -> Claim:
    known = [name for name in BAD if (name, "tuned") in gaps and (name, "untuned") in gaps]
    tuned = {name: gaps[name, "tuned"] for name in known}
    untuned = {name: gaps[name, "untuned"].mean for name in known}
    found = "; ".join(
        f"{name}: {untuned[name]:+.2f} points untuned, {tuned[name].mean:+.2f} tuned"
        f" (95 %: {tuned[name].interval})"
        for name in known
    )
    verdict = settled(_verdict(tuned, untuned), seeds)
    return Claim(
        "Auto-tuning of c_l",
        "A proper value of c_l can be found by auto-tuning.",
        f"By a method of our own, beside the untuned run at 2^16: {found} (mean of the last ten versions;"
        f" seeds: {seeds}).",
        verdict,
        f"a start that loses {LOST:g} points untuned must end at most {REGAINED} points lower when tuned, with"
        f" its whole 95 % interval{_too_wide(tuned, verdict)}{seeds_missing(seeds)}",
        "autotune",
    )


def _too_wide(tuned: Mapping[str, Gap], verdict: Verdict) -> str:
    wide = [name for name, ahead in tuned.items() if ahead.low < -REGAINED <= ahead.mean]
    if verdict != "undecided" or not wide:
        return ""
    return f", and that of {' and '.join(wide)} reaches lower: more seeds are needed"


def _verdict(tuned: Mapping[str, Gap], untuned: Mapping[str, float]) -> Verdict:
    """Undecided if the means are as they should be, and an interval is not."""
    bad = [name for name, ahead in untuned.items() if ahead <= -LOST]
    if not bad or any(ahead.mean < -REGAINED for ahead in tuned.values()):
        return "not reproduced"
    if any(ahead.low < -REGAINED for ahead in tuned.values()):
        return "undecided"
    return "reproduced" if len(bad) == len(BAD) else "partly"


def _curves(results: Results) -> dict[str, list[plot.Curve]]:
    groups = by_group(results)
    return {
        f"{name}, {mode}": list(map(by_version, groups[f"{name}/{mode}"]))
        for name, mode in RUNS
        if f"{name}/{mode}" in groups
    }


AUTOTUNE = Experiment("autotune", jobs, report)
