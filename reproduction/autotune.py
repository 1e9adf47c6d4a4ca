"""`basecagg reproduce autotune`: B and c_l found by the federation itself, from starts that spoil the training.

The paper points to auto-tuning and does not try it. Each start runs untuned, to show what it costs, and tuned:
the first epoch has the bad parameters, and the reports in its sums choose those of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean
from typing import Any

from reproduction import plot
from reproduction.accuracy import MNIST_SETTING, PROTOCOLS, Setting
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Line, Publication, Verdict, seeds_missing, settled
from reproduction.simulated import (
    Run,
    accuracy_columns,
    by_group,
    by_version,
    ends,
    simulation_job,
)

GOOD = "2^16"
"""The start that the others must come up to: the paper's best c_l."""
LOST = 5.0
"""Points that a start must lose untuned to count as bad."""
REGAINED = 0.5
"""Points from the good start within which a tuned run must end."""
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


def lines_of(results: Results) -> list[dict[str, Any]]:
    """The end of every run, beside that of the good start untuned; and what was found."""
    groups = by_group(results)
    good, lines = ends(groups.get(f"{GOOD}/untuned", [])), []
    for name, mode in RUNS:
        own = ends(groups.get(f"{name}/{mode}", []))
        if own and good:
            lines.append(
                {
                    "start": name,
                    "tuned": mode == "tuned",
                    "seeds": len(own),
                    **accuracy_columns(own),
                    "points from 2^16": f"{mean(own) - mean(good):+.2f}",
                    **_found(groups[f"{name}/{mode}"]),
                }
            )
    return lines


def _found(runs: Sequence[Run]) -> dict[str, Any]:
    """B, c_l and the version from which they were used, of the first seed."""
    epochs = runs[0].get("epochs", [])
    if len(epochs) < 2:
        return {"found B": "–", "found c_l": "–", "from version": "–", "epochs": len(epochs) or 1}
    second, last = epochs[1], epochs[-1]
    return {
        "found B": f"{last['clip']:g}",
        "found c_l": f"2^{last['update_levels'].bit_length() - 1}",
        "from version": second["first_version"],
        "epochs": len(epochs),
    }


def report(results: Results, size: Size) -> Publication:
    """The curves, the table, and whether tuning undoes a bad start."""
    setting, lines = SETTINGS[size], lines_of(results)
    return Publication(
        "autotune",
        "Auto-tuning of c_l",
        f"{setting.heading}, {setting.length}, {setting.versions} versions, polynomial"
        " weights, otherwise as for the accuracy. Each bad start runs untuned and tuned.",
        lines,
        notes=_notes(),
        claims=[_claim(lines)],
        identified_by=("start", "tuned"),
        repeatable={"accuracy, %": _REPEATS_WITHIN},
        figures={
            "autotune": (
                plot.bands(_curves(results), "version of the model", "test accuracy, %"),
                "Accuracy from good and bad starts, untuned and tuned; bands from the worst to the best seed.",
            )
        },
    )


def _notes() -> list[str]:
    return [
        "The server learns nothing but sums over a buffer: every update carries one number per octave of its"
        " largest element, each turned around with probability ¼, masked and summed with it.",
        "B is four times the octave that most updates are in, and c_l the finest with which no sum of K clipped"
        " updates can wrap around. Both change only between epochs.",
        *(f"{name}: {start.words}." for name, start in STARTS.items()),
        "Tuned runs go through masks, shares and recovery (nothing sealed or signed); untuned ones are summed"
        " in the field without masks, which cancel to the last bit.",
    ]


def _claim(lines: Sequence[Line]) -> Claim:
    gaps = {(line["start"], line["tuned"]): float(line["points from 2^16"]) for line in lines}
    known = [name for name in BAD if (name, True) in gaps and (name, False) in gaps]
    found = "; ".join(
        f"{name}: {gaps[name, False]:+.2f} points untuned, {gaps[name, True]:+.2f} tuned"
        for name in known
    )
    seeds = min((line["seeds"] for line in lines), default=0)
    return Claim(
        "A proper value of c_l can be found by auto-tuning.",
        f"Beside the untuned run at 2^16: {found} (mean of the last ten versions; seeds: {seeds}).",
        settled(_verdict(gaps, known), seeds),
        f"a start that loses {LOST:g} points untuned must end within {REGAINED} points when tuned"
        + seeds_missing(seeds),
        "autotune",
    )


def _verdict(gaps: Mapping[tuple[str, bool], float], known: Sequence[str]) -> Verdict:
    bad = [name for name in known if gaps[name, False] <= -LOST]
    regained = [name for name in known if gaps[name, True] >= -REGAINED]
    if len(regained) < len(known) or not bad:
        return "not reproduced"
    return "reproduced" if len(bad) == len(BAD) else "partly"


def _curves(results: Results) -> dict[str, list[plot.Curve]]:
    groups = by_group(results)
    return {
        f"{name}, {mode}": list(map(by_version, groups[f"{name}/{mode}"]))
        for name, mode in RUNS
        if f"{name}/{mode}" in groups
    }


AUTOTUNE = Experiment("autotune", jobs, report)
