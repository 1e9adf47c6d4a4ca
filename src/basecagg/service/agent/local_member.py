"""A member of a federation on this machine: its files, what it logs, and the evidence that it keeps.

Everything here runs in one thread.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, pack, unpack
from basecagg.errors import BASecAggError, Refused, ServerCaught, StorageError
from basecagg.parties.member import Member, evidence_in
from basecagg.protocol import effects
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import EpochEnd, Message, Parts, Refusal, content_hash, encode
from basecagg.service.agent.profile import Profile
from basecagg.service.framing import Numbered
from basecagg.service.logs import Log
from basecagg.storage.disk import write_private
from basecagg.storage.participant_store import ParticipantStore

_LOG = Log("basecagg.agent")


class LocalMember(Member):
    """A member whose state is in a folder."""

    def __init__(
        self, profile: Profile, floor: LocalFloor, anchors: Path | None, *, contributes: bool
    ) -> None:
        """Take up the member where its store says it was."""
        self._folder = profile.folder
        self._floor = floor
        self.declined = ""
        """The epoch that was offered last and declined, as `epoch`; forgotten after a while, to look again."""
        self._complained: effects.Declined | None = None
        path = profile.folder / "state.db"
        self._opened = ParticipantStore(path, "participant", anchor_folder=anchors)
        super().__init__(
            profile.pins(contributes=contributes),
            profile.identity,
            SealingKeys(profile.invitation.suite),
            Ed25519Verifier(),
            self._opened,
            floor=floor,
            tell=self._note,
            refused=_note_refusal,
        )

    def start(self, now: int) -> list[Message]:
        """To be called once; what it returns is to be sent."""
        self._write_evidence()
        self._show_protection()
        return super().start(now)

    def tick(self, now: int) -> list[Message]:
        """It is `now` by this machine's clock."""
        self.declined = ""
        return super().tick(now)

    def hear_of_epochs(self, frames: Sequence[Numbered]) -> None:
        """What the server says of epochs: an end, an epoch, a credential. The machine decides."""
        messages = self._read(frames)
        ends = [message for message in messages if isinstance(message, EpochEnd)]
        self.take(ends)
        if any(end.epoch.hex() == self.declined for end in ends):
            self.declined = ""
        offered = next((message for message in messages if isinstance(message, Epoch)), None)
        if offered is not None:
            self._complained = self.offer(messages)
            self.declined = offered.id.hex() if self._complained else ""

    def open_letters(self, letters: Sequence[Numbered]) -> list[Message]:
        """Deal with letters as they came; what it returns must be sent before they are acknowledged."""
        return self.take(self._read(letters))

    def close(self) -> None:
        """Close the store."""
        self._opened.close()

    def _read(self, frames: Sequence[Numbered]) -> list[Message]:
        """The messages in the frames, without those that cannot be read or only tell of a refusal."""
        agreement = self.participant.agreement
        limit = limit_for(Parts, agreement.parameters) if agreement else MAX_CONTROL_BYTES
        messages: list[Message] = []
        for each in frames:
            try:
                message = unpack(each.frame, limit)
            except BASecAggError as error:
                _LOG.warning("letter", error=str(error))
                continue
            if isinstance(message, Refusal):
                _LOG.warning("refused", code=message.code, reason=message.reason)
            else:
                messages.append(message)
        return messages

    # --- what happens -------------------------------------------------------------------------

    def _note(self, news: effects.News) -> None:
        """One line in the log for everything that happens to the member."""
        match news:
            case effects.MaskEnded(_, outcome, reason):
                _LOG.info("update", outcome=outcome, reason=reason)
            case effects.Joined(number, epoch, holds):
                level = logging.INFO if holds else logging.WARNING
                _LOG(level, "epoch", number=number, id=epoch.hex()[:12], holds=holds)
                self._show_protection()
            case effects.Left(number, reason):
                _LOG.info("left", number=number, reason=reason)
            case effects.Declined(code, reason):
                if news != self._complained:  # the same epoch is offered again and again
                    _LOG.error("epoch declined", code=code, reason=reason)
            case effects.StoreLost(reason):
                _LOG.error("store lost", reason=reason)
            case effects.BudgetEnded(reason):
                _LOG.warning("no more updates", reason=reason)
            case effects.Convicted(_, reason):
                self._accuse(reason)

    def _show_protection(self) -> None:
        """Whether updates leave in clear; which versions are made again here, and what that takes."""
        agreement = self.participant.agreement
        if agreement is None:
            return
        if not agreement.parameters.is_masked:
            _LOG.warning("updates are sent in clear", protection=agreement.parameters.protection)
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
        for evidence in evidence_in(self._opened):
            name = f"{evidence.epoch.number}-{content_hash(encode(evidence)).hex()[:16]}"
            path = self._folder / f"evidence-{name}.bin"
            if not path.exists():
                write_private(path, pack(evidence))
        return path


def _note_refusal(message: Message, refusal: Refused) -> None:
    kind = type(message).__name__
    _LOG.info("refuse", kind=kind, code=refusal.code, reason=str(refusal))
