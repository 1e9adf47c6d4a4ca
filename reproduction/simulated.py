"""Simulated runs as jobs: a configuration goes in; a curve of accuracy and some totals come out."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeAlias

from basecagg.errors import DataError
from basecagg.learning import Task, built_in_task
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.logbook import VersionRecord
from basecagg.simulation.run_folder import RunFolder, read_metrics
from basecagg.simulation.simulate import simulate
from reproduction.jobs import Job, Order
from reproduction.plot import Curve, common

_KEPT = (
    "training seconds",
    "model size",
    "updates",
    "crypto seconds",
    "counts",
    "field errors",
    "epsilon",
    "opened noise",
    "stopped",
    "epochs",
)


Run: TypeAlias = Mapping[str, Any]
"""The result of one."""


class Point(NamedTuple):
    """One evaluated version."""

    version: int
    time: float
    """Simulated seconds; 0 on the paper's clock."""
    updates: int
    score: float


class Planned(NamedTuple):
    """A run to be done."""

    config: SimulationConfig
    folder: Path
    """From where it goes on if it was killed; gone when it is over."""


def simulation_job(key: str, config: SimulationConfig, order: Order) -> Job:
    """A job that runs this configuration, on the data of the order."""
    config = replace(config, data_dir=str(order.data_dir))
    name = hashlib.sha256(f"{key} {config}".encode()).hexdigest()[:16]
    return Job(key, run_simulation, Planned(config, order.unfinished / name), cost=_cost(config))


def _cost(config: SimulationConfig) -> float:
    """Local trainings, by their length; what else there is costs little beside them."""
    length = config.local_steps or (config.epochs or 0) * _STEPS_OF_AN_EPOCH
    return config.versions * config.buffer_size * config.batch_size * length


_STEPS_OF_AN_EPOCH = 10
"""Only compares runs with each other."""


def run_simulation(planned: Planned, task: Task | None = None) -> dict[str, Any]:
    """Simulate to the end, or until training diverges: then the curve ends there, and `stopped` says why."""
    config, folder = planned
    task = task or task_of(config)
    RunFolder(folder, config, task.name, resume=True)  # what cannot be resumed has not diverged
    stopped, totals = "", {}
    try:
        totals = dict(simulate(config, task=task, folder=folder, resume=True).totals)
    except DataError as error:
        stopped = str(error)
    seen = [VersionRecord(**line) for line in read_metrics(folder)]
    shutil.rmtree(folder)
    return {
        "curve": [list(point) for point in _curve(seen)],
        **{name: totals[name] for name in _KEPT if name in totals},
        **({"stopped": stopped} if stopped else {}),
    }


def task_of(config: SimulationConfig) -> Task:
    """The task of a configuration whose model and data have names."""
    return _task(config.model, config.dataset, config.data_dir)


@lru_cache(maxsize=1)
def _task(model: str, dataset: str, data_dir: str) -> Task:
    """Read once for all runs of a process."""
    return built_in_task(model, dataset, data_dir=Path(data_dir))


def _curve(records: Iterable[VersionRecord]) -> list[Point]:
    return [
        Point(record.version, round(record.time, 3), record.updates, round(record.score, 6))
        for record in records
        if record.score is not None
    ]


# --- what a result says --------------------------------------------------------------------------


def curve_of(run: Run) -> list[Point]:
    """The curve in a result."""
    return [Point(*point) for point in run["curve"]]


def by_version(run: Run) -> Curve:
    """Accuracy in percent against the version."""
    return [(point.version, 100 * point.score) for point in curve_of(run)]


def by_time(run: Run) -> Curve:
    """Accuracy in percent against simulated seconds."""
    return [(point.time, 100 * point.score) for point in curve_of(run)]


def final_accuracy(run: Run, last: int = 10) -> float:
    """Mean accuracy over the last versions: one evaluation alone jumps by more than what is compared."""
    curve = curve_of(run)
    newest = curve[-1].version
    return mean(point.score for point in curve if point.version > newest - last)


def ends(runs: Iterable[Run]) -> list[float]:
    """Final accuracy of each, in percent."""
    return [100 * final_accuracy(run) for run in runs]


class Gap(NamedTuple):
    """How far one group of runs ends above another, in points: seed by seed."""

    mean: float
    low: float
    """Of the 95 % interval of the mean, by Student's t; −∞ for a single seed."""
    high: float

    @property
    def interval(self) -> str:
        """For a table; '–' if there is none."""
        return f"{self.low:+.2f} … {self.high:+.2f}" if math.isfinite(self.low) else "–"

    def within(self, points: float) -> bool:
        """Whether the whole interval is."""
        return -points <= self.low and self.high <= points


def gap(results: Mapping[str, Run], group: str, rival: str) -> Gap:
    """Over the seeds that both groups have."""
    from scipy.stats import t

    own, other = _by_seed(results, group), _by_seed(results, rival)
    gaps = [_ahead(own[seed], other[seed]) for seed in own.keys() & other.keys()]
    if len(gaps) < 2:
        return Gap(gaps[0] if gaps else math.nan, -math.inf, math.inf)
    half = float(t.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / math.sqrt(len(gaps))
    return Gap(mean(gaps), mean(gaps) - half, mean(gaps) + half)


def _by_seed(results: Mapping[str, Run], group: str) -> dict[str, Run]:
    found = ((key.rpartition("/"), run) for key, run in results.items())
    return {seed: run for (name, _, seed), run in found if name == group}


def _ahead(run: Run, rival: Run) -> float:
    """Points by which a run ends above another; one of another length is met where `shared` says."""
    if curve_of(run)[-1].version == curve_of(rival)[-1].version:
        return 100 * (final_accuracy(run) - final_accuracy(rival))
    own, other = shared(run, rival), shared(rival, run)
    return 100 * (mean(own) - mean(other))


def shared(run: Run, other: Run) -> list[float]:
    """Its accuracy at the versions in the second half of the shorter run at which both were evaluated."""
    end = min(curve_of(run)[-1].version, curve_of(other)[-1].version)
    versions = {point.version for point in curve_of(other)}
    return [
        point.score
        for point in curve_of(run)
        if end / 2 <= point.version <= end and point.version in versions
    ]


def swing(run: Run) -> float:
    """Points between the best and the worst of the last ten evaluations."""
    last = [100 * point.score for point in curve_of(run)[-10:]]
    return max(last) - min(last)


def first_above(curves: Sequence[Curve], target: float) -> str:
    """Where the mean of the curves reaches this share; '–' if it does not."""
    x, rows = common(curves)
    reached = [at for at, score in zip(x, rows.mean(axis=0), strict=True) if score >= 100 * target]
    return f"{reached[0]:.0f}" if reached else "–"


def by_group(results: Mapping[str, Run]) -> dict[str, list[Run]]:
    """Results whose keys differ in their last part, the seed, together."""
    groups: dict[str, list[Run]] = {}
    for key, result in results.items():
        groups.setdefault(key.rpartition("/")[0], []).append(result)
    return groups


def spread(values: Sequence[float]) -> float:
    """Half the distance between the largest and the smallest: honest for three seeds."""
    return (max(values) - min(values)) / 2


def accuracy_columns(ends: Sequence[float]) -> dict[str, str]:
    """Two columns of a table: the mean over seeds of what runs ended with, and how far seeds are apart."""
    apart = f"{spread(ends):.2f}" if len(ends) > 1 else "–"
    return {"accuracy, %": f"{mean(ends):.2f}", "± seeds": apart}
