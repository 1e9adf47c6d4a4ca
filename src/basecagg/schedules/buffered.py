"""FedBuff: C users train at any time; whenever K of them are done, the model takes a step.

FedAvg is the same in rounds: C users start from one model, the first K updates make the step, late ones are
dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from basecagg.schedules.schedule import Aggregation, Idle, Schedule, StartingPoint, Vector


@dataclass(eq=False)
class Buffered(Schedule):
    """Keeps C users busy, each from the newest model (Eq. global_update)."""

    aggregation: Aggregation
    concurrency: int
    """C"""

    @property
    def version(self) -> int:
        """Steps that the global model has taken."""
        return self.aggregation.version

    @property
    def model(self) -> Vector:
        """The global model."""
        return self.aggregation.model

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Fill up to C. A user whose update still waits would be refused, so it rests."""
        waiting = self.aggregation.waiting()
        return idle.draw(self.concurrency - len(running), lambda user: user not in waiting)

    def starting_point(self, user: int) -> StartingPoint:
        """The newest published model."""
        return StartingPoint(self.aggregation.version, self.aggregation.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the buffer."""
        self.aggregation.submit(user, update, start.version)


class Synchronous(Buffered):
    """A round of C users ends with its K-th update. Users that drop out are replaced while it lasts."""

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """A cohort for a new round, else replacements for those who dropped out.

        While the sum is being opened the round is over and the next has no model yet: nobody starts.
        """
        if self.aggregation.is_opening:
            return []
        waiting = self.aggregation.waiting()
        missing = self.concurrency - len(waiting) - len(running)
        return idle.draw(missing, lambda user: user not in waiting)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the sum, or dropped if its round is over."""
        if start.version == self.aggregation.version and not self.aggregation.is_opening:
            self.aggregation.submit(user, update, start.version)
