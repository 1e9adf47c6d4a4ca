"""A clock lets users train and finish; each kind has its own idea of time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from basecagg.schedules.schedule import Schedule, Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.summing import Summing


class Users(Protocol):
    """What a clock needs of the users: that they train, and the time they take."""

    def begin(self, user: int, training: int, start: Vector) -> Callable[[], Vector]:
        """Begin a user's n-th local training; calling the result gives its update."""
        ...

    def seconds(self, user: int) -> float:
        """Simulated time from download to the end of the upload, dealing included."""
        ...


class Clock(ABC):
    """Lets things happen, one tick after the other: updates go from the users to the schedule."""

    def __init__(
        self,
        config: SimulationConfig,
        schedule: Schedule,
        users: Users,
        summing: Summing,
        generator: np.random.Generator,
    ) -> None:
        """Begin at time 0 with everyone idle."""
        self.now = 0.0
        self.trainings = [0] * config.users
        self._config = config
        self._schedule = schedule
        self._users = users
        self._summing = summing
        self._generator = generator
        self._set()

    @abstractmethod
    def _set(self) -> None:
        """Prepare what is the clock's own."""

    @abstractmethod
    def tick(self) -> None:
        """Let the next thing happen."""

    def _count_training(self, user: int) -> int:
        """The number of the training that a user begins now."""
        self.trainings[user] += 1
        return self.trainings[user] - 1

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "trainings": self.trainings,
            "generator": self._generator.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.trainings = list(state["trainings"])
        self._generator.bit_generator.state = state["generator"]
