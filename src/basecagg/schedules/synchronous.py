"""FedAvg: rounds. C users start from one model, the first K updates make the step, late ones are dropped."""

from __future__ import annotations

from collections.abc import Collection

from basecagg.schedules.buffered import Buffered
from basecagg.schedules.schedule import Idle, StartingPoint, Vector


class Synchronous(Buffered):
    """A round of C users ends with its K-th update. Users that drop out are replaced while it lasts."""

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """A cohort for a new round, else replacements for those who dropped out.

        While the sum is being opened the round is over and the next has no model yet: nobody starts.
        """
        if self._aggregation.is_opening:
            return []
        waiting = self._aggregation.waiting()
        missing = self._concurrency - len(waiting) - len(running)
        return idle.draw(missing, lambda user: user not in waiting)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the sum, or dropped if its round is over."""
        if start.version == self._aggregation.version and not self._aggregation.is_opening:
            self._aggregation.submit(user, update, start.version)
