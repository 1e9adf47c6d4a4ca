"""The paper's clock, which has no time: the staleness of every update is drawn uniformly from 0…τ_max."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Any

from basecagg.errors import BudgetSpent
from basecagg.schedules.schedule import StartingPoint, Vector
from basecagg.simulation.clock import Clock, IdleUsers


class UniformStaleness(Clock):
    """Each tick fills one buffer: K users, each from the model of τ versions ago."""

    def __post_init__(self) -> None:
        """Begin with the first model as all the history there is."""
        super().__post_init__()
        config = self.config
        self._everyone = IdleUsers(range(config.users), 1.0, self.generator, self._may_train)
        models = [self.schedule.model]
        self._history: deque[Vector] = deque(models, maxlen=config.max_staleness + 1)
        self._updates = config.buffer_size if config.pair.schedule == "buffered" else 1

    def tick(self) -> None:
        """What the buffer lacks (one update for the immediate schedule), begun together."""
        version = self.schedule.version
        waiting = self.summing.waiting()
        users = self._everyone.draw(self._updates - len(waiting), lambda user: user not in waiting)
        if not users:
            raise BudgetSpent("too few users have a budget of privacy left to fill a buffer")
        known = min(len(self._history), version - self.summing.first_version + 1)
        ages = self.generator.integers(0, known, len(users)).tolist()
        jobs = [self._begin(user, age, version) for user, age in zip(users, ages, strict=True)]
        for user, start, result in jobs:
            self.schedule.finish(user, result(), start)
        self.summing.advance(inf)
        if self.schedule.version != version:
            self._history.append(self.schedule.model)

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
