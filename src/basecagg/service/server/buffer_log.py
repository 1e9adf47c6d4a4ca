"""The log of an epoch's buffers: how each of them ended, and how far the opening of the present one is."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from msgspec import Struct

from basecagg.protocol import messages
from basecagg.protocol.effects import Abandoned, Released, Store
from basecagg.protocol.messages import Message, RecoveryRequest, ShortRequest
from basecagg.protocol.stored import load, version_key, write
from basecagg.service.logs import Log

_LOG = Log("basecagg.service")
_KIND = "ledger"
_TOO_LONG = "longer than honest members can make it: not applied"


class BufferEntry(Struct, frozen=True, kw_only=True):
    """How one buffer ended: enough to check afterwards that no update was lost or counted twice."""

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


def entry_key(entry: BufferEntry) -> str:
    """The key under which an entry is stored; keys are in the order of versions."""
    return f"{version_key(entry.version)}/{entry.digest.hex()[:16]}"


@dataclass
class OpeningProgress:
    """How far the opening of a buffer has come, and when it got there."""

    request: RecoveryRequest | ShortRequest | None = None
    endorsed: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    moments: dict[str, float] = field(default_factory=dict)

    def seconds(self, answered: float, now: float) -> dict[str, float]:
        """Seconds that each stage took: to certify, to get the last answer, to decode and step."""
        if self.request is None:
            return {}
        moments = self.moments | {"answered": answered, "opened": now}
        return {
            later: round(moments[later] - moments[earlier], 6)
            for earlier, later in pairwise(moments)
        }


class BufferLog:
    """Notes which holders have spoken to the present request, and writes down how each buffer ended."""

    def __init__(self, store: Store, holder_names: Sequence[str]) -> None:
        self._store = store
        self._holder_names = holder_names
        self.progress: OpeningProgress | None = None
        self.news: list[BufferEntry] = []
        """Buffers that ended since `take_news` was last called."""
        self.inconsistent: Counter[str] = Counter()
        """Answers corrected in this epoch, by holder. A bad dealing makes an honest answer look wrong."""
        self.unapplied: Counter[str] = Counter()
        """Sums that were too long to be applied in this epoch, by member: one of its members lied."""
        for entry in self.entries():
            self._note(entry)

    def entries(self) -> list[BufferEntry]:
        """How every buffer ended."""
        return list(load(self._store, _KIND, BufferEntry).values())

    def take_news(self) -> list[BufferEntry]:
        """The buffers that ended since the last call."""
        news, self.news = self.news, []
        return news

    def note_answer(self, message: Message) -> None:
        """A holder has spoken. Whether it is right is for the machine to decide."""
        if self.progress is None:
            return
        if isinstance(message, messages.Endorsement):
            self.progress.endorsed.add(message.holder)
        elif isinstance(message, messages.Answer):
            self.progress.answered.add(message.holder)

    def note_question(self, message: Message) -> None:
        """Holders are asked to endorse a request, or to answer it."""
        request = self._asked_in(message)
        if request is None:
            return
        present = self.progress.request if self.progress else None
        if self.progress is None or present is None or present.digest != request.digest:
            self.progress = OpeningProgress(request)
        is_asked = isinstance(message, RecoveryRequest | ShortRequest)
        stage = "asked" if is_asked else "certified"
        if stage not in self.progress.moments:
            self.progress.moments[stage] = time.monotonic()
            said = {"version": request.version, "attempt": request.attempt}
            _LOG.info(f"sum {stage}", **said, members=len(request.tickets))

    def _asked_in(self, message: Message) -> RecoveryRequest | ShortRequest | None:
        """The request that a question is about. A certificate alone follows the request that it is for."""
        match message:
            case RecoveryRequest() | ShortRequest():
                return message
            case messages.CertifiedRequest(request=request):
                return request
            case messages.Certificate():
                return self.progress.request if self.progress else None
        return None

    def record(self, news: Released | Abandoned, began: float) -> None:
        """A buffer ended, with the message that the machine took up at the moment `began`."""
        progress, self.progress = self.progress or OpeningProgress(), None
        fate: dict[str, Any]
        if isinstance(news, Abandoned):
            fate = {"outcome": "burned", "reason": news.reason}
        else:
            fate = {
                "outcome": "opened",
                "weights": news.weights,
                "base_versions": news.base_versions,
                "inconsistent": news.inconsistent_holders,
                "reason": "" if news.applied else _TOO_LONG,
                "applied": news.applied,
            }
        entry = BufferEntry(
            version=news.version,
            members=tuple(name.key for name in news.members),
            digest=progress.request.digest if progress.request else b"",
            attempt=progress.request.attempt if progress.request else 0,
            endorsements=len(progress.endorsed),
            answers=len(progress.answered),
            seconds=progress.seconds(began, time.monotonic()),
            **fate,
        )
        self._store.commit([write(_KIND, entry_key(entry), entry)])
        self._note(entry)
        self.news.append(entry)

    def _note(self, entry: BufferEntry) -> None:
        names = self._holder_names
        self.inconsistent.update(names[holder] for holder in entry.inconsistent)
        if not entry.applied:
            self.unapplied.update(key.rpartition("/")[0] for key in entry.members)


def stored_entries(store: Store) -> list[tuple[str, bytes]]:
    """How every buffer of an epoch ended, as it is stored."""
    return list(store.scan(_KIND))
