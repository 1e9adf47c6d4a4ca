"""The users at work: they train, weigh and protect their updates, each in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.learning import LocalTraining, derive_seed
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.devices import Devices
from basecagg.simulation.purposes import NOISE, TRAINING
from basecagg.simulation.summing import Summing
from basecagg.simulation.training import Job, Trainer

Examples: TypeAlias = Sequence[npt.NDArray[np.int64]]
"""Which examples each user has."""


class Workshop:
    """All users of a run. `updates` counts those that came out of it."""

    def __init__(
        self,
        trainer: Trainer,
        devices: Devices,
        examples: Examples,
        summing: Summing,
        model_size: int,
    ) -> None:
        """Train with this trainer, at the speed of these devices, for this server."""
        config = devices.config
        self.updates = 0
        self.close = trainer.close
        """Stop the workers."""
        self.training_seconds = 0.0
        self._config = config
        self._trainer = trainer
        self._devices = devices
        self._summing = summing
        self._model_size = model_size
        self._work = training_seconds(devices, examples)
        mean = sum(map(len, examples)) / len(examples)
        self._shares = [len(part) / mean for part in examples] if config.weigh_examples else []
        self._protection = config.pair.guard.at_user(config)

    def begin(self, user: int, training: int, start: Vector) -> Callable[[], Vector]:
        """Begin a user's n-th local training; calling the result gives its update, protected at the user."""
        seed = derive_seed(self._config.seed, TRAINING, user, training)
        finish = self._trainer.submit(Job(user, start, seed))

        def update() -> Vector:
            started = time.perf_counter()
            delta: Vector = finish().delta
            self.training_seconds += time.perf_counter() - started
            self.updates += 1
            if user < self._config.attackers and self._config.attack_factor:
                delta = delta * np.float32(self._config.attack_factor)
            if self._shares:
                delta = delta * np.float32(self._shares[user])
            noise = (self._config.seed, NOISE, user, training)
            return self._protection.protect(delta, lambda: np.random.default_rng(noise))

        return update

    def seconds(self, user: int) -> float:
        """Download, train (while the mask is dealt), upload."""
        work = max(self._work[user], self._summing.prepare(user))
        upload = self._devices.upload(self._summing.upload_bytes(self._model_size))
        return self._devices.download(4 * self._model_size) + work + upload

    @property
    def uses(self) -> float:
        """Updates that one user may send."""
        return self._protection.uses

    def spent(self, releases: int) -> dict[str, Any]:
        """What the protection says at the end, when one user has sent so many updates."""
        return self._protection.totals(releases)

    def epsilon(self, releases: int) -> float | None:
        """What it cost the users' privacy that one of them sent so many updates, where that is promised."""
        return self._protection.epsilon(releases)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"training seconds": self.training_seconds, "updates": self.updates}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.updates = state["updates"]
        self.training_seconds = state["training seconds"]


def training_seconds(devices: Devices, examples: Examples) -> list[float]:
    """How long every user trains."""
    steps = map(local_training(devices.config).steps_for, map(len, examples))
    return [devices.training(user, count) for user, count in enumerate(steps)]


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
        privacy=config.privacy_of_records,
    )
