"""A participant on this machine: its store, its masks dealt ahead, and its machine, which alone decides.

Everything here runs in one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, pack, unpack
from basecagg.costs import shares_bytes
from basecagg.errors import (
    BASecAggError,
    LocalProtocolError,
    Refused,
    ServerCaught,
    StorageError,
)
from basecagg.privacy import Privacy
from basecagg.protocol.effects import (
    BudgetEnded,
    Convicted,
    Declined,
    Effect,
    Joined,
    Left,
    MaskEnded,
    MemoryLost,
    News,
    PartsWanted,
    perform,
)
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.letters import offer, take
from basecagg.protocol.messages import EpochEnd, Message, Parts, Refusal, content_hash
from basecagg.protocol.participant import Participant
from basecagg.protocol.proofs import Evidence
from basecagg.protocol.records import parse
from basecagg.service.agent.profile import Profile
from basecagg.service.framing import Numbered
from basecagg.service.logs import Log
from basecagg.service.private_files import write_private
from basecagg.service.training import Vector
from basecagg.storage.participant import ParticipantStore

_LOG = Log("basecagg.agent")
_AHEAD = 2
"""Masks that are kept ready, so that an update need not wait for receipts."""
_LARGE = 4 * 2**20
"""Bytes: if one mask's shares take more, each mask gets a shipment of its own."""


class LocalMember:
    """Drives one participant."""

    def __init__(
        self, profile: Profile, floor: LocalFloor, anchors: Path | None, *, contributes: bool
    ) -> None:
        """Take up the participant where its store says it was."""
        self._folder = profile.folder
        self._floor = floor
        self.declined = ""
        """The epoch that was offered last and declined, as `epoch`; forgotten after a while, to look again."""
        self._complained: Declined | None = None
        self.wanted: int | None = None
        """The newest version that it wants to make again before it answers."""
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
        self._write_evidence()
        self._show_verification()
        return self._perform(self.participant.start(now))

    def tick(self, now: int) -> list[Message]:
        """It is `now` by this machine's clock."""
        self.declined = ""
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
        take(self.participant, self._store, ends, _tell_of_refusal, self._tell)
        if any(end.epoch.hex() == self.declined for end in ends):
            self.declined = ""
        offered = next((message for message in messages if isinstance(message, Epoch)), None)
        if offered is None:
            return
        told, self._complained = self._complained, None
        offer(self.participant, self._store, messages, self._tell)
        self.declined = offered.id.hex() if self._complained else ""
        if self._complained and self._complained != told:
            _tell(self._complained)

    def take(self, letters: Sequence[Numbered]) -> list[Message]:
        """Deal with letters from the server; what it returns must be sent before they are acknowledged."""
        messages = [message for each in letters if (message := self._parse(each.frame))]
        sends = take(self.participant, self._store, messages, _tell_of_refusal, self._tell)
        return [send.message for send in sends]

    def next_wanted(self) -> int | None:
        """What to fetch the parts of: questions about earlier versions are over by then."""
        wanted, self.wanted = self.wanted, None
        return wanted

    def is_due(self, version: int) -> bool:
        """Whether a version has to be made again before it is used."""
        return self.participant.state == "inside" and self.participant.watch.is_due(version)

    def deal(self) -> list[Message]:
        """Have enough masks ready for the next updates."""
        is_large = shares_bytes(self.participant.working().agreement.parameters) > _LARGE
        counts = range(1, _AHEAD + 1) if is_large else (_AHEAD,)
        deal = self.participant.deal_ahead
        return [message for ahead in counts for message in self._perform(deal(ahead))]

    def begin(self) -> None:
        """A model is about to be asked for, to train from it."""
        self.participant.watch.begin()

    def has_heard_of(self, version: int) -> bool:
        """Whether the server has signed something about this version or a later one."""
        return self.participant.state != "inside" or version <= self.participant.watch.newest

    def head_of(self, version: int, model: Vector) -> bytes:
        """What the chain of models had come to with this model, or `WrongModel` if it is another."""
        return self.participant.watch.head_of(version, model)

    @property
    def privacy(self) -> Privacy | None:
        """What this epoch promises. Where there is any, contributors weigh their updates themselves."""
        return self.participant.working().agreement.parameters.privacy

    def submit(
        self, update: Vector, version: int, head: bytes, privacy: Privacy | None
    ) -> list[Message]:
        """Mask an update that was trained from the model with this head."""
        if self.privacy != privacy:  # its records were clipped for another epoch
            raise LocalProtocolError("another epoch has begun meanwhile, with another privacy")
        return self._perform(self.participant.submit(update.astype(np.float32), version, head))

    def reconnect(self) -> list[Message]:
        """Send again what the server has not confirmed."""
        return self._perform(self.participant.reconnect())

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _perform(self, effects: Sequence[Effect]) -> list[Message]:
        return [send.message for send in perform(self._store, effects, self._tell)]

    def _tell(self, news: News) -> None:
        match news:
            case PartsWanted(version):
                self.wanted = max(version, self.wanted or 0)
            case Convicted(_, reason):
                self._accuse(reason)
            case Declined():
                self._complained = news
            case Joined():
                _tell(news)
                self._show_verification()
            case _:
                _tell(news)

    def _show_verification(self) -> None:
        """Which versions of the present epoch are made again here, and what that takes."""
        agreement = self.participant.agreement
        if agreement is None:
            return
        share = self._floor.share_to_verify(agreement.parameters)
        how = {0.0: "never", 1.0: "always"}.get(share, f"{share:.0%} of them")
        megabytes = f"{agreement.parameters.parts_bytes / 1e6:.3g}"
        _LOG.info("versions are made again", how=how, megabytes_each=megabytes)

    def _accuse(self, reason: str) -> None:
        """The participant has left, and nothing more is sent: this ends its agent."""
        try:
            path = self._write_evidence()
            found = f"The evidence is in {path}; run: basecagg verify {path}"
        except StorageError as fault:  # it is in the store, and waits there
            found = f"The evidence is kept, but {fault}; the next start writes it to a file"
        _LOG.error("server caught", reason=reason, evidence=found)
        raise ServerCaught(f"{reason}. {found}")

    def _write_evidence(self) -> Path:
        """One file for every conviction, also for one that was only just stored before a crash."""
        path = self._folder
        for _, stored in self._store.scan("convicted"):
            name = f"{parse(stored, Evidence).epoch.number}-{content_hash(stored).hex()[:16]}"
            path = self._folder / f"evidence-{name}.bin"
            if not path.exists():
                write_private(path, pack(parse(stored, Evidence)))
        return path

    def _parse(self, frame: bytes) -> Message | None:
        agreement = self.participant.agreement
        limit = limit_for(Parts, agreement.parameters) if agreement else MAX_CONTROL_BYTES
        try:
            message = unpack(frame, limit)
        except BASecAggError as error:
            _LOG.warning("letter", error=str(error))
            return None
        if isinstance(message, Refusal):
            _LOG.warning("refused", code=message.code, reason=message.reason)
            return None
        return message


def _tell(news: News) -> None:
    """One line for everything that happens to a participant."""
    match news:
        case MaskEnded(_, outcome, reason):
            _LOG.info("update", outcome=outcome, reason=reason)
        case Joined(number, epoch, holds):
            level = logging.INFO if holds else logging.WARNING
            _LOG(level, "epoch", number=number, id=epoch.hex()[:12], holds=holds)
        case Left(number, reason):
            _LOG.info("left", number=number, reason=reason)
        case Declined(code, reason):
            _LOG.error("epoch declined", code=code, reason=reason)
        case MemoryLost(reason):
            _LOG.error("memory lost", reason=reason)
        case BudgetEnded(reason):
            _LOG.warning("no more updates", reason=reason)


def _tell_of_refusal(message: Message, refusal: Refused) -> None:
    kind = type(message).__name__
    _LOG.info("refuse", kind=kind, code=refusal.code, reason=str(refusal))
