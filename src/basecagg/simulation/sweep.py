"""Many runs: every combination of some settings with every seed, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from basecagg.errors import ParameterError
from basecagg.extras import require
from basecagg.learning import Task
from basecagg.printing import Shown, plain_table
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.progress import Line
from basecagg.simulation.result import SimulationResult, frame_of, score_text
from basecagg.simulation.simulate import simulate

if TYPE_CHECKING:
    from rich.console import RenderableType

Values: TypeAlias = Mapping[str, Any]
"""The settings in which the runs of a sweep differ."""


class Estimate(NamedTuple):
    """A mean over seeds, with its 95 % interval by Student's t; without one where there is a single number."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    values: Values
    seed: int
    result: SimulationResult


@dataclass(frozen=True, repr=False)
class Sweep(Shown):
    """All runs of a sweep. It prints as a table with one line for each combination."""

    runs: tuple[SweepRun, ...]

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each run: its settings, its seed, and what came of it."""
        return [
            {
                **run.values,
                "seed": run.seed,
                "score": run.result.score,
                "time": run.result.time,
                "updates": run.result.versions[-1].updates,
                "lost": run.result.versions[-1].lost,
                "burned": sum(version.burned for version in run.result.versions),
                "MB per user": run.result.bytes_per_user / 1e6,
                "epsilon": run.result.epsilon,
            }
            for run in self.runs
        ]

    def frame(self) -> Any:
        """The same as a pandas.DataFrame, if pandas is installed."""
        return frame_of(self.rows())

    def score(self, **values: Any) -> Estimate:
        """The score of the runs with these values, over their seeds."""
        return _estimate([run.result.score for run in self._with(values)])

    def time_to(self, score: float, **values: Any) -> Estimate | None:
        """Simulated seconds to this score, over the seeds; None if a run never had it."""
        times = [run.result.time_to(score) for run in self._with(values)]
        reached = [time for time in times if time is not None]
        return _estimate(reached) if len(reached) == len(times) else None

    def _with(self, values: Values) -> list[SweepRun]:
        found = [run for run in self.runs if values.items() <= run.values.items()]
        if not found:
            raise ParameterError(f"no run of this sweep has {dict(values)}", rule="known values")
        return found

    def __rich__(self) -> RenderableType:
        """A line for each combination: means over the seeds, and half of the 95 % interval of the score."""
        combinations = list({tuple(run.values.items()): run.values for run in self.runs}.values())
        name = self.runs[0].result.score_name
        target = min(max(each.score for each in run.result.curve) for run in self.runs)
        heads = [*combinations[0], "runs", name, f"s to {score_text(target, name)}"]
        heads += ["lost", "MB a user", "ε"]
        rows = [[*map(str, each.values()), *self._line(each, target)] for each in combinations]
        return plain_table(*(f"{each} >" for each in heads), rows=rows)

    def _line(self, values: Values, target: float) -> list[str]:
        runs = [run.result for run in self._with(values)]
        score, time = self.score(**values), self.time_to(target, **values)
        spent = [run.epsilon for run in runs if run.epsilon is not None]
        return [
            str(len(runs)),
            _with_interval(score, runs[0].score_name),
            f"{time.mean:.1f}" if time else "–",
            f"{fmean(run.versions[-1].lost for run in runs):.1f}",
            f"{fmean(run.bytes_per_user for run in runs) / 1e6:.2f}",
            f"{max(spent):.3g}" if spent else "–",
        ]


def _with_interval(score: Estimate, name: str) -> str:
    """Such as 84.0 ± 3.1 %."""
    if score.high is None:
        return score_text(score.mean, name)
    half = score_text(score.high - score.mean, name)
    return f"{score_text(score.mean, name).removesuffix(' %')} ± {half}"


def sweep(
    config: SimulationConfig,
    grid: Mapping[str, Sequence[Any]],
    seeds: Iterable[int] = (1, 2, 3),
    *,
    task: Task | None = None,
    folder: Path | str | None = None,
    progress: bool = True,
) -> Sweep:
    """Simulate every combination of the grid's values with every seed, one run after the other.

    With a `folder` each run has one of its own in it, and a sweep that was stopped goes on when called again.
    All settings are checked before the first run begins.
    """
    seeds = tuple(seeds)
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if not seeds or not combinations:
        raise ParameterError("a sweep needs a seed, and a value for each setting", rule="not empty")
    planned = [
        (values, seed, replace(config, **values, seed=seed))
        for values in combinations
        for seed in seeds
    ]
    runs = []
    for number, (values, seed, each) in enumerate(planned, start=1):
        place = Path(folder) / _name(values) / f"seed-{seed}" if folder else None
        line = Line(each, f"run {number} of {len(planned)}") if progress else False
        result = simulate(each, task=task, folder=place, resume=place is not None, progress=line)
        runs.append(SweepRun(values, seed, result))
    return Sweep(tuple(runs))


def _name(values: Values) -> str:
    """A folder for one combination."""
    told = ",".join(f"{name}={value}" for name, value in values.items()) or "all"
    return "".join(letter if letter.isalnum() or letter in ",=.-_+" else "_" for letter in told)


def _estimate(numbers: Sequence[float]) -> Estimate:
    if len(numbers) < 2:
        return Estimate(numbers[0])
    student = require("scipy.stats", extra="learn", needed_for="the intervals of a sweep").t
    half = float(student.ppf(0.975, len(numbers) - 1)) * stdev(numbers) / math.sqrt(len(numbers))
    middle = fmean(numbers)
    return Estimate(middle, middle - half, middle + half)
