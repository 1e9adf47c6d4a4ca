"""The users at work: they train, weigh and protect their updates, each in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.learning import LocalTraining, derive_seed
from basecagg.learning.clients import make_client
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.attackers import Attackers
from basecagg.simulation.beginning import LIES, NOISE, TRAINING, Devices
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.trainers import Memory, Trainer

Examples: TypeAlias = Sequence[npt.NDArray[np.int64]]
"""Which examples each user has."""


@dataclass(eq=False)
class Workshop:
    """All users of a run. `updates` counts those that came out of it."""

    trainer: Trainer
    devices: Devices
    examples: Examples
    aggregator: Aggregator
    attackers: Attackers
    model_size: int
    updates: int = 0
    training_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Train with this trainer, at the speed of these devices, for this server."""
        self._config = config = self.devices.config
        self.close = self.trainer.close
        """Stop the workers."""
        self.protection = config.pair.guard.at_user(config)
        """What users do with their updates before anybody sees them."""
        if not config.pair.guard.masked:
            spared = 4 * self.model_size - self.protection.bytes_of(self.model_size)
            self.aggregator.meter.spared = spared
        self.memories: dict[int, Memory] = {}
        """What each user's client keeps from one training to the next."""
        self._work = training_seconds(self.devices, self.examples)
        mean = sum(map(len, self.examples)) / len(self.examples)
        one = mean if config.weigh_examples == "mean" else config.weigh_examples
        self._factors = [len(part) / one for part in self.examples] if one else []

    def begin(self, user: int, training: int, start: Vector) -> Callable[[], Vector]:
        """Begin a user's n-th local training; calling the result gives its update, protected at the user."""
        seed = derive_seed(self._config.seed, TRAINING, user, training)
        finish = self.trainer.submit(user, start, seed, self.memories.get(user, {}))

        def update() -> Vector:
            started = time.perf_counter()
            made = finish()
            delta: Vector = made.delta
            self.training_seconds += time.perf_counter() - started
            self.updates += 1
            if made.memory:
                self.memories[user] = made.memory
            delta = self.attackers.sent(user, delta, (self._config.seed, LIES, user, training))
            if self._factors:
                delta = delta * np.float32(self._factors[user])
            noise = (self._config.seed, NOISE, user, training)
            return self.protection.protect(user, delta, lambda: np.random.default_rng(noise))

        return update

    @property
    def upload_bytes(self) -> int:
        """Bytes of one upload."""
        if self._config.pair.guard.masked:
            return self.aggregator.sums.upload_bytes
        return self.protection.bytes_of(self.model_size)

    def seconds(self, user: int) -> float:
        """Download, train (while the mask is dealt), upload."""
        work = max(self._work[user], self.aggregator.sums.prepare(user))
        upload = self.devices.upload(self.upload_bytes)
        return self.devices.download(4 * self.model_size) + work + upload


def training_seconds(devices: Devices, examples: Examples) -> list[float]:
    """How long every user trains."""
    steps = map(local_training(devices.config).steps_for, map(len, examples))
    return [devices.training(user, count) for user, count in enumerate(steps)]


def local_training(config: SimulationConfig) -> LocalTraining:
    """How the users of this configuration train."""
    return LocalTraining(
        learning_rate=config.local_rate,
        steps=config.local_steps,
        epochs=config.epochs,
        batch_size=config.batch_size,
        optimiser=config.local_optimiser,
        client=make_client(config.client, config),
        weight_decay=config.weight_decay,
        # Only a buffer sums differences from several versions: rounds have one, mixing takes whole models.
        max_staleness=config.max_staleness if config.pair.timetable.kind == "buffered" else 0,
        privacy=config.privacy_of_records,
    )
