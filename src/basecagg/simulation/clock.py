"""A clock lets users train and finish; each kind has its own idea of time. And the users that wait for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from basecagg.schedules.schedule import Schedule
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.summing import Summing
from basecagg.simulation.workshop import Workshop


@dataclass(eq=False)
class Clock(ABC):
    """Lets things happen, one tick after the other: updates go from the workshop to the schedule."""

    config: SimulationConfig
    schedule: Schedule
    workshop: Workshop
    summing: Summing
    generator: np.random.Generator
    now: float = 0.0

    def __post_init__(self) -> None:
        """Begin with everyone idle."""
        self.trainings = [0] * self.config.users

    @abstractmethod
    def tick(self) -> None:
        """Let the next thing happen."""

    def _may_train(self, user: int) -> bool:
        """Whether its budget of privacy, if it has one, allows another update."""
        uses = self.workshop.protection.uses
        return self.trainings[user] < uses and self.summing.affords(user)

    def _count_training(self, user: int) -> int:
        """The number of the training that a user begins now."""
        self.trainings[user] += 1
        return self.trainings[user] - 1

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"trainings": self.trainings, "generator": self.generator.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.trainings = list(state["trainings"])
        self.generator.bit_generator.state = state["generator"]


def _anyone(user: int) -> bool:
    return True


class IdleUsers:
    """The users that do not train at present. To draw some takes no longer when there are many.

    A set kept as an array: drawing shuffles its beginning, leaving swaps with its end.
    """

    def __init__(
        self,
        users: Iterable[int],
        availability: float,
        generator: np.random.Generator,
        may_train: Callable[[int], bool] = _anyone,
    ) -> None:
        """A user that is looked at is there with probability `availability`, if it `may_train` at all."""
        self._users = list(users)
        self._place = {user: index for index, user in enumerate(self._users)}
        self._availability, self._generator, self._may_train = availability, generator, may_train

    def draw(self, count: int, allowed: Callable[[int], bool] = _anyone) -> list[int]:
        """So many users, at random; fewer if fewer are allowed and there."""
        drawn: list[int] = []
        for index in range(len(self._users)):
            if len(drawn) >= count:
                break
            self._swap(index, int(self._generator.integers(index, len(self._users))))
            user = self._users[index]
            if allowed(user) and self._may_train(user) and self._is_there():
                drawn.append(user)
        return drawn

    def leave(self, user: int) -> None:
        """The user trains now."""
        self._swap(self._place[user], len(self._users) - 1)
        self._users.pop()
        del self._place[user]

    def join(self, user: int) -> None:
        """The user is idle again."""
        self._place[user] = len(self._users)
        self._users.append(user)

    def in_order(self) -> list[int]:
        """All of them, in the order that the next draw depends on."""
        return list(self._users)

    def _is_there(self) -> bool:
        return self._availability == 1 or self._generator.random() < self._availability

    def _swap(self, one: int, other: int) -> None:
        users, place = self._users, self._place
        users[one], users[other] = users[other], users[one]
        place[users[one]], place[users[other]] = one, other
