"""What became of every buffer of an epoch, and how far the present one has come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import Struct

from basecagg.protocol.effects import Abandoned, Released, Store
from basecagg.protocol.messages import (
    Answer,
    CertifiedRequest,
    Endorsement,
    Message,
    RecoveryRequest,
)
from basecagg.protocol.records import load, version_key, write
from basecagg.service.logs import Log

_LOG = Log("basecagg.service")
_KIND = "ledger"


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
    applied: bool = True


def ledger_key(entry: LedgerEntry) -> str:
    """Under which key it stands in the ledger, in the order of versions."""
    return f"{version_key(entry.version)}/{entry.digest.hex()[:16]}"


@dataclass
class RecoveryProgress:
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


class Ledger:
    """Counts who has spoken to the present request, and writes down how each of them ended."""

    def __init__(self, store: Store, holder_names: Sequence[str]) -> None:
        self._store = store
        self._holder_names = holder_names
        self.progress: RecoveryProgress | None = None
        self.news: list[LedgerEntry] = []
        """Buffers that ended since somebody last looked."""
        self.inconsistent: Counter[str] = Counter()
        """Answers corrected in this epoch, by holder. A bad dealing makes an honest one look wrong."""
        self.unapplied: Counter[str] = Counter()
        """Sums that were too long to be applied in this epoch, by member: one of theirs is a lie."""
        for entry in self.entries():
            self._note(entry)

    def entries(self) -> list[LedgerEntry]:
        """What became of every buffer."""
        return list(load(self._store, _KIND, LedgerEntry).values())

    def take_news(self) -> list[LedgerEntry]:
        """The buffers that ended since the last time."""
        news, self.news = self.news, []
        return news

    def note_answer(self, message: Message) -> None:
        """A holder has spoken; the machine alone decides what that is worth."""
        if self.progress is None:
            return
        if isinstance(message, Endorsement):
            self.progress.endorsed.add(message.holder)
        elif isinstance(message, Answer):
            self.progress.answered.add(message.holder)

    def note_question(self, message: Message) -> None:
        """Holders are asked to endorse a request, or to answer it."""
        certified = isinstance(message, CertifiedRequest)
        request = message.request if isinstance(message, CertifiedRequest) else message
        if not isinstance(request, RecoveryRequest):
            return
        if self.progress is None or self.progress.request != request:
            self.progress = RecoveryProgress(request)
        stage = "certified" if certified else "asked"
        if stage not in self.progress.moments:
            self.progress.moments[stage] = time.monotonic()
            said = {"version": request.version, "attempt": request.attempt}
            _LOG.info(f"sum {stage}", **said, members=len(request.tickets))

    def record(self, news: Released | Abandoned, began: float) -> None:
        """A buffer ended with the message that the machine began with at this moment."""
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
            seconds=progress.seconds(began, time.monotonic()) if progress else {},
            reason=_reason(news),
            applied=not isinstance(news, Released) or news.applied,
        )
        self._store.commit([write(_KIND, ledger_key(entry), entry)])
        self._note(entry)
        self.news.append(entry)

    def _note(self, entry: LedgerEntry) -> None:
        names = self._holder_names
        self.inconsistent.update(names[holder] for holder in entry.inconsistent)
        if not entry.applied:
            self.unapplied.update(key.rpartition("/")[0] for key in entry.members)


def ledger_lines(store: Store) -> list[tuple[str, bytes]]:
    """What became of every buffer of an epoch, as it is stored."""
    return list(store.scan(_KIND))


def _reason(news: Released | Abandoned) -> str:
    """Why the model did not move, if it did not."""
    if isinstance(news, Abandoned):
        return news.reason
    return "" if news.applied else "longer than honest members can make it: not applied"
