"""`basecagg reproduce beyond`: what the paper does not show, by simulated time on a clock of devices.

Data that differ from user to user, holders that are gone when a sum is opened, K and the number of users that
train at once, and K up to N: a buffer in a trusted enclave is limited by the enclave's memory, this one is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from basecagg.simulation.config import SimulationConfig
from reproduction import plot
from reproduction.experiment import Experiment, Results
from reproduction.jobs import SEEDS, Job, Order, Size
from reproduction.report import Claim, Line, Publication, Verdict, settled
from reproduction.simulated import (
    Run,
    accuracy_columns,
    by_group,
    by_time,
    curve_of,
    final_accuracy,
    first_above,
    simulation_job,
)

TARGET = 0.9
"""Accuracy whose time is told."""
_TASK: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "mlp",
    "users": 100,
    "min_per_version": 1,
    "concurrency": 20,
    "buffer_size": 10,
    "max_staleness": 20,
    "weight_levels": 2**6,
    "correctness": "honest-holders",
    "staleness": "polynomial",
    "staleness_a": 0.5,
    "local_rate": 0.1,
    "local_epochs": 2,
    "batch_size": 5,
    "evaluate_last": 10,
    "cryptography": "arithmetic",
}

_DEFAULT_RUN: Mapping[str, Any] = {
    name: getattr(SimulationConfig, name)
    for name in ("max_staleness", "staleness_a", "local_rate", "local_epochs", "batch_size")
}
"""Where what `basecagg run` does differs from the above."""


class Part(NamedTuple):
    """One thing that is varied."""

    name: str
    title: str
    label: str
    """Of the legend, with the value in place."""
    values: tuple[Any, ...]
    settings: Callable[[Any], dict[str, Any]]
    updates: Callable[[Any], int] = lambda value: 600
    """Of a full run. Runs that are compared by time should take about as long."""
    methods: tuple[str, ...] = ("basecagg",)


def _mixture(alpha: float) -> dict[str, Any]:
    """Dirichlet(α) over users for every class; α = ∞ is IID."""
    if alpha == float("inf"):
        return {"partition": "iid"}
    return {"partition": "dirichlet", "dirichlet_alpha": alpha}


PARTS = (
    Part(
        "data",
        "Uneven data",
        "Dirichlet α = {}",
        (0.1, 0.3, 1.0, float("inf")),
        _mixture,
        methods=("fedbuff", "basecagg"),
    ),
    Part(
        "dropout",
        "Holders gone at every recovery",
        "{:.0%} gone",
        (0.0, 0.1, 0.2, 0.3),
        lambda share: {"holder_dropout": share, "cryptography": "full"},
        lambda share: 400,
    ),
    Part(
        "buffer",
        "K, with 50 users training at once",
        "K = {}",
        (5, 10, 20, 50, 100),
        lambda k: {"buffer_size": k, "concurrency": 50},
        lambda k: 1000,
    ),
    Part(
        "concurrency",
        "Users that train at once, K = 10",
        "C = {}",
        (5, 10, 20, 50, 100),
        lambda c: {"concurrency": c},
        lambda c: max(300, 25 * c),
    ),
    Part(
        "versions",
        "Members of each version in a sum, in the default run",
        "m = {}",
        (1, 2, 3, 5),
        lambda m: {**_DEFAULT_RUN, "min_per_version": m},
    ),
)
_LENGTH: Mapping[Size, float] = {"full": 1, "quick": 0.4, "smoke": 0.1}


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """Every value of every part, seed by seed; the smoke form has the ends of each."""
    size, wanted = order.size, list[Job]()
    for seed, part in product(SEEDS[size], PARTS):
        ends = part.values[:: len(part.values) - 1]
        for method, value in product(part.methods, ends if size == "smoke" else part.values):
            run = config(part, method, value, seed, size)
            key = f"{part.name}/{method}/{value}/{seed}"
            wanted.append(simulation_job(key, run, order))
    return wanted


def config(part: Part, method: str, value: Any, seed: int, size: Size) -> SimulationConfig:
    """A run with so many updates in all, however many of them make a version."""
    changed = {**_TASK, "method": method, "seed": seed, **part.settings(value)}
    if size == "smoke":
        fewer = {name: min(20, changed[name]) for name in ("users", "buffer_size", "concurrency")}
        changed |= {**fewer, "holders": 10}
    updates = round(_LENGTH[size] * part.updates(value))
    changed["versions"] = max(2, updates // changed["buffer_size"])
    return SimulationConfig(**changed)


# --- reporting ----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """A table and a plot for each part."""
    groups = by_group(results)
    parts = {part: [name for name in groups if name.startswith(part.name + "/")] for part in PARTS}
    lines = [_line(part, name, groups[name]) for part, names in parts.items() for name in names]
    return Publication(
        "beyond",
        "Beyond the paper",
        f"An MLP on digits, {_TASK['users']} users, devices with half-normal speeds. Time is"
        " simulated: training, messages and cryptography.",
        lines,
        notes=[
            "Recovery with holders gone ran sealed and signed; the other parts did the arithmetic only,"
            " whose sums are the same.",
            "Small K and large C make updates stale, and the model swings; K = N waits for the slowest and"
            " takes few steps. K up to N works all the same: no memory of a trusted enclave limits it.",
            "Holders that are gone are drawn anew for every sum. D = 30 % of them were planned for, so none"
            " of these sums fails.",
            "With m, each version in a sum has m members or more, and an update that finds too few others of"
            " its version is given up; 'updates' counts those too. What is summed is fresher for it, which"
            " makes up for some of the time.",
            f"Time to {TARGET:.0%} is of the mean over seeds; '–' means that it was not reached.",
        ],
        figures={
            f"beyond-{part.name}": (
                plot.bands(_curves(part, groups, names), "simulated seconds", "test accuracy, %"),
                f"{part.title}: mean over seeds, bands from the worst to the best.",
            )
            for part, names in parts.items()
            if names
        },
        claims=_claims(lines),
    )


def _line(part: Part, name: str, runs: Sequence[Run]) -> dict[str, Any]:
    _, method, value = name.split("/")
    return {
        "varied": part.title,
        "method": method,
        "value": _label(part, value),
        **accuracy_columns([100 * _end(run) for run in runs]),
        f"seconds to {TARGET:.0%}": first_above(list(map(by_time, runs)), TARGET),
        "simulated seconds": mean(curve_of(run)[-1].time for run in runs),
        "updates": round(mean(curve_of(run)[-1].updates for run in runs)),
        "versions": round(mean(curve_of(run)[-1].version for run in runs)),
        "seeds": len(runs),
    }


def _end(run: Run) -> float:
    """The mean of the last tenth, ten versions at most: K = N makes few versions, and the first are no end."""
    return final_accuracy(run, last=max(1, min(10, curve_of(run)[-1].version // 10)))


def _label(part: Part, value: str) -> str:
    number = float(value)
    if number == float("inf"):
        return "IID"
    return part.label.format(number if part.name in ("data", "dropout") else int(number))


def _curves(
    part: Part, groups: Mapping[str, Sequence[Run]], names: Sequence[str]
) -> dict[str, list[plot.Curve]]:
    ours = [name for name in names if name.split("/")[1] == "basecagg"]
    return {
        _label(part, name.rpartition("/")[2]): list(map(by_time, groups[name])) for name in ours
    }


def _claims(lines: Sequence[Line]) -> list[Claim]:
    """One sentence for each part that was run."""
    claims = []
    for part in PARTS:
        own = [
            line for line in lines if line["varied"] == part.title and line["method"] == "basecagg"
        ]
        if own:
            found = "; ".join(f"{line['value']}: {line['accuracy, %']} %" for line in own)
            judge = _JUDGES.get(part.name)
            verdict: Verdict = judge(own) if judge else "beyond the paper"
            claims.append(
                Claim(_SENTENCES[part.name], f"{found}.", verdict, figure=f"beyond-{part.name}")
            )
    return claims


def _at_no_cost(lines: Sequence[Line]) -> Verdict:
    """Whether all end alike, however many holders were gone."""
    ends = [float(line["accuracy, %"]) for line in lines]
    alike: Verdict = "reproduced" if max(ends) - min(ends) <= _SAME else "partly"
    return settled(alike, min(line["seeds"] for line in lines))


def _of_any_size(lines: Sequence[Line]) -> Verdict:
    """Whether a run with K = N went to its end."""
    everybody = f"K = {_TASK['users']}"
    whole: Verdict = "reproduced" if lines[-1]["value"] == everybody else "partly"
    return settled(whole, min(line["seeds"] for line in lines))


_SAME = 0.5
"""Points of accuracy that count as none."""
_JUDGES: Mapping[str, Callable[[Sequence[Line]], Verdict]] = {
    "dropout": _at_no_cost,
    "buffer": _of_any_size,
}


_SENTENCES = {
    "data": "How uneven may the users' data be? (The paper is IID.)",
    "dropout": "Sums open although up to D holders are gone, at no cost in accuracy.",
    "buffer": "Without an enclave the buffer may have any size, up to K = N.",
    "concurrency": "How many users should train at once?",
    "versions": "What does it cost that nobody is alone with a version? (The paper has m = 1.)",
}

BEYOND = Experiment("beyond", jobs, report)
