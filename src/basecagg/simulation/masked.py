"""What all parties do with a full buffer, done in one place: for runs that need no messages between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from basecagg.protocol.messages import History, MaskName
from basecagg.protocol.opening import Outcome, Step
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.records import BufferedUpdate
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, PlainAggregation
from basecagg.storage.memory import MemoryStore

SumUp: TypeAlias = Callable[[Mapping[MaskName, Vector], list[int]], Outcome]


class HandedOn(PlainOpening):
    """Hands the updates of a full buffer, and their weights s̄, to whoever sums them."""

    def __init__(self, size: int, weighing: Weighing, store: MemoryStore, sum_up: SumUp) -> None:
        """Take updates in clear."""
        super().__init__(size, weighing, store)
        self._sum_up = sum_up

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Step:
        """The sum, at once, or why there is none."""
        weights = [int(self._weight(history.last, member)) for member in members]
        updates = {member.name: self._read(member.name) for member in members}
        return [], self._sum_up(updates, weights)


class MaskedAggregation(PlainAggregation):
    """Takes updates as a plain server does, and opens their sum as all parties would."""

    def _opening(self, beginning: Beginning, weighing: Weighing, store: MemoryStore) -> HandedOn:
        return HandedOn(beginning.model.size, weighing, store, self._sum_up)

    @abstractmethod
    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[int]) -> Outcome:
        """From the updates of a full buffer to Σ s̄·Δ."""
