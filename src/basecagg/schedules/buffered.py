"""FedBuff: C users train at any time; whenever K of them are done, the model takes a step."""

from __future__ import annotations

from collections.abc import Collection

from basecagg.schedules.schedule import Aggregation, Idle, Schedule, StartingPoint, Vector


class Buffered(Schedule):
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

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Fill up to C. A user whose update still waits would be refused, so it rests."""
        waiting = self._aggregation.waiting()
        return idle.draw(self._concurrency - len(running), lambda user: user not in waiting)

    def starting_point(self, user: int) -> StartingPoint:
        """The newest published model."""
        return StartingPoint(self._aggregation.version, self._aggregation.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the buffer."""
        self._aggregation.submit(user, update, start.version)
