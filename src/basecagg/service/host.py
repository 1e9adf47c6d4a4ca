"""The server machine of one epoch with its mailboxes: effects become records, letters and a ledger.

Everything here runs in the worker's thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from msgspec import Struct

from basecagg.channels.wire import pack
from basecagg.errors import REFUSAL_CODES, Refused
from basecagg.protocol.effects import (
    Abandoned,
    Effect,
    News,
    Released,
    Store,
    perform,
    refusal_reply,
)
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.global_model import Model, model_bytes
from basecagg.protocol.messages import (
    Answer,
    CertifiedRequest,
    Endorsement,
    Message,
    RecoveryRequest,
    Refusal,
    Release,
    Shipment,
    Upload,
    Verdict,
    Witness,
)
from basecagg.protocol.ports import Signer
from basecagg.protocol.proofs import Pedigree
from basecagg.protocol.records import load, write
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.service.framing import Numbered
from basecagg.service.group_commit import GroupCommit
from basecagg.service.mailboxes import Mailboxes, Notify
from basecagg.service.problems import Problem, refused

_LOG = logging.getLogger("basecagg.service")


@dataclass(frozen=True, eq=False)
class Published:
    """A version of the global model, ready to be sent."""

    version: int
    head: bytes
    dtype: str
    data: bytes


class EpochStore(Store, Protocol):
    """A store that can be closed, or done away with when its epoch is over."""

    def renew(self) -> None:
        """Say that its owner is alive; `LeaseLost` if it has another one."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...

    def erase(self) -> None:
        """Delete all records, and close."""
        ...


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """What became of one buffer: enough to check afterwards that no update was lost or counted twice."""

    version: int
    outcome: str
    members: tuple[str, ...]
    digest: bytes
    attempt: int = 0
    weights: tuple[float, ...] = ()
    base_versions: tuple[int, ...] = ()
    endorsements: int = 0
    answers: int = 0
    inconsistent: tuple[int, ...] = ()
    seconds: dict[str, float] = {}
    reason: str = ""


@dataclass
class Progress:
    """How far the present recovery has come, with the moments at which it got there."""

    request: RecoveryRequest
    endorsed: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    moments: dict[str, float] = field(default_factory=dict)

    def seconds(self, answered: float, now: float) -> dict[str, float]:
        """Seconds that each stage took: to certify, to get the last answer, to decode and step."""
        moments = self.moments | {"answered": answered, "opened": now}
        return {
            later: round(moments[later] - moments[earlier], 6)
            for earlier, later in pairwise(moments)
        }


class EpochHost:
    """One epoch on the server."""

    def __init__(
        self,
        agreement: Agreement,
        signer: Signer,
        store: EpochStore,
        initial_model: Model,
        *,
        retries: int = 5,
        keep: int = 1,
        notify: Notify = lambda recipient, urgent: None,
    ) -> None:
        """Go on where the store says the epoch was, or begin it with the initial model.

        `retries` is at least 1: after a restart the first one asks again for the answers that were lost. What
        the last `keep` versions (R) were made from can be fetched.
        """
        self.agreement = agreement
        self._signer = signer
        self._durable = store
        self._store = GroupCommit(store)
        self._initial_model = initial_model
        self._retries = retries
        self._keep = keep
        self._packed: tuple[int, bytes] | None = None
        """The parts that were asked for last: all members want the same ones at about the same time."""
        self._notify = notify
        self.closing = False
        self.closed = False
        self.news: list[LedgerEntry] = []
        """Buffers that ended since somebody last looked."""
        self.refusals: Counter[str] = Counter()
        """What was refused since the start, by kind: here, and by holders who told us."""
        self.inconsistent: Counter[str] = Counter()
        """Answers corrected in this epoch, by holder. A bad dealing makes an honest one look wrong."""
        for entry in load(store, "ledger", LedgerEntry).values():
            self._note_inconsistent(entry)
        self.trouble = ""
        """Why no sum is opened until the operator does something about it."""
        self._build()

    def _build(self) -> None:
        recovery = Recovery(self.agreement, self._signer, self._store, self._retries, self._keep)
        self._recovery = recovery
        settings = ServerSettings.of(self.agreement, self._keep)
        self.machine = Server(settings, recovery, self._store, self._initial_model)
        self.published = self._publication()
        self.mailboxes = Mailboxes(self._store, self._notify)
        self.progress: Progress | None = None
        self._began = time.monotonic()
        self._perform(self.machine.start())
        self.flush()
        self._resume()

    def _resume(self) -> None:
        """A request from before a restart: what holders said to it is lost, so they are asked again."""
        if self.is_opening:
            self.deadline()
            self.flush()

    # --- the worker's owner -----------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable, then publish."""
        self._store.flush()
        self._look_for_trouble()
        if self.published.version != self.machine.version:
            self.published = self._publication()

    def _look_for_trouble(self) -> None:
        trouble = self._recovery.trouble(self.machine.version)
        if trouble and not self.trouble:
            _LOG.error("no sum is opened", extra={"fields": {"reason": trouble}})
        elif self.trouble and not trouble:
            _LOG.info("sums are opened again")
        self.trouble = trouble

    def recover(self) -> None:
        """Throw the machine away and build it again from what is durable."""
        self._store.discard()
        self.news.clear()
        self._build()

    def _publication(self) -> Published:
        machine = self.machine
        dtype = machine.model.dtype.newbyteorder("<").str
        return Published(machine.version, machine.head, dtype, model_bytes(machine.model))

    # --- jobs -------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message) -> None:
        """Hand a participant's message to the machine. A refusal is a `Problem` with status 409."""
        if self.closing and isinstance(message, Shipment | Upload):
            raise Problem(503, "EpochClosing", "this epoch takes no more updates", retry_after=5.0)
        if self.closed and isinstance(message, Endorsement | Answer | Witness):
            return  # its last version is signed
        self._began = time.monotonic()
        self._watch(message)
        if isinstance(message, Refusal):
            self.refusals[message.code if message.code in REFUSAL_CODES else "other"] += 1
            return
        try:
            effects = self.machine.receive(sender, message)
        except Refused as refusal:
            self.refusals[refusal.code] += 1
            reply = refusal_reply(sender, message, refusal)
            # A refusal is what the sender is told at once; the fate of its update it must not miss.
            if reply is not None and isinstance(reply.message, Verdict):
                self._perform([reply])
            raise refused(refusal) from None
        self._perform(effects)

    def collect(self, name: str, acknowledged: int | None, most_bytes: int) -> list[Numbered]:
        """Drop the letters that were dealt with, give the next ones."""
        if acknowledged is not None:
            self.mailboxes.acknowledge(name, acknowledged)
        if self.mailboxes.overflowed(name):
            self.reconnect(name)
        return self.mailboxes.collect(name, most_bytes)

    def reconnect(self, holder: str) -> None:
        """Send a holder again what it has not answered."""
        self._perform(self.machine.reconnect(holder))

    def tick(self, patience: float) -> None:
        """Ask whoever has been silent for too long again."""
        self._began = time.monotonic()
        self._perform(self.machine.tick(self._began, patience))

    def deadline(self) -> None:
        """Answers have been waited for long enough."""
        self._began = time.monotonic()
        self._perform(self.machine.deadline())

    def pedigree(self, operator_key: bytes) -> Pedigree:
        """What leads from the operator's key to the present model."""
        version = self.published.version
        release = self._recovery.release(version)
        certificate = self._recovery.certificate_of(version)
        return Pedigree(self.agreement.epoch, release, certificate, operator_key)

    def ledger(self) -> list[tuple[str, bytes]]:
        """What became of every buffer, as it is stored."""
        return self._store.scan("ledger")

    def release(self, version: int) -> Release | None:
        """The server's word on a version that is kept."""
        return self._recovery.release(version)

    def parts(self, version: int) -> bytes | None:
        """All that a version was made from, as a frame, if it is still kept."""
        if self._packed is None or self._packed[0] != version:
            parts = self._recovery.parts(version)
            if parts is None:
                return None
            self._packed = version, pack(parts)
        return self._packed[1]

    def renew(self) -> None:
        """Say that we are alive, though there may be nothing to write."""
        self._durable.renew()

    def erase(self) -> None:
        """Delete everything about this epoch."""
        self._durable.erase()

    @property
    def is_opening(self) -> bool:
        """Whether a request is outstanding."""
        return self.machine.is_opening

    @property
    def may_end(self) -> bool:
        """Whether nothing is being opened, or it may never be."""
        return not self.is_opening or self._recovery.is_stuck

    # --- effects ----------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for send in perform(self._store, effects, self._record):
            self._note_question(send.message)
            self.mailboxes.post(send.recipient, send.message)

    def _watch(self, message: Message) -> None:
        """Count who has spoken to the present request; the machine alone decides what it is worth."""
        if self.progress is None or not isinstance(message, Endorsement | Answer):
            return
        spoken = (
            self.progress.endorsed if isinstance(message, Endorsement) else self.progress.answered
        )
        spoken.add(message.holder)

    def _note_question(self, message: Message) -> None:
        certified = isinstance(message, CertifiedRequest)
        request = message.request if isinstance(message, CertifiedRequest) else message
        if not isinstance(request, RecoveryRequest):
            return
        if self.progress is None or self.progress.request != request:
            self.progress = Progress(request)
        stage = "certified" if certified else "asked"
        if stage not in self.progress.moments:
            self.progress.moments[stage] = time.monotonic()

    def _record(self, news: News) -> None:
        """The ledger's line, in the same transaction as the step itself."""
        if not isinstance(news, Released | Abandoned):
            return
        progress, self.progress = self.progress, None
        entry = LedgerEntry(
            version=news.version,
            outcome="opened" if isinstance(news, Released) else "burned",
            members=tuple(name.key for name in news.members),
            digest=progress.request.digest if progress else b"",
            attempt=progress.request.attempt if progress else 0,
            weights=news.weights if isinstance(news, Released) else (),
            base_versions=news.base_versions if isinstance(news, Released) else (),
            endorsements=len(progress.endorsed) if progress else 0,
            answers=len(progress.answered) if progress else 0,
            inconsistent=news.inconsistent_holders if isinstance(news, Released) else (),
            seconds=progress.seconds(self._began, time.monotonic()) if progress else {},
            reason=_reason(news),
        )
        key = f"{news.version:016d}/{entry.digest.hex()[:16]}"
        self._store.commit([write("ledger", key, entry)])
        self._note_inconsistent(entry)
        self.news.append(entry)

    def _note_inconsistent(self, entry: LedgerEntry) -> None:
        names = self.agreement.holder_names
        self.inconsistent.update(names[holder] for holder in entry.inconsistent)


def _reason(news: Released | Abandoned) -> str:
    """Why the model did not move, if it did not."""
    if isinstance(news, Abandoned):
        return news.reason
    return "" if news.applied else "longer than honest members can make it: not applied"
