"""The server without HTTP: what participants and the operator can ask of it, and what its clock does."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from basecagg.errors import Refused
from basecagg.options import ServiceOptions
from basecagg.protocol.effects import writes_of
from basecagg.protocol.messages import Message, encode
from basecagg.protocol.questions import Consent, SignedQuestion, read
from basecagg.service import documents
from basecagg.service.documents import Enrolment, Notice, Order, Overview, Stance
from basecagg.service.framing import Numbered
from basecagg.service.handed_over import ServerFolder
from basecagg.service.logs import Log
from basecagg.service.problems import Problem, unpacked
from basecagg.service.server.buffer_log import BufferEntry
from basecagg.service.server.certificate import ServerCertificate
from basecagg.service.server.epoch_sequence import Epochs, check_credential
from basecagg.service.server.host import EpochHost, Published
from basecagg.service.server.waiting import WaitingRoom
from basecagg.service.server.worker import MachineThread
from basecagg.storage.server_store import ServerStore

_REMEMBERED_ENTRIES = 200
_PROBE_SECONDS = 0.8
_SILENT = 50.0
"""Seconds after which a holder that has not called is taken for absent. Agents ask for letters every 25 s."""
Result = TypeVar("Result")
_LOG = Log("basecagg.service")


@dataclass
class Activity:
    """What happens in the service, for the operator's page and figures. They show names as pseudonyms only."""

    started: float = field(default_factory=time.time)
    last_seen: dict[str, float] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    """Requests of each caller that are not answered yet."""
    takes_part: set[str] = field(default_factory=set)
    """Members that have asked for their letters of the present epoch."""
    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    buffers: list[BufferEntry] = field(default_factory=list)
    opened: int = 0
    burned: int = 0
    corrected: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)
    certificate: ServerCertificate | None = None
    """What callers are shown; None behind a proxy that has its own."""

    def begin(self, name: str) -> None:
        """A caller's request begins."""
        self.last_seen[name] = time.time()
        self.busy[name] += 1

    def end(self, name: str) -> None:
        """It was answered, to the last byte. On a slow connection that may have taken minutes."""
        self.last_seen[name] = time.time()
        self.busy[name] -= 1

    def is_there(self, name: str, since: float) -> bool:
        """Whether a member takes part in the present epoch, and is calling or has called since then."""
        is_heard = self.busy[name] > 0 or self.last_seen.get(name, 0.0) > since
        return name in self.takes_part and is_heard

    def note(self, entries: Sequence[BufferEntry]) -> None:
        """Buffers have ended."""
        for entry in entries:
            self.opened += entry.outcome == "opened"
            self.burned += entry.outcome == "burned"
            self.corrected += len(entry.inconsistent)
        self.buffers = [*self.buffers, *entries][-_REMEMBERED_ENTRIES:]


class Service:
    """The server of a federation. Made inside the event loop; `close` ends it."""

    def __init__(
        self,
        folder: ServerFolder,
        settings: ServiceOptions,
        open_store: Callable[[str], ServerStore],
    ) -> None:
        """Go on where the stores say; `open_store` opens the store of a namespace."""
        self.folder = folder
        self._settings = settings
        self.activity = Activity()
        self._refusals: Counter[tuple[str, str]] = Counter()
        """How often each caller was refused since the start, by name and code."""
        self.waiting = WaitingRoom()
        """Callers who wait for mail or news; closed when the service is about to stop."""
        self._looked_after: EpochHost | None = None
        """The epoch whose holders we have been looking for since `_since`."""
        self._since = 0.0
        self.epochs = Epochs(folder, settings, open_store)
        self.worker = MachineThread(self.flush, self.recover)
        self._clock = asyncio.create_task(self._tick())
        self._probe: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Finish what was begun, then stop."""
        self._clock.cancel()
        await self.worker.close()
        self.epochs.close()

    # --- the thread's owner -----------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable, then tell those who wait."""
        self.epochs.store.flush()
        host = self.epochs.host
        if host is None:
            return
        before = host.published
        host.flush()
        if woken := host.mailboxes.take_woken():
            self.waiting.wake_soon(woken)
        if host.published is not before:
            self.waiting.renew_soon()
        news = host.buffer_log.take_news()
        self.activity.note(news)
        # The entries are durable with the next flush. If a crash comes first, `Epochs` makes them up.
        self.epochs.note_sums(news)

    def recover(self) -> None:
        """Go back to what is durable, and wake all who wait, so that they look at it."""
        self.epochs.recover()
        self.waiting.change_soon()

    async def find_fault(self) -> str:
        """Write to the store, and say within a second why that fails; an empty text if it works."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self.worker.do(self.epochs.probe))
            self._probe.add_done_callback(_look_at)
        done, _ = await asyncio.wait({self._probe}, timeout=_PROBE_SECONDS)
        if not done:
            return "the store does not answer in time"
        return str(self._probe.exception() or "")

    # --- participants -----------------------------------------------------------------------------

    def message_limit(self) -> int:
        """The most bytes that any message may have in the present epoch."""
        return max(self.epochs.require_host().limits.values())

    async def receive(self, sender: str, frame: bytes) -> None:
        """A participant's message, for the machine."""
        message = self._parse(frame)
        await self._decide(sender, lambda: self.epochs.require_host().receive(sender, message))

    async def enrol(self, enrolment: Enrolment) -> None:
        """An invited person hands in its keys."""

        def enrol() -> None:
            if self.epochs.registry.enrol(enrolment):
                self.epochs.note("enrolled", name=enrolment.name)

        await self._decide("?", enrol)  # nobody knows who it is

    async def _decide(self, name: str, job: Callable[[], None]) -> None:
        """Do a job. If it is refused, and not only put off, the audit log gets an entry."""
        try:
            await self.worker.do(job)
        except Problem as problem:
            if problem.retry_after is None:
                await self._note_refusal(name, problem.code)
            raise

    async def _note_refusal(self, name: str, code: str) -> None:
        """Only the 1st, 2nd, 4th, 8th, … refusal of a kind gets an entry, so that nobody can fill the log.

        If the entry cannot be written, the caller is still told that it was refused, and the next refusal is
        noted instead.
        """
        self._refusals[name, code] += 1
        count = self._refusals[name, code]
        if count.bit_count() == 1:
            said: dict[str, str | int] = {"name": name, "code": code, "times": count}
            try:
                await self.worker.do(lambda: self.epochs.note("refused", **said))
            except Exception as error:
                self._refusals[name, code] -= 1
                _LOG.warning("refusal not noted", **said, reason=str(error))

    async def ask(self, question: Callable[[EpochHost], Result]) -> Result:
        """Ask the present epoch, in the machine's thread; 503 if there is none."""
        return await self.worker.do(lambda: question(self.epochs.require_host()))

    def _parse(self, frame: bytes) -> Message:
        limits = self.epochs.require_host().limits
        message: Message = unpacked(frame, self.message_limit(), *limits)
        limit = limits[type(message)]
        if len(frame) > limit:
            raise Problem(413, "TooLarge", f"a {type(message).__name__} has {limit} bytes at most")
        return message

    async def collect(
        self, name: str, epoch: str, acknowledged: int | None, wait: float, most_bytes: int
    ) -> list[Numbered]:
        """A participant's next letters; waits for some if there are none.

        A caller that has dealt with all its letters waits here, before the machine's thread is asked: an idle
        caller costs that thread one question.
        """
        host = self.epochs.host
        if host is None:
            raise Problem(409, "WrongEpoch", "no epoch is open: look for the next one")
        if epoch == host.agreement.id.hex():
            self.activity.takes_part.add(name)
        deadline = self.waiting.until(wait)
        if self._serves(host, epoch) and self._may_wait(host, name, acknowledged):
            await self.waiting.mail(name, deadline)
        letters = await self._collect(name, epoch, acknowledged, most_bytes)
        while not letters and await self.waiting.mail(name, deadline):
            letters = await self._collect(name, epoch, None, most_bytes)
        return letters

    def _serves(self, host: EpochHost, epoch: str) -> bool:
        return epoch == host.agreement.id.hex() and epoch not in self.epochs.registry.ends

    def _may_wait(self, host: EpochHost, name: str, acknowledged: int | None) -> bool:
        has_news = host.mailboxes.has_news(name, acknowledged)
        return not has_news or (acknowledged is not None and self.waiting.is_ripening(name))

    async def _collect(
        self, name: str, epoch: str, acknowledged: int | None, most_bytes: int
    ) -> list[Numbered]:
        def collect(host: EpochHost) -> list[Numbered]:
            if not self._serves(host, epoch):
                raise Problem(409, "WrongEpoch", "this epoch is over: look for its end")
            return host.collect(name, acknowledged, most_bytes)

        return await self.ask(collect)

    async def wait_for_model(self, newer_than: int, wait: float) -> Published:
        """The present model. If it is not newer than this version, wait for one that is."""
        deadline = self.waiting.until(wait)
        while self.epochs.require_host().published.version <= newer_than:
            if not await self.waiting.news(deadline):
                break
        return self.epochs.require_host().published

    async def wait_for_epoch(self, name: str, known: str, wait: float) -> list[Numbered]:
        """Wait for the signed end of the epoch that the caller knows, or for a different present epoch.

        Returns at once with those that are there already, and with nothing after `wait` seconds.

        An epoch that has ended is not offered any more. If the server wants the caller's sealing key, it
        returns at once, and a response header asks for the key.
        """
        deadline = self.waiting.until(wait)
        while not (frames := self._epoch_news(name, known)):
            if self.epochs.registry.lacks_key(name) or not await self.waiting.news(deadline):
                break
        return frames

    def _epoch_news(self, name: str, known: str) -> list[Numbered]:
        registry, host = self.epochs.registry, self.epochs.host
        frames = [registry.ends[known]] if known in registry.ends else []
        if host is not None:
            present = host.agreement.id.hex()
            if present != known and present not in registry.ends:
                own = registry.credentials.get(name)
                frames += [host.frame, *([] if own is None else [own])]
        return [Numbered(number, frame) for number, frame in enumerate(frames)]

    # --- studies ----------------------------------------------------------------------------------

    async def terms(self) -> bytes:
        """The terms of the study that the present epoch is."""
        return await self.worker.do(lambda: encode(self.epochs.board.terms))

    async def ask_centres(self, name: str, frame: bytes) -> None:
        """The analyst's question, for all centres."""

        def post() -> None:
            question = read(frame, SignedQuestion)
            host, board = self.epochs.require_host(), self.epochs.board
            version = host.published.version
            effects = board.ask(question, version, self._burns(host, version))
            if effects:
                self.epochs.store.commit(writes_of(effects))
                said = {"number": question.number, "version": version, "private": question.private}
                self.epochs.note("question", by=name, **said)

        await self._decide(name, lambda: _unless_refused(post))
        self.waiting.change()

    async def hear_centre(self, name: str, said: Stance) -> None:
        """A centre says whether it answers a question."""

        def hear() -> None:
            board, number = self.epochs.board, said.number
            if said.refusal:
                effects = board.refuse(name, number, said.refusal)
            else:
                effects = board.consent(name, number, read(said.consent, Consent))
            if effects:
                self.epochs.store.commit(writes_of(effects))
                if said.refusal:
                    self.epochs.note("question refused", number=number, by=name)

        await self._decide(name, lambda: _unless_refused(hear))
        self.waiting.change()

    async def wait_for_question(self, version: int, known: str, wait: float) -> Notice:
        """The newest question for a version, with what was said to it; waits for another than `known`.

        What a caller knows is the question's number with its state, such as 3-agreed.
        """
        deadline = self.waiting.until(wait)
        while True:
            shown = await self.worker.do(lambda: self._show(version))
            number = read(shown.question, SignedQuestion).number if shown.question else 0
            if known != f"{number}-{shown.state}" or not await self.waiting.news(deadline):
                return shown

    def _show(self, version: int) -> Notice:
        host, board = self.epochs.require_host(), self.epochs.board
        posted = board.at(version)
        if posted is None:
            return Notice(last=board.last)
        state = board.state(posted, self._burns(host, version))
        return Notice(
            last=board.last,
            question=encode(posted.question),
            state=state,
            consents=tuple(map(encode, posted.willing.values())) if state == "agreed" else (),
            missing=tuple(board.missing(posted)),
            refusals=posted.refusals,
        )

    @staticmethod
    def _burns(host: EpochHost, version: int) -> int:
        """How many sums of this version were given up."""
        ended = host.buffer_log.entries()
        return sum(each.version == version and each.outcome == "burned" for each in ended)

    # --- operator ---------------------------------------------------------------------------------

    async def overview(self) -> Overview:
        """What the operator needs to know to go on."""
        now, activity = time.time(), self.activity
        seen = {name: int(now - last) for name, last in activity.last_seen.items()}
        uptime = int(now - activity.started)
        return await self.worker.do(lambda: self.epochs.overview(uptime, seen), is_reserved=True)

    async def obey(self, order: Order) -> None:
        """Carry out what the operator signed."""
        await self.worker.do(lambda: self._obey(order), is_reserved=True)
        self.waiting.change()

    def _obey(self, order: Order) -> None:
        match order:
            case documents.Invite():
                if self.epochs.registry.invite(order.name, order.admission_hash, order.expires):
                    self.epochs.note("invited", name=order.name)
            case documents.Admit():
                if order.credential is not None:
                    agreement = self.epochs.require_host().agreement
                    check_credential(agreement, order.member.name, order.credential)
                if self.epochs.registry.admit(order.member, order.credential):
                    self.epochs.note("admitted", name=order.member.name, role=order.member.role)
            case documents.Revoke():
                self.epochs.registry.revoke(order.name)
                self.epochs.note("revoked", name=order.name)
            case documents.AskForKeys():
                self.epochs.registry.forget_keys(order.names)
                self.epochs.note("keys asked for", names=" ".join(order.names))
            case documents.CloseEpoch():
                self.epochs.begin_closing()
            case documents.EndEpoch():
                self.epochs.end(order.frame)
            case documents.StartEpoch():
                self.epochs.start(order)

    # --- time -------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(0.25, self._settings.answer_timeout / 4))
            await self._quietly(self.epochs.renew)
            await self._quietly(self._look_for_holders)
            if self.epochs.host is not None and self.epochs.host.waits:
                await self._quietly(self._ask_holders_again)
            if self.epochs.is_due:
                await self._quietly(self.epochs.begin_closing)
            if self.epochs.may_finish_closing:
                await self._quietly(self.epochs.finish_closing)
            if self.epochs.registry.leaving:
                await self._quietly(self.epochs.archive)

    def _look_for_holders(self) -> None:
        """Tell the epoch which of its holders cannot answer, before a sum waits for them in vain."""
        host = self.epochs.host
        if host is None:
            return
        if self.epochs.phase == "closed":  # its members have left
            host.hear_of_absence({})
            return
        if host is not self._looked_after:  # a new epoch: nobody has asked for its letters yet
            self._looked_after, self._since = host, time.time()
            self.activity.takes_part = set()
        members, absent = self.epochs.registry.members, dict[str, str]()
        gone = {name for name, member in members.items() if member.revoked}
        silent = time.time() - _SILENT
        is_new = self._since > silent
        for seat in host.agreement.epoch.holders:
            member = members.get(seat.name)
            if member is None or member.revoked:
                absent[seat.name] = "revoked"
            elif member.signing_key != seat.signing_key:
                absent[seat.name] = "replaced"
            elif seat.name in host.retired:
                absent[seat.name] = "retired"
            elif not is_new and not self.activity.is_there(seat.name, silent):
                absent[seat.name] = "silent"
        if not is_new:
            gone |= {name for name in members if not self.activity.is_there(name, silent)}
        host.hear_of_absence(absent, frozenset(gone))

    def _ask_holders_again(self) -> None:
        self.epochs.require_host().tick(self._settings.answer_timeout)

    async def _quietly(self, job: Callable[[], None]) -> None:
        """A job that the clock starts. If it fails, the machine is built again, and the clock tries again."""
        try:
            await self.worker.do(job)
        except Problem:
            pass  # the worker has said why
        except Exception as error:  # the clock goes on whatever it is
            _LOG.error("clock", error=repr(error))


def _unless_refused(job: Callable[[], None]) -> None:
    try:
        job()
    except Refused as refusal:
        raise Problem(409, refusal.code, str(refusal)) from None


def _look_at(task: asyncio.Task[None]) -> None:
    """asyncio complains of an exception that nobody looks at, and the caller that asked may have gone."""
    if not task.cancelled():
        task.exception()
