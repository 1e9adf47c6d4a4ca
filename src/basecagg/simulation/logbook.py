"""What is known about every version of a run, line by line."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from basecagg.errors import BASecAggWarning
from basecagg.learning import FlatModel, Task, evaluate
from basecagg.protocol.effects import Released
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import Measure, SimulationConfig


@dataclass(frozen=True)
class VersionRecord:
    """What is known about one version of the model."""

    version: int
    time: float
    """Simulated seconds."""
    updates: int
    """Updates that users have sent so far."""
    score: float | None = None
    """Accuracy on the test examples, unless the task has another score."""
    loss: float | None = None
    staleness: tuple[int, ...] = ()
    """τ of every member of the sum."""
    weights: tuple[float, ...] = ()
    told: tuple[int, ...] = ()
    """τ̂ of every member: the age by which it was weighed, if contributors weigh."""
    burned: int = 0
    """Buffers burned since the version before."""
    epsilon: float | None = None
    """The largest ε that a user has spent so far, where one is promised."""
    lost: int = 0
    """Updates that were trained, and are in no sum nor waiting for one; 0 where schedules mix models."""

    def reached(self, measure: Measure) -> float:
        """How far the run is, in versions, updates or simulated seconds."""
        return {"versions": self.version, "updates": self.updates, "seconds": self.time}[measure]


@dataclass(eq=False)
class Logbook:
    """The records of all versions, evaluated as often as the configuration says."""

    config: SimulationConfig
    task: Task
    scratch: FlatModel
    """To evaluate with; others may load into it between two records."""
    records: list[VersionRecord] = field(default_factory=list)
    negative_variances: int = 0
    """Of BatchNorm, in all versions together."""

    @property
    def is_over(self) -> bool:
        """Whether the last version is there."""
        return self._left(self.records[-1]) <= 0

    def add(
        self, now: VersionRecord, model: Vector, step: Released | None, burned: int
    ) -> VersionRecord:
        """Take down a version: when it came, its model, the sum behind it, and the sums burned before it."""
        self._count_negative_variances(now.version, model)
        record = replace(now, burned=burned)
        if step:
            ages = tuple(now.version - 1 - base for base in step.base_versions)
            record = replace(record, staleness=ages, weights=step.weights, told=step.told)
        last = self._left(record) <= self.config.evaluate_last - 1
        if last or record.version % self.config.evaluate_every == 0:
            found = evaluate(self.task, self.scratch, model.astype(np.float32, copy=False))
            record = replace(record, score=found.score, loss=found.loss)
        self.records.append(record)
        return record

    def _left(self, record: VersionRecord) -> float:
        """What is left to the end at this version."""
        measure, amount = self.config.ending
        return amount - record.reached(measure)

    def _count_negative_variances(self, version: int, model: Vector) -> None:
        found = self.scratch.below_zero(model)
        if found and not self.negative_variances:
            warnings.warn(
                f"version {version} has {found} running variance(s) of BatchNorm below zero, read as zero;"
                " the totals count all. Lower global_rate or noise, or use GroupNorm",
                BASecAggWarning,
                stacklevel=2,
            )
        self.negative_variances += found

    def totals(self) -> dict[str, Any]:
        """What is known of the models of all versions."""
        has_statistics = self.scratch.size > self.scratch.num_weights
        return {"negative variances": self.negative_variances} if has_statistics else {}
