"""One simulated run, from configuration to result: repeatable from its seed, resumable to the same result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import BASecAggWarning
from basecagg.learning import (
    LocalTraining,
    Task,
    built_in_task,
    derive_seed,
    evaluate,
    label_counts,
    partition,
)
from basecagg.protections.local_dp import LocalDP
from basecagg.protections.pairs import CODED, PAIRWISE
from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import PlainUpdate
from basecagg.protocol.ports import Signer
from basecagg.schedules.buffered import Buffered
from basecagg.schedules.immediate import Immediate
from basecagg.schedules.schedule import Schedule, Vector
from basecagg.schedules.synchronous import Synchronous
from basecagg.schedules.tiered import Tiered, split_by_speed
from basecagg.simulation.aggregation import (
    PlainAggregation,
    SecureAggregation,
    ServerAggregation,
)
from basecagg.simulation.arithmetic import ArithmeticAggregation
from basecagg.simulation.config import Measure, SimulationConfig
from basecagg.simulation.devices import Devices
from basecagg.simulation.event_clock import Clock, DeviceClock
from basecagg.simulation.loopback import Loopback
from basecagg.simulation.memory import warn_if_too_large
from basecagg.simulation.metering import plain_bytes
from basecagg.simulation.run_folder import RunFolder
from basecagg.simulation.secagg_aggregation import SecAggAggregation
from basecagg.simulation.staleness_clock import UniformStaleness
from basecagg.simulation.training import Job, make_trainer
from basecagg.simulation.tuning import TunedAggregation
from basecagg.simulation.wrapping import WrappingAggregation

# Purposes of the run's random streams, each its own child of the seed.
_PARTITION, _DEVICES, _SCHEDULE, _TRAINING, _NOISE = range(5)


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
    burned: int = 0
    """Buffers burned since the version before."""

    def reached(self, measure: Measure) -> float:
        """How far the run is, in versions, updates or simulated seconds."""
        return {"versions": self.version, "updates": self.updates, "seconds": self.time}[measure]


@dataclass(frozen=True)
class SimulationResult:
    """A finished run: every version, and the totals."""

    config: SimulationConfig
    versions: tuple[VersionRecord, ...]
    totals: Mapping[str, Any]
    model: Vector = field(repr=False)

    @property
    def score(self) -> float:
        """Accuracy of the last version that was evaluated."""
        return next(v.score for v in reversed(self.versions) if v.score is not None)

    @property
    def time(self) -> float:
        """Simulated seconds from start to the last version."""
        return self.versions[-1].time


Progress: TypeAlias = Callable[[VersionRecord], None]
Watch: TypeAlias = Callable[[Agreement, Loopback, Signer], None]


def simulate(
    config: SimulationConfig,
    *,
    task: Task | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda record: None,
    watch: Watch = lambda agreement, network, signer: None,
) -> SimulationResult:
    """Simulate a federation. A `folder` keeps metrics and checkpoints, from which `resume` goes on.

    `progress` is told of every version; `watch` gets the epoch, the network and the server's
    signer of a secure run at its start.
    The run ends with its last version: updates that then wait in the buffer, or are still being trained, are
    discarded. A run that cannot begin leaves no folder.
    """
    task = task or built_in_task(
        config.model, config.dataset, data_dir=Path(config.data_dir), download=config.download
    )
    keeper = RunFolder(folder, config, task.name, resume=resume) if folder else None
    simulation = Simulation(config, task, keeper.state if keeper else {})
    try:
        if keeper:
            keeper.begin()
        if isinstance(simulation.aggregation, SecureAggregation):
            secure = simulation.aggregation
            watch(secure.agreement, secure.network, secure.signer)
        records = simulation.run(keeper, progress)
    finally:
        simulation.close()
    result = SimulationResult(config, records, simulation.totals(), simulation.schedule.model)
    if keeper:
        keeper.finish(result.totals, result.model)
    return result


class Simulation:
    """All the parts of a run, put together by its configuration."""

    def __init__(self, config: SimulationConfig, task: Task, state: Mapping[str, Any]) -> None:
        """Build everything, or build it again from a checkpoint's state."""
        self.config = config
        self.task = task
        self.parts = partition(
            config.partition,
            task.dataset.train_y.numpy(),
            config.users,
            self._generator(_PARTITION),
            alpha=config.dirichlet_alpha,
            shards_per_user=config.shards_per_user,
        )
        self.devices = Devices.draw(config, self._generator(_DEVICES))
        self.training = local_training(config)
        self._model = task.build_model(derive_seed(config.seed, _TRAINING))
        self._trainer = make_trainer(config, self._model, task, self.training, self.parts)
        self._noise = self._make_noise()
        initial = self._model.vector()
        warn_if_too_large(config, initial.size)
        self.aggregation = self._make_aggregation(initial, state.get("aggregation", {}))
        self.schedule = self._make_schedule(initial)
        kind = DeviceClock if config.clock == "devices" else UniformStaleness
        self.clock: Clock = kind(config, self.schedule, self, self._generator(_SCHEDULE))
        self.updates = 0
        self._burned = 0
        self._negative = 0
        self._started = time.perf_counter()
        self._training_seconds = 0.0
        self._records: list[VersionRecord] = []
        if state:
            self._restore(state)

    # --- running --------------------------------------------------------------------------------

    def run(self, keeper: RunFolder | None, progress: Progress) -> tuple[VersionRecord, ...]:
        """Tick until the last version; record, evaluate and checkpoint on the way."""
        if not self._records:
            self._record(keeper, progress)
        while self._left(self._records[-1]) > 0:
            before = self.schedule.version
            self.clock.tick()
            if self.schedule.version != before:
                self._record(keeper, progress)
                if keeper and self.schedule.version % self.config.checkpoint_every == 0:
                    keeper.checkpoint(self.state())
        return tuple(self._records)

    def _record(self, keeper: RunFolder | None, progress: Progress) -> None:
        version, step = self.schedule.version, self._last_step()
        self._count_negative_variances(version)
        record = VersionRecord(
            version,
            self.clock.now,
            self.updates,
            staleness=tuple(version - 1 - base for base in step.base_versions) if step else (),
            weights=step.weights if step else (),
            burned=self._burned,
        )
        last = self._left(record) <= self.config.evaluate_last - 1
        if last or version % self.config.evaluate_every == 0:
            scored = evaluate(self.task, self._model, self._model_now())
            record = replace(record, score=scored.score, loss=scored.loss)
        self._burned = 0
        self._records.append(record)
        if keeper:
            keeper.write(asdict(record))
        progress(record)

    def _count_negative_variances(self, version: int) -> None:
        found = self._model.below_zero(self.schedule.model)
        if found and not self._negative:
            warnings.warn(
                f"version {version} has {found} running variance(s) of BatchNorm below zero, read as zero;"
                " the totals count all. Lower global_rate or dp_noise, or use GroupNorm",
                BASecAggWarning,
                stacklevel=2,
            )
        self._negative += found

    def _left(self, record: VersionRecord) -> float:
        """What is left to the end at this version."""
        measure, amount = self.config.ending
        return amount - record.reached(measure)

    def _model_now(self) -> npt.NDArray[np.float32]:
        return self.schedule.model.astype(np.float32, copy=False)

    def _last_step(self) -> Released | None:
        """The sum behind the present version; sums opened but not yet published stay for later."""
        if self.aggregation is None:
            return None
        opened = None
        steps, self.aggregation.steps = self.aggregation.steps, []
        for step in steps:
            if isinstance(step, Abandoned):
                self._burned += 1
            elif step.version < self.schedule.version:
                opened = step
            else:
                self.aggregation.steps.append(step)
        return opened

    # --- the clock's workshop -------------------------------------------------------------------

    def begin(self, user: int, training: int, start: Vector) -> Callable[[], Vector]:
        """Begin a user's n-th local training; calling the result gives its update, protected at the user."""
        seed = derive_seed(self.config.seed, _TRAINING, user, training)
        finish = self._trainer.submit(Job(user, start, seed))

        def update() -> Vector:
            started = time.perf_counter()
            delta: Vector = finish().delta
            self._training_seconds += time.perf_counter() - started
            self.updates += 1
            if self.config.weigh_examples:
                delta = delta * np.float32(len(self.parts[user]) / self._mean_examples)
            if self._noise:
                generator = np.random.default_rng((self.config.seed, _NOISE, user, training))
                delta = self._noise.protect(delta, generator)
            return delta

        return update

    def seconds(self, user: int) -> float:
        """Download, train (while the mask is dealt), upload."""
        size = self._model.size
        dealing = self.aggregation.prepare(user) if self.aggregation else 0.0
        upload = self.aggregation.upload_bytes(size) if self.aggregation else 4 * size
        steps = self.training.steps_for(len(self.parts[user]))
        work = max(self.devices.training(user, steps), dealing)
        return self.devices.download(4 * size) + work + self.devices.upload(upload)

    def publish(self, now: float) -> float | None:
        """Publish what is due by now; the time of the next publication, if there is one."""
        if self.aggregation is None:
            return None
        self.aggregation.advance(now)
        return self.aggregation.pending[0].at if self.aggregation.pending else None

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed."""
        return self.aggregation.waiting() if self.aggregation else set()

    def oldest(self) -> int:
        """The first version of the present epoch."""
        return self.aggregation.first_version if self.aggregation else 0

    # --- parts ----------------------------------------------------------------------------------

    def _generator(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng((self.config.seed, purpose))

    @property
    def _mean_examples(self) -> float:
        return sum(map(len, self.parts)) / len(self.parts)

    def _make_noise(self) -> LocalDP | None:
        if self.config.pair.protection != "local-dp":
            return None
        return LocalDP(self.config.dp_clip_norm, self.config.dp_noise)

    def _make_aggregation(
        self, model: Vector, state: Mapping[str, Any]
    ) -> ServerAggregation | TunedAggregation | None:
        """The server of schedules that sum; the others keep their model themselves."""
        if self.config.pair.schedule in ("immediate", "tiered"):
            return None
        if self.config.auto_tune:
            return TunedAggregation(self.config, model, self._make_server, state)
        return self._make_server(self.config, model, state)

    def _make_server(
        self, config: SimulationConfig, model: Vector, state: Mapping[str, Any]
    ) -> ServerAggregation:
        """The server of one epoch. Its optimiser begins anew with it, as the epoch names the model alone."""
        step = config.step_rule(self._model.num_weights, self._model.size)
        if config.pair.protection in PAIRWISE:
            return SecAggAggregation(config, model, step, self.devices, state)
        if config.allow_wraparound:
            return WrappingAggregation(config, model, step, state)
        if config.pair.protection in CODED and config.cryptography == "arithmetic":
            return ArithmeticAggregation(config, model, step, self.devices, state)
        if config.pair.protection in CODED:
            return SecureAggregation(config, model, step, self.devices, state)
        return PlainAggregation(config, model, step, state)

    def _make_schedule(self, model: Vector) -> Schedule:
        config = self.config
        if config.pair.schedule == "immediate":
            return Immediate(
                model,
                config.concurrency,
                config.fedasync_mixing,
                config.staleness_function,
                config.max_staleness,
            )
        if config.pair.schedule == "tiered":
            durations = [
                self.devices.training(user, self.training.steps_for(len(part)))
                for user, part in enumerate(self.parts)
            ]
            cohort = max(1, config.concurrency // config.tiers)
            return Tiered(model, split_by_speed(durations, config.tiers), cohort)
        assert self.aggregation is not None
        kind = Synchronous if config.pair.schedule == "synchronous" else Buffered
        return kind(self.aggregation, config.concurrency)

    # --- totals, checkpoints --------------------------------------------------------------------

    def totals(self) -> dict[str, Any]:
        """What the run cost and what happened in it."""
        labels = self.task.dataset.train_y.numpy()
        totals: dict[str, Any] = {
            "wall seconds": time.perf_counter() - self._started,
            "training seconds": self._training_seconds,
            "model size": self._model.size,
            "updates": self.updates,
            "label counts": label_counts(
                labels, self.parts, self.task.dataset.num_classes
            ).tolist(),
        }
        if self._model.size > self._model.num_weights:
            totals["negative variances"] = self._negative
        if self.aggregation is None:
            totals["bytes"] = {PlainUpdate.__name__: self.updates * plain_bytes(self._model.size)}
        else:
            meter = self.aggregation.network.meter
            totals["crypto seconds"] = dict(meter.seconds)
            totals["bytes"] = dict(meter.bytes_sent)
            totals["counts"] = dict(self.aggregation.counts)
        if isinstance(self.aggregation, WrappingAggregation):
            totals["field errors"] = asdict(self.aggregation.errors)
        if isinstance(self.aggregation, TunedAggregation):
            totals["epochs"] = [asdict(epoch) for epoch in self.aggregation.epochs]
        if self._noise:
            totals["epsilon"] = self._noise.epsilon(self._most_releases(), self.config.dp_delta)
        return totals

    def _most_releases(self) -> int:
        return max(1, *self.clock.trainings)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "aggregation": self.aggregation.state() if self.aggregation else {},
            "schedule": self.schedule.state(),
            "clock": self.clock.state(),
            "updates": self.updates,
            "negative variances": self._negative,
            "records": len(self._records),
            "training seconds": self._training_seconds,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.schedule.restore(state["schedule"])
        self.clock.restore(state["clock"])
        self.updates = state["updates"]
        self._negative = state["negative variances"]
        self._training_seconds = state["training seconds"]
        self._records = [_record_from(line) for line in state["history"]]

    def close(self) -> None:
        """Stop the workers."""
        self._trainer.close()


def _record_from(line: Mapping[str, Any]) -> VersionRecord:
    return msgspec.convert(line, VersionRecord)


def local_training(config: SimulationConfig) -> LocalTraining:
    """How the users of this configuration train."""
    return LocalTraining(
        learning_rate=config.local_rate,
        steps=config.local_steps or None,
        epochs=config.local_epochs or None,
        batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        # Only a buffer sums differences from several versions: rounds have one, mixing takes whole models.
        max_staleness=config.max_staleness if config.pair.schedule == "buffered" else 0,
    )
