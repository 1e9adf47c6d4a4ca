"""From a configuration to the parts of a run, each made once, from those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from basecagg.errors import DataError
from basecagg.learning import Task, derive_seed, label_counts, partition
from basecagg.schedules.buffered import Buffered, Synchronous
from basecagg.schedules.immediate import Immediate
from basecagg.schedules.schedule import Schedule
from basecagg.schedules.tiered import Tiered, split_by_speed
from basecagg.simulation.aggregation import (
    Beginning,
    PlainAggregation,
    SecureAggregation,
    ServerAggregation,
)
from basecagg.simulation.arithmetic import ArithmeticAggregation
from basecagg.simulation.clock import Clock
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.devices import Devices
from basecagg.simulation.event_clock import DeviceClock
from basecagg.simulation.logbook import Logbook, VersionRecord
from basecagg.simulation.memory import warn_if_too_large
from basecagg.simulation.private_arithmetic import PrivateArithmetic
from basecagg.simulation.purposes import DEVICES, PARTITION, SCHEDULE, TRAINING
from basecagg.simulation.secagg_aggregation import SecAggAggregation
from basecagg.simulation.staleness_clock import UniformStaleness
from basecagg.simulation.summing import NoSumming, Summing
from basecagg.simulation.training import make_trainer
from basecagg.simulation.trusted import TrustedAggregation
from basecagg.simulation.tuning import TunedAggregation
from basecagg.simulation.workshop import Examples, Workshop, local_training, training_seconds
from basecagg.simulation.wrapping import WrappingAggregation


@dataclass(frozen=True, eq=False)
class RunParts:
    """All that a run consists of: updates go from the workshop by the clock to schedule and summing."""

    summing: Summing
    schedule: Schedule
    workshop: Workshop
    clock: Clock
    logbook: Logbook
    model_size: int
    label_counts: list[list[int]]
    """How many examples of each class (column) each user (row) has; nothing if targets are no labels."""

    def totals(self) -> dict[str, Any]:
        """What the run cost and what happened in it."""
        epsilon = self.epsilon()
        return {
            "training seconds": self.workshop.training_seconds,
            "model size": self.model_size,
            "updates": self.workshop.updates,
            **({"label counts": self.label_counts} if self.label_counts else {}),
            **self.logbook.totals(),
            **self.summing.totals(self.workshop.updates),
            **self.workshop.protection.totals(max(1, *self.clock.trainings)),
            **({} if epsilon is None else {"epsilon": epsilon}),
        }

    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far, where one is promised."""
        of_sums, at_user = self.summing.epsilon, self.workshop.protection
        return at_user.epsilon(max(self.clock.trainings)) if of_sums is None else of_sums

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "aggregation": self.summing.state(),
            "schedule": self.schedule.state(),
            "clock": self.clock.state(),
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
        alpha=config.dirichlet_alpha,
        shards_per_user=config.shards_per_user,
    )
    devices = Devices.draw(config, _generator(config, DEVICES))
    scratch = task.build_model(derive_seed(config.seed, TRAINING))
    trainer = make_trainer(config, scratch, task, local_training(config), examples)
    initial, step = scratch.vector(), config.step_rule(scratch.num_weights, scratch.size)
    warn_if_too_large(config, initial.size)
    first = Beginning(config, initial, step, devices, state.get("aggregation", {}))
    schedule, summing = _SCHEDULES[config.pair.schedule](first, examples)
    workshop = Workshop(trainer, devices, examples, summing, initial.size)
    clock = _CLOCKS[config.clock](config, schedule, workshop, summing, _generator(config, SCHEDULE))
    logbook = Logbook(config, task, scratch)
    if state:
        schedule.restore(state["schedule"])
        clock.restore(state["clock"])
        workshop.updates, workshop.training_seconds = state["updates"], state["training seconds"]
        logbook.negative_variances = state["negative variances"]
        logbook.records = [msgspec.convert(line, VersionRecord) for line in state["history"]]
    data, counts = task.dataset, []
    if data.has_labels:
        counts = label_counts(labels, examples, data.num_classes).tolist()
    return RunParts(summing, schedule, workshop, clock, logbook, initial.size, counts)


def _generator(config: SimulationConfig, purpose: int) -> np.random.Generator:
    return np.random.default_rng((config.seed, purpose))


# --- schedules, each with what sums its updates ---------------------------------------------------

Scheduled: TypeAlias = tuple[Schedule, Summing]


def _summed(kind: type[Buffered], first: Beginning, examples: Examples) -> Scheduled:
    config, aggregation = first.config, _aggregation(first)
    return kind(aggregation, config.users_at_once), aggregation


def _mixed(first: Beginning, examples: Examples) -> Scheduled:
    c = first.config
    schedule = Immediate(
        first.model, c.users_at_once, c.fedasync_mixing, c.staleness_function, c.max_staleness
    )
    return schedule, NoSumming(first.model.size)


def _tiered(first: Beginning, examples: Examples) -> Scheduled:
    config = first.config
    tiers = split_by_speed(training_seconds(first.devices, examples), config.tiers)
    cohort = max(1, config.users_at_once // config.tiers)
    return Tiered(first.model, tiers, cohort), NoSumming(first.model.size)


_SCHEDULES: dict[str, Callable[[Beginning, Examples], Scheduled]] = {
    "synchronous": partial(_summed, Synchronous),
    "buffered": partial(_summed, Buffered),
    "immediate": _mixed,
    "tiered": _tiered,
}
_CLOCKS: dict[str, type[Clock]] = {"devices": DeviceClock, "uniform-staleness": UniformStaleness}
_SERVERS: dict[str, type[ServerAggregation]] = {
    "none": PlainAggregation,
    "trusted": TrustedAggregation,
    "pairwise": SecAggAggregation,
    "coded": SecureAggregation,
}
"""By the masks of a protection, with all its cryptography."""


def _aggregation(first: Beginning) -> ServerAggregation | TunedAggregation:
    return TunedAggregation(first, _server) if first.config.auto_tune else _server(first)


def _server(beginning: Beginning) -> ServerAggregation:
    """The server of one epoch. Its optimiser begins anew with it, as the epoch names the model alone."""
    config, guard = beginning.config, beginning.config.pair.guard
    if config.allow_wraparound:
        return WrappingAggregation(beginning)
    if guard.masks == "coded" and config.cryptography == "arithmetic":
        return (PrivateArithmetic if guard.private else ArithmeticAggregation)(beginning)
    return _SERVERS[guard.masks](beginning)
