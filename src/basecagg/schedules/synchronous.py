"""FedAvg: rounds. C users start from one model, the first K updates make the step, late ones are dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from basecagg.schedules.schedule import Aggregation, Idle, StartingPoint, Vector


class Synchronous:
    """A round ends with its K-th update. Users that drop out are replaced while it lasts."""

    def __init__(self, aggregation: Aggregation, cohort: int) -> None:
        """Start `cohort` (C) users a round; the aggregation's K of them make the step."""
        self._aggregation = aggregation
        self._cohort = cohort

    @property
    def version(self) -> int:
        """Rounds that are over."""
        return self._aggregation.version

    @property
    def model(self) -> Vector:
        """The global model."""
        return self._aggregation.model

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """A cohort for a new round, else replacements for those who dropped out.

        While the sum is being opened the round is over and the next has no model yet: nobody starts.
        """
        if self._aggregation.is_opening:
            return []
        waiting = self._aggregation.waiting()
        missing = self._cohort - len(waiting) - len(running)
        return idle.draw(missing, lambda user: user not in waiting)

    def starting_point(self, user: int) -> StartingPoint:
        """The model of this round."""
        return StartingPoint(self._aggregation.version, self._aggregation.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Into the sum, or dropped if its round is over."""
        if start.version == self._aggregation.version and not self._aggregation.is_opening:
            self._aggregation.submit(user, update, start.version)

    def state(self) -> dict[str, Any]:
        """Everything is with the aggregation."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Everything is with the aggregation."""
