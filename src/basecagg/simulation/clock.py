"""A clock lets users train and finish: what both kinds share, and the paper's clock, which has no time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from basecagg.errors import BudgetSpent
from basecagg.schedules.schedule import Schedule, StartingPoint, Vector
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.workshop import Workshop


@dataclass(eq=False)
class Clock(ABC):
    """Lets things happen, one tick after the other: updates go from the workshop to the schedule."""

    config: SimulationConfig
    schedule: Schedule
    workshop: Workshop
    aggregator: Aggregator
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
        return self.trainings[user] < uses and self.aggregator.sums.affords(user)

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
        """Draw `count` users at random; fewer if fewer are allowed and there."""
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


class UniformStaleness(Clock):
    """The paper's clock: each tick fills one buffer, and τ of every update is drawn uniformly from 0…τ_max."""

    def __post_init__(self) -> None:
        """Begin with the first model as all the history there is."""
        super().__post_init__()
        config = self.config
        self._everyone = IdleUsers(range(config.users), 1.0, self.generator, self._may_train)
        models = [self.schedule.model]
        self._history: deque[Vector] = deque(models, maxlen=config.max_staleness + 1)
        self._updates = config.buffer_size if config.pair.timetable.sums else 1

    def tick(self) -> None:
        """What the buffer lacks (one update for the immediate schedule), begun together."""
        version = self.schedule.version
        waiting = self.aggregator.waiting()
        users = self._everyone.draw(self._updates - len(waiting), lambda user: user not in waiting)
        if not users:
            raise BudgetSpent("too few users have a budget of privacy left to fill a buffer")
        known = min(len(self._history), version - self.aggregator.first_version + 1)
        ages = self.ages(known, len(users))
        jobs = [self._begin(user, age, version) for user, age in zip(users, ages, strict=True)]
        for user, start, result in jobs:
            self.schedule.finish(user, result(), start)
        self.aggregator.advance(inf)
        if self.schedule.version != version:
            self._history.append(self.schedule.model)

    def ages(self, known: int, count: int) -> Sequence[int]:
        """τ of so many updates, each below `known`: how many versions there are to train from."""
        return [int(age) for age in self.generator.integers(0, known, count)]

    def _begin(self, user: int, age: int, version: int) -> tuple[int, StartingPoint, Any]:
        self.workshop.seconds(user)  # deals the mask; how long that takes does not matter here
        start = StartingPoint(version - age, self._history[-1 - age])
        return user, start, self.workshop.begin(user, self._count_training(user), start.model)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {
            "order": self._everyone.in_order(),
            "history": list(self._history),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        super().restore(state)
        self._everyone = IdleUsers(state["order"], 1.0, self.generator, self._may_train)
        self._history = deque(state["history"], maxlen=self._history.maxlen)
