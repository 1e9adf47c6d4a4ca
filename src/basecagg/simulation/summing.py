"""What a run asks of whatever sums its updates, and the answer where nothing is summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeAlias

from basecagg.protocol.effects import Released
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import PlainUpdate
from basecagg.protocol.ports import Signer
from basecagg.simulation.loopback import Loopback
from basecagg.simulation.metering import plain_bytes

Watch: TypeAlias = Callable[[Agreement, Loopback, Signer], object]
"""Is shown an epoch, its network and its server's signer."""


class Summing(Protocol):
    """The server of a run, as its clock, its users and its records see it.

    What a kind does not say of itself is as where nothing is summed: nobody waits, nothing takes time.
    """

    @property
    def first_version(self) -> int:
        """Of the present epoch: updates of older versions are of no use."""
        return 0

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed."""
        return set()

    def prepare(self, user: int) -> float:
        """What the user does before it has an update; returns the simulated seconds this takes."""
        return 0.0

    def upload_bytes(self, model_size: int) -> int:
        """Bytes of one upload."""
        return 4 * model_size

    def advance(self, now: float) -> float:
        """The simulated time is `now`: publish what is due. Returns when the next version is due, or inf."""
        return inf

    def affords(self, user: int) -> bool:
        """Whether the user's budget of privacy allows another update."""
        return True

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far; None where its sums promise nothing."""
        return None

    def take_step(self, version: int) -> tuple[Released | None, int]:
        """The sum that made this version, and how many sums were burned since the last time."""
        return None, 0

    def watch(self, watch: Watch) -> None:
        """Show every epoch with keys to `watch`: the present one now, others when they begin."""
        return  # an empty body would make it abstract

    def totals(self, updates: int) -> dict[str, Any]:
        """What it cost to take this many updates, and what happened."""

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {}


@dataclass
class NoSumming(Summing):
    """FedAsync and FedAT keep their model themselves: updates go there in clear."""

    model_size: int
    """d of the updates to weigh."""

    def totals(self, updates: int) -> dict[str, Any]:
        """The updates, as they are on the wire."""
        return {"bytes": {PlainUpdate.__name__: updates * plain_bytes(self.model_size)}}
