"""`basecagg reproduce sweep-…`: the appendix's grid of η_g, η_l, λ and α, chosen on a validation split.

Combinations are run for a few versions, the best of them for more, and the best of those for longest
(successive halving), there with three seeds. The paper's own choice is always among the last. On MNIST all 225
are tried, on CIFAR-10 those that differ from the paper's choice in one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch

from basecagg.learning import Task, built_in_task
from basecagg.simulation.config import SimulationConfig
from reproduction import accuracy, sweep_plot
from reproduction.accuracy import Setting
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.report import Claim, Publication, Verdict, seeds_missing, settled
from reproduction.simulated import Planned, final_accuracy, run_simulation, simulation_job

VALIDATION = 0.2
"""The share of the training examples that choices are judged by."""
WEIGHT_LEVELS = 2**7
"""c_g: with 2⁶ an update of α = 2 and τ = 10 may weigh nothing."""
_LAST = 3
"""Versions at a run's end whose mean accuracy counts: one alone jumps."""


class Choice(NamedTuple):
    """One point of the grid."""

    global_rate: float
    local_rate: float
    weight_decay: float
    alpha: float

    @property
    def key(self) -> str:
        """A name for the ledger."""
        return "/".join(f"{value:g}" for value in self)


SYMBOLS = ("η_g", "η_l", "λ", "α")
RANGES = (
    (1.0, 0.1, 0.01),
    (0.1, 0.03, 0.01, 0.003, 0.001),
    (5e-3, 5e-4, 5e-5),
    (0.1, 0.5, 1.0, 1.5, 2.0),
)
GRID = tuple(Choice(*values) for values in product(*RANGES))


@dataclass(frozen=True)
class Rung:
    """So many of the best go on for so many versions."""

    choices: int
    versions: int
    steps: int = 4
    """E"""
    seeds: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Ladder:
    """A setting, and its rungs."""

    setting: Setting
    rungs: tuple[Rung, ...]


@dataclass(frozen=True)
class Sweep:
    """One data set: what is tried, what the paper chose, and what counts as the same."""

    name: str
    title: str
    papers: Choice
    """The paper's best."""
    grid: tuple[Choice, ...]
    ladders: Mapping[Size, Ladder]
    same: float
    """Points of validation accuracy that count as none."""
    notes: tuple[str, ...] = ()


# --- running ------------------------------------------------------------------------------------


def jobs(sweep: Sweep, order: Order, results: Results) -> list[Job]:
    """The rungs climbed so far; who goes on is decided by the ledger, so a resumed sweep decides the same."""
    ladder, wanted = sweep.ladders[order.size], list[Job]()
    for number, rung in enumerate(ladder.rungs):
        for seed, choice in product(rung.seeds, contenders(sweep, ladder, number, results)):
            run = config(ladder.setting, choice, rung, seed)
            job = simulation_job(f"{number}/{choice.key}/{seed}", run, order)
            wanted.append(replace(job, work=run_on_validation))
        if any(job.key not in results for job in wanted):
            break
    return wanted


def contenders(sweep: Sweep, ladder: Ladder, number: int, results: Results) -> list[Choice]:
    """Everybody on the first rung; then the best of the one before, and the paper's choice on the last."""
    if number == 0:
        return list(sweep.grid)[: ladder.rungs[0].choices]
    ranked = sorted(scores(results, number - 1).items(), key=lambda pair: -pair[1])
    best = [choice for choice, _ in ranked[: ladder.rungs[number].choices]]
    last = number == len(ladder.rungs) - 1
    return best if not last or sweep.papers in best else [*best, sweep.papers]


def scores(results: Results, number: int) -> dict[Choice, float]:
    """Validation accuracy on this rung, in points: the mean over seeds."""
    return {choice: mean(found) for choice, found in _by_choice(results, number).items()}


def _by_choice(results: Results, number: int) -> dict[Choice, list[float]]:
    found: dict[Choice, list[float]] = {}
    for key, run in results.items():
        rung, *values, _ = key.split("/")
        if rung == str(number):
            found.setdefault(Choice(*map(float, values)), []).append(
                100 * final_accuracy(run, _LAST)
            )
    return found


def config(setting: Setting, choice: Choice, rung: Rung, seed: int) -> SimulationConfig:
    """BASecAgg's arithmetic without masks; with these levels no sum can wrap around."""
    return setting.config(
        method="basecagg",
        **accuracy.PROTOCOLS["unmasked"],
        weights="field",
        weight_levels=WEIGHT_LEVELS,
        staleness=f"polynomial:{choice.alpha:g}",
        global_rate=choice.global_rate,
        local_rate=choice.local_rate,
        weight_decay=choice.weight_decay,
        seed=seed,
        local_epochs=None,
        local_steps=rung.steps,
        versions=rung.versions,
        evaluate_every=rung.versions,
        evaluate_last=min(_LAST, rung.versions),
    )


def run_on_validation(planned: Planned) -> dict[str, Any]:
    """A run that never sees the test examples."""
    config = planned.config
    return run_simulation(planned, _validation_task(config.model, config.dataset, config.data_dir))


@lru_cache(maxsize=1)
def _validation_task(model: str, dataset: str, data_dir: str) -> Task:
    return held_out(built_in_task(model, dataset, data_dir=Path(data_dir)))


def held_out(task: Task) -> Task:
    """The same task, tested on a fixed fifth of its training examples, which are no longer trained on."""
    data = task.dataset
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data.train_y)))
    first = round(VALIDATION * len(order))
    held, kept = order[:first], order[first:]
    split = replace(
        data,
        train_x=data.train_x[kept],
        train_y=data.train_y[kept],
        test_x=data.train_x[held],
        test_y=data.train_y[held],
    )
    return replace(task, dataset=split)


# --- reporting ----------------------------------------------------------------------------------


def report(sweep: Sweep, results: Results, size: Size) -> Publication:
    """The last rung, best first, and what every value was worth on the first."""
    setting, climbed = sweep.ladders[size].setting, sweep.ladders[size].rungs
    top = max(int(key.partition("/")[0]) for key in results)
    first, last = scores(results, 0), scores(results, top)
    lines = [_line(sweep, choice, score) for choice, score in _ranked(last)]
    rungs = "; ".join(
        f"{len(scores(results, n))} combinations for {rung.versions} versions of E = {rung.steps} local steps"
        for n, rung in enumerate(climbed[: top + 1])
    )
    return Publication(
        sweep.name,
        f"The appendix's sweep: {sweep.title}",
        f"{setting.heading}, {VALIDATION:.0%} of the training examples held out to choose by."
        f" Budget: {rungs}.",
        lines,
        tables={"The best that each value reached on the first rung": _by_value(first)},
        notes=[
            "Short runs prefer large steps: what is best after a few versions need not be best after many."
            " The paper says neither how long it ran each combination nor its E, and they act together: who"
            " takes more steps between two versions needs a smaller η_l.",
            f"c_g = 2^7 throughout: with 2^6 an update of α = 2 and τ = 10 may weigh nothing."
            f" Differences below {sweep.same:g} points mean nothing; only the last rung has several seeds.",
            *accuracy.departures(setting),
            *sweep.notes,
        ],
        figures={
            sweep.name: (
                sweep_plot.by_value(first, sweep.papers),
                "Validation accuracy on the first rung: every dot is a combination, the line joins the best"
                " for each value; the paper's choice is ringed.",
            )
        },
        claims=[claim(sweep, last, min(map(len, _by_choice(results, top).values())))],
    )


def claim(sweep: Sweep, last: Mapping[Choice, float], seeds: int) -> Claim:
    """Whether the paper's choice is the best, or as good."""
    best, papers = _ranked(last)[0][0], last.get(sweep.papers)
    behind = last[best] - papers if papers is not None else float("inf")
    verdict: Verdict = "not reproduced"
    if behind <= sweep.same:
        verdict = "reproduced" if best == sweep.papers else "partly"
    found = f"best here: {in_words(best)} with {last[best]:.2f} % on the validation split"
    theirs = "was not run" if papers is None else f"reaches {papers:.2f} %"
    larger = "; a larger η_l is ahead to the end of these runs, longer ones were not made"
    return Claim(
        f"The appendix's grid: {sweep.title}",
        f"Of the grid, {in_words(sweep.papers)} are best on {sweep.title}.",
        f"{found}; the paper's choice {theirs} (seeds: {seeds}).",
        settled(verdict, seeds),
        f"within the budget stated, {sweep.same:g} points count as none, and partly means as good as the best"
        " without being it; the paper's choice goes on to the last rung in any case"
        + (larger if best.local_rate > sweep.papers.local_rate else "")
        + seeds_missing(seeds),
        sweep.name,
    )


def in_words(choice: Choice) -> str:
    """The choice with its symbols."""
    return ", ".join(f"{name} = {value:g}" for name, value in zip(SYMBOLS, choice, strict=True))


def _ranked(found: Mapping[Choice, float]) -> list[tuple[Choice, float]]:
    return sorted(found.items(), key=lambda pair: -pair[1])


def _line(sweep: Sweep, choice: Choice, score: float) -> dict[str, Any]:
    values = {name: f"{value:g}" for name, value in zip(SYMBOLS, choice, strict=True)}
    own = "the paper's" if choice == sweep.papers else ""
    return {**values, "validation accuracy, %": f"{score:.2f}", "": own}


def _by_value(first: Mapping[Choice, float]) -> list[dict[str, Any]]:
    lines = []
    for place, name in enumerate(SYMBOLS):
        for value in sorted({choice[place] for choice in first}):
            best = max(score for choice, score in first.items() if choice[place] == value)
            lines.append({"parameter": name, "value": f"{value:g}", "best, %": f"{best:.2f}"})
    return lines


def _one_value_changed(choice: Choice) -> tuple[Choice, ...]:
    """The choice, and all of the grid that differ from it in one value."""
    return tuple(
        other for other in GRID if sum(a != b for a, b in zip(other, choice, strict=True)) <= 1
    )


def _experiment(sweep: Sweep) -> Experiment:
    return Experiment(sweep.name, partial(jobs, sweep), partial(report, sweep))


_SMOKE = Ladder(accuracy.SMOKE, (Rung(6, 1), Rung(2, 2)))
_MNIST = accuracy.MNIST_SETTING
MNIST_SWEEP = Sweep(
    "sweep-mnist",
    "MNIST",
    papers=Choice(1.0, accuracy.PAPERS_RATE["mnist"], 5e-4, 1.0),
    grid=GRID,
    ladders={
        "full": Ladder(
            _MNIST,
            (Rung(len(GRID), 20), Rung(24, 80), Rung(6, 300), Rung(3, 1000, seeds=(1, 2, 3))),
        ),
        "quick": Ladder(_MNIST, (Rung(len(GRID), 1, steps=1), Rung(8, 10))),
        "smoke": _SMOKE,
    },
    same=0.5,
)
MNIST = _experiment(MNIST_SWEEP)
_CIFAR10 = replace(accuracy.CIFAR10_STEPS, batch=10)
_PAPERS_FOR_CIFAR10 = Choice(1.0, accuracy.PAPERS_RATE["cifar10"], 5e-4, 1.0)
_AROUND = _one_value_changed(_PAPERS_FOR_CIFAR10)
CIFAR10 = _experiment(
    Sweep(
        "sweep-cifar10",
        "CIFAR-10",
        papers=_PAPERS_FOR_CIFAR10,
        grid=_AROUND,
        ladders={
            "full": Ladder(
                _CIFAR10,
                (Rung(len(_AROUND), 500, steps=2), Rung(4, 2000, steps=2, seeds=(1, 2, 3))),
            ),
            "quick": Ladder(_CIFAR10, (Rung(len(_AROUND), 50, steps=2),)),
            "smoke": _SMOKE,
        },
        same=1.0,
        notes=(
            "Only combinations that differ from the paper's choice in one value were tried, with a small CNN"
            " that is a substitute for the paper's network.",
            accuracy.JPEG,
        ),
    )
)
