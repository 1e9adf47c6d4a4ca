"""A participant on this machine: the protocol's machine with its store. It moves effects and decides nothing.

Everything here runs in one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, unpack
from basecagg.errors import BASecAggError, Refused
from basecagg.protocol.effects import (
    Declined,
    Effect,
    Joined,
    Left,
    MaskEnded,
    MemoryLost,
    News,
    perform,
)
from basecagg.protocol.epoch import LocalFloor
from basecagg.protocol.letters import offer, take
from basecagg.protocol.messages import EpochEnd, Message, Parcel, Refusal
from basecagg.protocol.participant import Participant
from basecagg.service.framing import Numbered
from basecagg.service.profile import Profile
from basecagg.service.training import Vector
from basecagg.storage.participant import ParticipantStore

_LOG = logging.getLogger("basecagg.agent")
_AHEAD = 2
"""Masks that are kept ready, so that an update need not wait for receipts."""


class Member:
    """Drives one participant."""

    def __init__(
        self, profile: Profile, floor: LocalFloor, anchors: Path | None, *, contributes: bool
    ) -> None:
        """Take up the participant where its store says it was."""
        path = profile.folder / "state.db"
        self._store = ParticipantStore(path, "participant", anchor_folder=anchors)
        self.participant = Participant(
            profile.pins(contributes=contributes),
            profile.identity,
            SealingKeys(profile.invitation.suite),
            Ed25519Verifier(),
            self._store,
            floor=floor,
        )

    def start(self, now: int) -> list[Message]:
        """To be called once; what it returns is to be sent."""
        return self._perform(self.participant.start(now))

    def tick(self, now: int) -> list[Message]:
        """It is `now` by this machine's clock."""
        return self._perform(self.participant.tick(now))

    def announce(self, *, another: bool = False) -> Message:
        """The sealing key for the next epoch, signed."""
        (message,) = self._perform(self.participant.announce(another=another))
        return message

    @property
    def epoch(self) -> str:
        """The id of the epoch that it is in, in hexadecimal digits."""
        agreement = self.participant.agreement
        return agreement.id.hex() if agreement else ""

    def hear_of_epochs(self, frames: Sequence[Numbered]) -> None:
        """What the server says of epochs: an end, an epoch, a credential. The machine decides."""
        messages = [message for each in frames if (message := self._parse(each.frame))]
        ends = [message for message in messages if isinstance(message, EpochEnd)]
        take(self.participant, self._store, ends, _tell_of_refusal, _tell)
        offer(self.participant, self._store, messages, _tell)

    def take(self, letters: Sequence[Numbered]) -> list[Message]:
        """Deal with letters from the server; what it returns must be sent before they are acknowledged."""
        messages = [message for each in letters if (message := self._parse(each.frame))]
        sends = take(self.participant, self._store, messages, _tell_of_refusal, _tell)
        return [send.message for send in sends]

    def deal(self, version: int) -> list[Message]:
        """Have enough masks ready for the next updates."""
        return self._perform(self.participant.working().deal_ahead(version, _AHEAD))

    def head_of(self, version: int, model: Vector) -> bytes:
        """What the chain of models had come to with this model, or `WrongModel` if it is another."""
        return self.participant.watch.head_of(version, model)

    def submit(self, update: Vector, version: int, head: bytes) -> list[Message]:
        """Mask an update that was trained from the model with this head."""
        contributor = self.participant.working()
        return self._perform(contributor.submit(update.astype(np.float32), version, head))

    def reconnect(self) -> list[Message]:
        """Send again what the server has not confirmed."""
        return self._perform(self.participant.reconnect())

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _perform(self, effects: Sequence[Effect]) -> list[Message]:
        return [send.message for send in perform(self._store, effects, _tell)]

    def _parse(self, frame: bytes) -> Message | None:
        agreement = self.participant.agreement
        bulk = limit_for(Parcel, agreement.parameters) if agreement else 0
        try:
            message = unpack(frame, max(MAX_CONTROL_BYTES, bulk))
        except BASecAggError as error:
            _log(logging.WARNING, "letter", error=str(error))
            return None
        if isinstance(message, Refusal):
            _log(logging.WARNING, "refused", code=message.code, reason=message.reason)
            return None
        return message


def _tell(news: News) -> None:
    """One line for everything that happens to a participant."""
    match news:
        case MaskEnded(_, outcome, reason):
            _log(logging.INFO, "update", outcome=outcome, reason=reason)
        case Joined(number, epoch, holds):
            level = logging.INFO if holds else logging.WARNING
            _log(level, "epoch", number=number, id=epoch.hex()[:12], holds=holds)
        case Left(number, reason):
            _log(logging.INFO, "left", number=number, reason=reason)
        case Declined(code, reason):
            _log(logging.ERROR, "epoch declined", code=code, reason=reason)
        case MemoryLost(reason):
            _log(logging.ERROR, "memory lost", reason=reason)


def _tell_of_refusal(message: Message, refusal: Refused) -> None:
    kind = type(message).__name__
    _log(logging.INFO, "refuse", kind=kind, code=refusal.code, reason=str(refusal))


def _log(level: int, event: str, **fields: object) -> None:
    _LOG.log(level, event, extra={"fields": fields})
