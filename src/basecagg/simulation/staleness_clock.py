"""The paper's clock, which has no time: the staleness of every update is drawn uniformly from 0…τ_max."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from basecagg.schedules.schedule import Schedule, StartingPoint, Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.event_clock import Workshop
from basecagg.simulation.idle_users import IdleUsers


class UniformStaleness:
    """Each tick fills one buffer: K users, each from the model of τ versions ago."""

    def __init__(
        self,
        config: SimulationConfig,
        schedule: Schedule,
        workshop: Workshop,
        generator: np.random.Generator,
    ) -> None:
        """Begin with the first model as all the history there is."""
        self.now = 0.0
        self._config = config
        self._schedule = schedule
        self._workshop = workshop
        self._generator = generator
        self.trainings = [0] * config.users
        self._everyone = IdleUsers(range(config.users), 1.0, generator)
        self._history: deque[Vector] = deque([schedule.model], maxlen=config.max_staleness + 1)
        self._updates = config.buffer_size if config.pair.schedule == "buffered" else 1

    def tick(self) -> None:
        """What the buffer lacks (one update for the immediate schedule), begun together."""
        version = self._schedule.version
        waiting = self._workshop.waiting()
        users = self._everyone.draw(self._updates - len(waiting), lambda user: user not in waiting)
        known = min(len(self._history), version - self._workshop.oldest() + 1)
        ages = self._generator.integers(0, known, len(users)).tolist()
        jobs = [self._begin(user, age, version) for user, age in zip(users, ages, strict=True)]
        for user, start, result in jobs:
            self._schedule.finish(user, result(), start)
        self._workshop.publish(float("inf"))
        if self._schedule.version != version:
            self._history.append(self._schedule.model)

    def _begin(self, user: int, age: int, version: int) -> tuple[int, StartingPoint, Any]:
        self._workshop.seconds(user)  # deals the mask; how long that takes does not matter here
        start = StartingPoint(version - age, self._history[-1 - age])
        training, self.trainings[user] = self.trainings[user], self.trainings[user] + 1
        return user, start, self._workshop.begin(user, training, start.model)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "trainings": self.trainings,
            "order": self._everyone.in_order(),
            "history": list(self._history),
            "generator": self._generator.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.trainings = list(state["trainings"])
        self._everyone = IdleUsers(state["order"], 1.0, self._generator)
        self._history = deque(state["history"], maxlen=self._history.maxlen)
        self._generator.bit_generator.state = state["generator"]
