"""A clock lets users train and finish; each kind has its own idea of time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from basecagg.schedules.schedule import Schedule
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.summing import Summing
from basecagg.simulation.workshop import Workshop


class Clock(ABC):
    """Lets things happen, one tick after the other: updates go from the workshop to the schedule."""

    def __init__(
        self,
        config: SimulationConfig,
        schedule: Schedule,
        workshop: Workshop,
        summing: Summing,
        generator: np.random.Generator,
    ) -> None:
        """Begin at time 0 with everyone idle."""
        self.now = 0.0
        self.trainings = [0] * config.users
        self._config = config
        self._schedule = schedule
        self._workshop = workshop
        self._summing = summing
        self._generator = generator
        self._set()

    @abstractmethod
    def _set(self) -> None:
        """Prepare what is the clock's own."""

    @abstractmethod
    def tick(self) -> None:
        """Let the next thing happen."""

    def _may_train(self, user: int) -> bool:
        """Whether its budget of privacy, if it has one, allows another update."""
        return self.trainings[user] < self._workshop.uses and self._summing.affords(user)

    def _count_training(self, user: int) -> int:
        """The number of the training that a user begins now."""
        self.trainings[user] += 1
        return self.trainings[user] - 1

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"trainings": self.trainings, "generator": self._generator.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.trainings = list(state["trainings"])
        self._generator.bit_generator.state = state["generator"]
