"""Openings: how a full buffer becomes a sum. What the server asks of a protection, and protection 'none'."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.errors import Malformed, NotEnrolled
from basecagg.protocol.buckets import Bucket
from basecagg.protocol.effects import Effect, Forget, Persist
from basecagg.protocol.messages import (
    Contribution,
    History,
    MaskName,
    Message,
    PlainUpdate,
    Upload,
    content_hash,
)
from basecagg.protocol.ports import Records
from basecagg.protocol.stored import BufferedUpdate, EndedUpdate, load, require, version_key, write
from basecagg.protocol.weighing import Weighing

Update: TypeAlias = Upload | Contribution | PlainUpdate
Ending: TypeAlias = Literal["open", "burn", "refuse"]
LastVerdict: TypeAlias = Literal["opened", "burned", "refused"]
LAST_VERDICT: dict[Ending, LastVerdict] = {"open": "opened", "burn": "burned", "refuse": "refused"}


@dataclass(frozen=True, eq=False)
class Opened:
    """Σ s·Δ over the members, and the weights s that were used."""

    weighted_sum: npt.NDArray[np.float64]
    weights: tuple[float, ...]
    inconsistent_holders: tuple[int, ...] = ()
    digest: bytes = bytes(32)
    """Of the request that was answered; zeros where nobody is asked."""
    applied: bool = True
    """Whether the model is to move by it: False if it is longer than honest members can make it."""
    buckets: tuple[Bucket, ...] = ()
    """What it was made of, where several sums make one version. Then `weighted_sum` is their robust mean, times
    the weight of all."""

    @property
    def total_weight(self) -> float:
        """Σ s, rounded once: `sum` adds up differently from one Python to the next."""
        return math.fsum(self.weights)


@dataclass(frozen=True)
class Burned:
    """The sum cannot be opened; its updates are lost and the model stays."""

    reason: str


Outcome: TypeAlias = Opened | Burned
Move: TypeAlias = tuple[list[Effect], Outcome | None]
Stage: TypeAlias = tuple[bytes, bool]
"""The digest of a request, and whether it is certified."""


def forget_model_before(version: int) -> list[Effect]:
    """Delete the model that a version was made from: nobody can check that version any more."""
    return [Forget(kind, version_key(version - 1)) for kind in ("model", "optimiser")]


class Opening(Protocol):
    """A protection, as the server sees it. Defaults for protections without holders."""

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an update that the sender did not send; return what the update claims."""

    def last_verdict(self, name: MaskName) -> LastVerdict | None:
        """The end of an update that is over, while a late copy of it could look like a new one; else None."""

    def require_openable(self, update: BufferedUpdate, at: int, history: History) -> None:
        """Refuse an update that could not be opened at version `at`, in any sum.

        The history tells which sums were opened so far.
        """

    def openable_together(self, updates: Sequence[BufferedUpdate], at: int) -> list[BufferedUpdate]:
        """Those of the updates, in their order, that can be opened in one sum at version `at`."""
        return list(updates)

    def keep(self, update: Update, version: int) -> list[Effect]:
        """Store an update that is let in; send the shares that came with it to the holders."""

    def may_admit(self, name: MaskName) -> bool:
        """Whether enough holders keep a share of the mask of a stored update; otherwise it is parked."""
        return True

    def is_parked(self, name: MaskName) -> bool:
        """Whether a stored update has not been admitted yet."""
        return False

    def admit(self, name: MaskName) -> list[Effect]:
        """A stored update may be summed from now on."""
        return []

    def repeat(self, update: Update) -> list[Effect]:
        """An update that is parked has come again: its shares may have been lost on the way."""
        return []

    def give_back(self, name: MaskName) -> list[Effect]:
        """Delete a parked update that may come again."""
        return []

    def turn_away(self, version: int, update: Update, name: MaskName) -> list[Effect]:
        """An update that is not let in is over: its contributor will not send it again."""
        return self.end(version, [name], "refuse")

    def start(self) -> list[Effect]:
        """Carry this out once after construction."""
        return []

    @property
    def leaves_out(self) -> bool:
        """Whether some are left out of the next sum for a while."""
        return False

    def pardon(self) -> list[Effect]:
        """Leave nobody out of the next sum any more: K updates have waited long enough."""
        return []

    def may_begin(self, version: int) -> bool:
        """Whether another sum of this version may be asked for."""
        return True

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Move:
        """Start to open the sum of these updates, at the last version of the history."""

    def outstanding(self) -> tuple[MaskName, ...]:
        """The members of the sum that was being opened before a restart."""
        return ()

    def receive(self, sender: str, message: Message, version: int) -> Move:
        """Handle a message that is not an update."""
        raise Malformed(f"this server does not take a {type(message).__name__}")

    def stage(self) -> Stage | None:
        """What the server waits for, if anything. It changes with every question."""
        return None

    def deadline(self) -> Move:
        """Ask again or give up: the time to answer has passed."""
        return [], None

    gone: frozenset[str] = frozenset()
    """Contributors that the driver knows to have left or to be away: they are not waited for."""

    def may_come(self, contributor: str) -> bool:
        """Whether one that took the model may come with an update that others could wait for."""
        return False

    def trouble(self, version: int) -> str:
        """For the operator: why no sum is opened until somebody acts; empty if all is well."""
        return ""

    @property
    def is_stuck(self) -> bool:
        """Whether the present sum may never open, so that the end of the epoch need not wait for it."""
        return False

    def publish(self, history: History, opened: Opened) -> list[Effect]:
        """Publish what the new version was made from, for everybody who wants to check it."""
        return forget_model_before(history.last)

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete what is stored of these updates, and tell the holders of their shares."""

    def repeat_end(self, version: int, name: MaskName) -> list[Effect]:
        """The signed end of an update, for a contributor that sends the update once more."""
        return []

    def expire(self, version: int) -> list[Effect]:
        """Delete what can no longer be used at this version."""

    def unanswered(self, holder: str, version: int) -> list[Message]:
        """What a holder that comes back must be sent again."""
        return []


class PlainOpening(Opening):
    """Protection 'none': the server sees every update, and sums them as soon as the buffer is full.

    With this opening the server is FedBuff.
    """

    def __init__(
        self, model_size: int, weighing: Weighing, records: Records, dtype: str = "<f4"
    ) -> None:
        self._model_size = model_size
        self._weighing = weighing
        self._records = records
        self._dtype = np.dtype(dtype)
        self._last: tuple[MaskName, bytes] | None = None
        """The update that was admitted last: it may be summed before the driver has stored it."""
        self._ended = load(records, "ended", EndedUpdate)

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an update of another name, length, or with NaN or ±Inf."""
        if not isinstance(update, PlainUpdate):
            raise Malformed("this server takes updates in clear")
        ticket = update.ticket
        if ticket.mask.contributor != sender:
            raise NotEnrolled("the update is not the sender's")
        require_numbers(update.values, self._model_size, self._dtype)
        if content_hash(update.values) != ticket.upload_hash:
            raise Malformed("the ticket is for other bytes")
        return BufferedUpdate.of(ticket)

    def last_verdict(self, name: MaskName) -> LastVerdict | None:
        """What became of an update that is over, until it would be too old anyway."""
        ended = self._ended.get(name.key)
        return ended.verdict if ended else None

    def require_openable(self, update: BufferedUpdate, at: int, history: History) -> None:
        """Anything in clear can be summed."""

    def keep(self, update: Update, version: int) -> list[Effect]:
        """Store the update."""
        assert isinstance(update, PlainUpdate)
        self._last = update.ticket.mask, update.values
        return [Persist("upload", update.ticket.mask.key, update.values)]

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Move:
        """Σ s(t − t_i)·Δ_i, at once."""
        version = history.last
        weights = tuple(self._weight(version, member) for member in members)
        updates = (self._numbers(member.name) for member in members)
        return [], Opened(sum_of_numbers(updates, weights, self._model_size), weights)

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete the updates; a copy that comes late must not count again."""
        until = version + self._weighing.max_staleness
        ended = {name.key: EndedUpdate(verdict=LAST_VERDICT[how], until=until) for name in names}
        self._ended |= ended
        return [
            *self._forget(names, how),
            *(write("ended", key, record) for key, record in ended.items()),
        ]

    def _forget(self, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        return [Forget("upload", name.key) for name in names]

    def expire(self, version: int) -> list[Effect]:
        """Forget the names of updates that would be too old by now."""
        old = [key for key, ended in self._ended.items() if ended.until < version]
        for key in old:
            del self._ended[key]
        return [Forget("ended", key) for key in old]

    def _weight(self, version: int, member: BufferedUpdate) -> float:
        coin = member.name.key.encode()
        return self._weighing.weight(version, member, coin)

    def _numbers(self, name: MaskName) -> npt.NDArray[np.floating[Any]]:
        return np.frombuffer(self._read(name), self._dtype)

    def _read(self, name: MaskName) -> bytes:
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        return require(self._records, "upload", name.key)


def require_numbers(values: bytes, size: int, dtype: npt.DTypeLike = "<f4") -> None:
    """Refuse what is not `size` finite numbers."""
    if len(values) != size * np.dtype(dtype).itemsize:
        raise Malformed(f"an update has d = {size} numbers")
    if not np.isfinite(np.frombuffer(values, dtype)).all():
        raise Malformed("the update holds NaN or ±Inf")


def sum_of_numbers(
    updates: Iterable[npt.NDArray[np.floating[Any]]], weights: Sequence[float], size: int
) -> npt.NDArray[np.float64]:
    """Σ s·Δ in float64, one after the other: everybody who adds them up again gets the same bits."""
    total = np.zeros(size)
    for update, weight in zip(updates, weights, strict=True):
        total += weight * update
    return total
