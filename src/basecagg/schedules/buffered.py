"""FedBuff: C users train at any time; whenever K of them are done, the model takes a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from basecagg.schedules.schedule import Aggregation, StartingPoint, Vector, pick


class Buffered:
    """Keeps C users busy, each from the newest model (Eq. global_update)."""

    def __init__(self, aggregation: Aggregation, concurrency: int) -> None:
        """Let `concurrency` (C) users train at once."""
        self._aggregation = aggregation
        self._concurrency = concurrency

    @property
    def version(self) -> int:
        """Steps that the global model has taken."""
        return self._aggregation.version

    @property
    def model(self) -> Vector:
        """The global model."""
        return self._aggregation.model

    def choose(
        self, idle: Sequence[int], running: Sequence[int], generator: np.random.Generator
    ) -> list[int]:
        """Fill up to C. A user whose update still waits would be refused, so it rests."""
        waiting = self._aggregation.waiting()
        free = [user for user in idle if user not in waiting]
        return pick(free, self._concurrency - len(running), generator)

    def starting_point(self, user: int) -> StartingPoint:
        """The newest published model."""
        return StartingPoint(self._aggregation.version, self._aggregation.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the buffer."""
        self._aggregation.submit(user, update, start.version)

    def state(self) -> dict[str, Any]:
        """Everything is with the aggregation."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Everything is with the aggregation."""
