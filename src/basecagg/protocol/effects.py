"""Effects: what a machine wants done. First all writes in one transaction, then everything else.

A machine has already moved on when it returns its effects. If the writes fail, the driver throws the machine
away and builds it again from its records. Effects are Structs, for a busy server makes thousands a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from basecagg.errors import Refused
from basecagg.protocol.buckets import Bucket
from basecagg.protocol.messages import (
    MAX_REASON,
    Contribution,
    MaskName,
    Message,
    PlainUpdate,
    Refusal,
    Upload,
    Verdict,
)
from basecagg.protocol.ports import Discreet, Records


class Persist(Discreet, Struct, frozen=True, gc=False):
    """Store a value. `irreversible` marks what must not be undone by restoring an older copy of the store."""

    kind: str
    key: str
    value: bytes
    irreversible: bool = False

    def _shown(self) -> dict[str, object]:
        return {"place": f"{self.kind}/{self.key}", "size": f"{len(self.value)} bytes"}


class Forget(Struct, frozen=True, gc=False):
    """Delete a stored value. `harmless` says that it is no secret, although others of its kind are."""

    kind: str
    key: str
    harmless: bool = False


class Send(Struct, frozen=True, gc=False):
    """Send a message, after the writes are safe. Sending it again does no harm."""

    recipient: str
    message: Message


class News(Struct, frozen=True, gc=False):
    """Something that happened, for the driver. It is nothing to be carried out."""


class Uploaded(News, frozen=True):
    """An update is sent; `clipped` of its elements lay outside ±B."""

    mask: MaskName
    clipped: int


class MaskEnded(News, frozen=True):
    """A contributor's mask is over: opened, refused, burned or expired. Its update is not to be sent again."""

    mask: MaskName
    state: str
    reason: str = ""


class Released(News, frozen=True, eq=False):
    """A sum was opened and the model moved on: version t → t + 1."""

    version: int
    """t: the version from which the step was made."""
    members: tuple[MaskName, ...]
    """The masks of the K updates."""
    base_versions: tuple[int, ...]
    """t_i: the version from which each member was trained."""
    weights: tuple[float, ...]
    """The weight of each member in the sum."""
    weighted_sum: npt.NDArray[np.float64]
    """Divided by the sum of the weights, it is the weighted mean of the updates."""
    inconsistent_holders: tuple[int, ...] = ()
    """Holders whose answers were wrong, by index."""
    applied: bool = True
    """Whether the model moved by the sum, or only its version: then a member lied about its length."""
    buckets: tuple[Bucket, ...] = ()
    """Who was in which sum, where several sums made this version."""
    told: tuple[int, ...] = ()
    """τ̂: the age that each member told when it was weighed; 0 with weights in the field."""


class Abandoned(News, frozen=True):
    """A buffer was burned; the model is unchanged and training goes on."""

    version: int
    members: tuple[MaskName, ...]
    reason: str


class Joined(News, frozen=True):
    """A participant joined an epoch; it `holds` shares there, or only contributes."""

    number: int
    epoch: bytes
    holds: bool


class Declined(News, frozen=True):
    """A participant was offered an epoch or a credential and did not take it."""

    code: str
    reason: str


class Left(News, frozen=True):
    """A participant's epoch is over; its keys and shares are destroyed."""

    number: int
    reason: str


class StoreLost(News, frozen=True):
    """A participant may have forgotten something: its sealing keys are destroyed, its masks burned."""

    reason: str


class BudgetEnded(News, frozen=True):
    """A contributor made its last upload: its budget of privacy allows no other fresh one."""

    reason: str


class PartsWanted(News, frozen=True):
    """A participant wants to make this version again before it goes on: fetch its `Parts`."""

    version: int


class Convicted(News, frozen=True):
    """A participant caught its server cheating and takes no more part. The evidence convinces others too."""

    evidence: Message
    reason: str


Write: TypeAlias = Persist | Forget
Effect: TypeAlias = Write | Send | News


class Store(Records, Protocol):
    """A store that can be written: all writes of one call, or none."""

    def commit(self, writes: Sequence[Write]) -> None:
        """Make the writes durable before returning."""


WRITES = frozenset({Persist, Forget})
_FOR_DRIVERS = WRITES | {Send}
# By type and not by isinstance: a busy server sorts thousands of effects a second.


def writes_of(effects: Iterable[Effect]) -> list[Write]:
    """Everything that must be durable before anything is sent."""
    return [effect for effect in effects if type(effect) in WRITES]  # type: ignore[misc]


def sends_of(effects: Iterable[Effect]) -> list[Send]:
    """Everything to send once the writes are durable."""
    return [effect for effect in effects if type(effect) is Send]


def news_of(effects: Iterable[Effect]) -> list[News]:
    """All news for the driver."""
    return [effect for effect in effects if type(effect) not in _FOR_DRIVERS]  # type: ignore[misc]


def perform(
    store: Store, effects: Sequence[Effect], tell: Callable[[News], None] | None = None
) -> list[Send]:
    """Every driver's part: first everything durable, then the news; what it returns is to be sent."""
    writes = writes_of(effects)
    if writes:
        store.commit(writes)
    if tell is not None:
        for news in news_of(effects):
            tell(news)
    return sends_of(effects)


def refusal_reply(sender: str, message: Message, refusal: Refused) -> Send | None:
    """What to tell the sender of a refused message. A contributor learns that its update is not taken."""
    reason = str(refusal)[:MAX_REASON]
    if isinstance(message, Upload | Contribution | PlainUpdate):
        ticket = message.ticket
        return Send(sender, Verdict(ticket.epoch, ticket.mask, "refused", reason))
    if isinstance(message, Refusal | Verdict):
        return None
    return Send(sender, Refusal(refusal.code, reason))
