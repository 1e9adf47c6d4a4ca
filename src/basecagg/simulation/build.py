"""From a configuration to the parts of a run, each made once, from those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from basecagg.errors import DataError
from basecagg.learning import Task, derive_seed, label_counts, partition
from basecagg.protocol.messages import PlainUpdate
from basecagg.schedules.schedule import Schedule, Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.attackers import Attackers
from basecagg.simulation.beginning import (
    DEVICES,
    PARTITION,
    SCHEDULE,
    TRAINING,
    Beginning,
    Devices,
)
from basecagg.simulation.clock import Clock
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.field_sums import FieldSums, WrappingSums
from basecagg.simulation.logbook import Logbook, VersionRecord
from basecagg.simulation.metering import plain_bytes
from basecagg.simulation.needed_memory import warn_if_too_large
from basecagg.simulation.protections import Masks
from basecagg.simulation.secagg_sums import SecAggSums
from basecagg.simulation.secure_sums import SecureSums
from basecagg.simulation.sums import Sums, TrustedSums
from basecagg.simulation.timing import CLOCKS
from basecagg.simulation.trainers import make_trainer
from basecagg.simulation.workshop import Workshop, local_training, training_seconds

_SUMS: dict[Masks, Callable[[Beginning], Sums]] = {
    "none": Sums,
    "trusted": TrustedSums,
    "pairwise": SecAggSums,
    "coded": SecureSums,
}
"""By the masks of a protection, with all its cryptography."""


@dataclass(frozen=True, eq=False)
class RunParts:
    """All parts of a run: updates go from the workshop by the clock to the schedule and the aggregator."""

    config: SimulationConfig
    aggregator: Aggregator
    schedule: Schedule
    workshop: Workshop
    clock: Clock
    logbook: Logbook
    label_counts: list[list[int]]
    """How many examples of each class (column) each user (row) has; nothing if targets are no labels."""

    @property
    def model_size(self) -> int:
        """d"""
        return self.schedule.model.size

    @property
    def model(self) -> Vector:
        """What was learned, without the numbers that clients carry behind it."""
        return self.schedule.model[: self.logbook.scratch.size]

    def totals(self) -> dict[str, Any]:
        """What the run cost and what happened in it."""
        epsilon, updates = self.epsilon(), self.workshop.updates
        return {
            "training seconds": self.workshop.training_seconds,
            "model size": self.model_size,
            "updates": updates,
            **({"label counts": self.label_counts} if self.label_counts else {}),
            **self.logbook.totals(),
            **self.aggregator.totals(),
            **self.workshop.protection.totals(max(1, *self.clock.trainings)),
            **({} if epsilon is None else {"epsilon": epsilon}),
            **({} if self.config.pair.timetable.sums else {"bytes": self._bytes_in_clear()}),
        }

    def _bytes_in_clear(self) -> dict[str, int]:
        """Of a schedule that mixes models, where no update went to the aggregator."""
        size = plain_bytes(0) + self.workshop.upload_bytes
        return {PlainUpdate.__name__: self.workshop.updates * size}

    def lost(self) -> int:
        """Updates that were trained, and are in no sum nor waiting for one."""
        if not self.config.pair.timetable.sums:
            return 0
        waiting = len(self.aggregator.server.buffer.waiting)
        return self.workshop.updates - self.aggregator.summed - waiting

    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far, where one is promised."""
        of_sums, at_user = self.aggregator.sums.epsilon, self.workshop.protection
        return at_user.epsilon(max(self.clock.trainings)) if of_sums is None else of_sums

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "aggregator": self.aggregator.state(),
            "schedule": self.schedule.state(),
            "clock": self.clock.state(),
            "memories": self.workshop.memories,
            "at user": self.workshop.protection.state(),
            "attackers": self.workshop.attackers.state(),
            "updates": self.workshop.updates,
            "training seconds": self.workshop.training_seconds,
            "negative variances": self.logbook.negative_variances,
            "records": len(self.logbook.records),  # they are themselves in the run's folder
        }


def build(config: SimulationConfig, task: Task, state: Mapping[str, Any]) -> RunParts:
    """Build everything, or build it again from a checkpoint's state."""
    try:
        return _build(config, task, state)
    except KeyError as missing:
        if not state:
            raise
        raise DataError(
            f"the checkpoint has no {missing}: it is of another version of basecagg; delete it to start"
            " this run afresh"
        ) from None


def _build(config: SimulationConfig, task: Task, state: Mapping[str, Any]) -> RunParts:
    labels = task.dataset.train_y.numpy()
    examples = partition(
        config.partition,
        labels,
        config.users,
        _generator(config, PARTITION),
        owners=task.dataset.owners,
        alpha=config.dirichlet_alpha,
        shards_per_user=config.shards_per_user,
    )
    devices = Devices.draw(config, _generator(config, DEVICES))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise DataError("device = 'cuda', and torch finds no such device here: leave it out")
    scratch = task.build_model(derive_seed(config.seed, TRAINING), config.device)
    training = local_training(config)
    attackers = Attackers(config)
    lessons = attackers.task(task, examples)
    trainer = make_trainer(config, scratch, lessons, training, examples)
    carried = training.client.carries(scratch.num_weights)
    initial = np.concatenate([scratch.vector(), np.zeros(carried, np.float32)])
    step = config.step_rule(scratch.num_weights, initial.size)
    warn_if_too_large(config, initial.size)
    first = Beginning(config, initial, step, devices, state["aggregator"] if state else {})
    aggregator = Aggregator(first, make_sums, attackers.told)
    seconds = training_seconds(devices, examples)
    schedule = config.pair.timetable.make(config, aggregator, seconds)
    workshop = Workshop(trainer, devices, examples, aggregator, attackers, initial.size)
    clock = CLOCKS[config.clock].make(
        config, schedule, workshop, aggregator, _generator(config, SCHEDULE)
    )
    logbook = Logbook(config, task, scratch)
    if state:
        workshop.memories, at_user = state["memories"], state["at user"]
        workshop.protection.restore(at_user)
        schedule.restore(state["schedule"])
        clock.restore(state["clock"])
        attackers.restore(state["attackers"])
        workshop.updates, workshop.training_seconds = state["updates"], state["training seconds"]
        logbook.negative_variances = state["negative variances"]
        logbook.records = [msgspec.convert(line, VersionRecord) for line in state["history"]]
    data, counts = task.dataset, []
    if data.has_labels:
        counts = label_counts(labels, examples, data.num_classes).tolist()
    return RunParts(config, aggregator, schedule, workshop, clock, logbook, counts)


def _generator(config: SimulationConfig, purpose: int) -> np.random.Generator:
    return np.random.default_rng((config.seed, purpose))


def make_sums(beginning: Beginning) -> Sums:
    """How the updates of one epoch are summed."""
    config, guard = beginning.config, beginning.config.pair.guard
    if config.allow_wraparound:
        return WrappingSums(beginning)
    if guard.masks == "coded" and config.cryptography == "arithmetic":
        return FieldSums(beginning)
    return _SUMS[guard.masks](beginning)
