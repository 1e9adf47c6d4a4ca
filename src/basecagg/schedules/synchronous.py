"""FedAvg: rounds. C users start from one model, the first K updates make the step, late ones are dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from basecagg.schedules.schedule import Aggregation, Idle, StartingPoint, Vector


class Synchronous:
    """A round ends when the model steps. Users that drop out are replaced while it lasts."""

    def __init__(self, aggregation: Aggregation, cohort: int) -> None:
        """Start `cohort` (C) users a round; the aggregation's K of them make the step."""
        self._aggregation = aggregation
        self._cohort = cohort
        self._arrived = 0
        self._round = aggregation.version

    @property
    def version(self) -> int:
        """Rounds that are over."""
        return self._aggregation.version

    @property
    def model(self) -> Vector:
        """The global model."""
        return self._aggregation.model

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """A new cohort when the round is over, else replacements for those who dropped out."""
        if self._round != self._aggregation.version:
            self._round, self._arrived = self._aggregation.version, 0
        waiting = self._aggregation.waiting()
        missing = self._cohort - self._arrived - len(running)
        return idle.draw(missing, lambda user: user not in waiting)

    def starting_point(self, user: int) -> StartingPoint:
        """The model of this round."""
        return StartingPoint(self._round, self._aggregation.model, self._round)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Count it in, or drop it if its round is over."""
        if start.round == self._aggregation.version:
            self._arrived += 1
            self._aggregation.submit(user, update, start.version)

    def state(self) -> dict[str, Any]:
        """The round, and how many of it have arrived."""
        return {"round": self._round, "arrived": self._arrived}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._round, self._arrived = state["round"], state["arrived"]
