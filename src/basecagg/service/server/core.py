"""The server without HTTP: registry, present epoch and worker, and what may be asked of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, pack, unpack
from basecagg.errors import BASecAggError, LeaseLost
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.epoch import Agreement, Epoch, accept
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import (
    Answer,
    Credential,
    Endorsement,
    EpochEnd,
    Link,
    Message,
    Receipt,
    Refusal,
    Shipment,
    Upload,
    Witness,
    statement,
)
from basecagg.protocol.server import first_link
from basecagg.service.documents import (
    Admit,
    AskForKeys,
    CloseEpoch,
    EndEpoch,
    Enrolment,
    Invite,
    Order,
    Overview,
    Phase,
    Revoke,
    StartEpoch,
)
from basecagg.service.framing import Numbered
from basecagg.service.problems import Problem, unpacked
from basecagg.service.server.group_commit import GroupCommit
from basecagg.service.server.host import EpochHost, EpochStore, LedgerEntry, Published
from basecagg.service.server.registry import Charter, Registry
from basecagg.service.server.worker import MachineThread

MODEL_DTYPE = "<f4"
EPOCH = "epoch:"
"""How the namespaces of epochs begin. What is in them must not be undone by restoring an older copy."""
_TAKEN = (Shipment, Upload, Receipt, Endorsement, Answer, Witness, Refusal)
_CONTROL_BYTES = 2**20
"""The most that a message without bulk data may take here."""
_REMEMBERED_ENTRIES = 200
_LINGER = 0.15
"""Seconds that letters without urgency wait for others to go with."""
_LOG = logging.getLogger("basecagg.service")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """What the one who runs the server decides."""

    federation: str
    operator_key: bytes
    answer_timeout: float = 30.0
    """Seconds to wait for the holders before they are asked again."""
    retries: int = 20
    """How often they are asked again before a buffer is given up."""
    keep_versions: int = 2
    """R: versions whose parts are kept for members who want to make them again."""


@dataclass
class Activity:
    """What the operator's page shows of the service itself. Names are shown as pseudonyms only."""

    started: float = field(default_factory=time.time)
    last_seen: dict[str, float] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    ledger: list[LedgerEntry] = field(default_factory=list)
    opened: int = 0
    burned: int = 0
    corrected: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)


class Service:
    """The server of a federation. Made inside the event loop; `close` ends it."""

    def __init__(
        self,
        settings: ServiceSettings,
        identities: Sequence[Identity],
        open_store: Callable[[str], EpochStore],
    ) -> None:
        """Go on where the stores say; `open_store` opens the records of a namespace.

        An epoch names the one of its `identities` that the server signs with.
        """
        self.settings = settings
        self.activity = Activity()
        self._identities = {identity.public_key: identity for identity in identities}
        self._stores: list[EpochStore] = []
        self._open_store = open_store
        self._loop = asyncio.get_running_loop()
        self._mail: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._soon: set[str] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self.lost: LeaseLost | None = None
        """Why this process has to end: another one has the database."""
        self._durable = self._open("service")
        self._store = GroupCommit(self._durable)
        self.registry = Registry(settings.federation, settings.operator_key, self._store)
        self.host: EpochHost | None = self._resume_host()
        self.worker = MachineThread(self)
        self._clock = asyncio.create_task(self._tick())

    def _open(self, namespace: str) -> EpochStore:
        self._stores.append(self._open_store(namespace))
        return self._stores[-1]

    def hang_up(self) -> None:
        """Let nobody wait any longer: the service is about to stop."""
        self._stopping = True
        self._announce_change()

    async def close(self) -> None:
        """Finish what was begun, then stop."""
        self._clock.cancel()
        await self.worker.close()
        for store in self._stores:
            store.close()

    # --- the worker's owner -----------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable, then tell those who wait."""
        self._store.flush()
        if self.host is None:
            return
        before = self.host.published
        self.host.flush()
        self._note_news(self.host)
        if self.host.published is not before:
            self._loop.call_soon_threadsafe(self._announce_change)

    def recover(self) -> None:
        """Go back to what is durable."""
        self._store.discard()
        s = self.settings
        self.registry = Registry(s.federation, s.operator_key, self._store)
        if self.host is not None:
            self.host.recover()

    def _note_news(self, host: EpochHost) -> None:
        for entry in host.news:
            self.activity.opened += entry.outcome == "opened"
            self.activity.burned += entry.outcome == "burned"
            self.activity.corrected += len(entry.inconsistent)
        self.activity.ledger = [*self.activity.ledger, *host.news][-_REMEMBERED_ENTRIES:]
        host.news.clear()

    def _notify(self, recipient: str, urgent: bool) -> None:
        """Somebody has mail. It is durable by the time a woken reader gets its turn in the worker."""
        self._loop.call_soon_threadsafe(self._wake, recipient, urgent)

    def _wake(self, recipient: str, urgent: bool) -> None:
        if urgent:
            self._mail[recipient].set()
        elif recipient not in self._soon and not self._mail[recipient].is_set():
            self._soon.add(recipient)
            self._loop.call_later(_LINGER, self._wake_late, recipient)

    def _wake_late(self, recipient: str) -> None:
        self._soon.discard(recipient)
        self._mail[recipient].set()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- participants -----------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the present epoch stands."""
        return self.registry.charter.phase if self.registry.charter else "waiting"

    @property
    def published(self) -> Published:
        """The present model."""
        return self._require_host().published

    def key_of(self, name: str) -> bytes | None:
        """The key that signs a caller's requests."""
        return self.registry.key_of(name)

    def message_limit(self) -> int:
        """The most bytes that any message may have in the present epoch."""
        parameters = self._require_host().agreement.parameters
        return max(_limit(kind, parameters) for kind in _TAKEN)

    async def receive(self, sender: str, frame: bytes) -> None:
        """A participant's message, for the machine."""
        message = self._parse(frame)
        await self.worker.do(lambda: self._require_host().receive(sender, message))

    def _parse(self, frame: bytes) -> Message:
        parameters = self._require_host().agreement.parameters
        message = unpacked(frame, self.message_limit())
        if not isinstance(message, _TAKEN):
            raise Problem(400, "Malformed", f"a server does not take a {type(message).__name__}")
        limit = _limit(type(message), parameters)
        if len(frame) > limit:
            raise Problem(413, "TooLarge", f"a {type(message).__name__} has {limit} bytes at most")
        return message

    async def collect(
        self, name: str, epoch: str, acknowledged: int | None, wait: float, most_bytes: int
    ) -> list[Numbered]:
        """A participant's next letters; waits for some if there are none."""
        letters = await self._collect(name, epoch, acknowledged, most_bytes)
        deadline = self._loop.time() + wait
        while not letters and await self._news(deadline, self._mail[name]):
            self._mail[name].clear()
            letters = await self._collect(name, epoch, None, most_bytes)
        return letters

    async def _news(self, deadline: float, *events: asyncio.Event) -> bool:
        """Wait until something happened; False when it is time to go."""
        left = deadline - self._loop.time()
        if left <= 0 or self._stopping:
            return False
        await _first_of(left, self._changed, *events)
        return True

    async def _collect(
        self, name: str, epoch: str, acknowledged: int | None, most_bytes: int
    ) -> list[Numbered]:
        def job() -> list[Numbered]:
            host = self._require_host()
            if epoch != host.agreement.id.hex() or epoch in self.registry.ends:
                raise Problem(409, "WrongEpoch", "this epoch is over: look for its end")
            return host.collect(name, acknowledged, most_bytes)

        return await self.worker.do(job)

    async def wait_for_model(self, newer_than: int, wait: float) -> Published:
        """The present model; if it is not newer than a version, wait for one that is."""
        deadline = self._loop.time() + wait
        while self.published.version <= newer_than and await self._news(deadline):
            pass
        return self.published

    async def pedigree(self) -> bytes:
        """What leads from the operator's key to the present model, as a frame."""
        key = self.settings.operator_key
        return pack(await self.worker.do(lambda: self._require_host().pedigree(key)))

    async def release(self, version: int) -> bytes:
        """The server's word on a version, as a frame; 404 for one that it has none on any more."""
        release = await self.worker.do(lambda: self._require_host().release(version))
        if release is None:
            raise Problem(404, "NotKept", f"there is no release of version {version} here")
        return pack(release)

    async def parts(self, version: int) -> bytes:
        """All that a version was made from, as a frame; 404 if it is not kept any more."""
        parts = await self.worker.do(lambda: self._require_host().parts(version))
        if parts is None:
            raise Problem(404, "NotKept", f"the parts of version {version} are not kept here")
        return parts

    async def wait_for_epoch(self, name: str, known: str, wait: float) -> list[Numbered]:
        """The end of the known epoch and the present one, if there is either; else wait for one.

        An epoch that has ended is offered to nobody. A caller whose sealing key is wanted all at once need not
        wait any longer: it learns so from its answer's header.
        """
        deadline, lacked = self._loop.time() + wait, self.registry.lacks_key(name)
        while not (frames := self._epoch_news(name, known)) and await self._news(deadline):
            if self.registry.lacks_key(name) and not lacked:
                break
        return frames

    def _epoch_news(self, name: str, known: str) -> list[Numbered]:
        registry, charter, host = self.registry, self.registry.charter, self.host
        frames = [registry.ends[known]] if known in registry.ends else []
        if charter is not None and host is not None:
            present = host.agreement.id.hex()
            if present != known and present not in registry.ends:
                own = registry.credentials.get(name)
                frames += [charter.epoch, *([] if own is None else [own])]
        return [Numbered(number, frame) for number, frame in enumerate(frames)]

    async def enrol(self, enrolment: Enrolment) -> None:
        """Somebody invited hands in its keys."""
        await self.worker.do(lambda: self.registry.enrol(enrolment))

    async def publish_key(self, name: str, frame: bytes) -> None:
        """A member hands in its sealing key for the next epoch."""
        await self.worker.do(lambda: self.registry.publish_key(name, frame))

    # --- operator ---------------------------------------------------------------------------------

    async def obey(self, order: Order) -> Overview:
        """Carry out what the operator signed."""
        await self.worker.do(lambda: self._obey(order))
        self._announce_change()
        return self.overview()

    def _obey(self, order: Order) -> None:
        if isinstance(order, Invite):
            self.registry.invite(order.name, order.admission_hash)
        elif isinstance(order, Admit):
            if order.credential is not None:
                self._require_credential(order.member.name, order.credential)
            self.registry.admit(order.member, order.credential)
        elif isinstance(order, Revoke):
            self.registry.revoke(order.name)
        elif isinstance(order, AskForKeys):
            self.registry.forget_keys(order.names)
        elif isinstance(order, CloseEpoch):
            self._begin_closing()
        elif isinstance(order, EndEpoch):
            self._end_epoch(order.frame)
        else:
            self._start_epoch(order)

    async def set_model(self, data: bytes) -> None:
        """The operator's initial model for the next epoch, as little-endian float32."""
        model = np.frombuffer(data, MODEL_DTYPE) if data and len(data) % 4 == 0 else None
        if model is None or not np.isfinite(model).all():
            raise Problem(400, "Malformed", "a model is finite little-endian float32 numbers")
        await self.worker.do(lambda: self._store.commit([Persist("initial-model", "", data)]))

    def overview(self) -> Overview:
        """What the operator needs to know to go on."""
        host, registry, model = self.host, self.registry, self._next_model()
        return Overview(
            phase=self.phase,
            version=self._next_version,
            head=host.published.head if host else bytes(32),
            model_size=len(model) // 4,
            model_hash=self._first().model_hash,
            epoch_number=host.agreement.epoch.number if host else 0,
            epoch_id=host.agreement.id if host else bytes(32),
            enrolments=tuple(registry.enrolments.values()),
            members=tuple(registry.members.values()),
            holder_keys={name: pack(key) for name, key in registry.holder_keys.items()},
            inconsistent=dict(host.inconsistent) if host else {},
            trouble=host.trouble if host else "",
        )

    def _require_credential(self, name: str, frame: bytes) -> None:
        agreement = self._require_host().agreement
        _check_credential(agreement, name, frame)

    # --- epochs -----------------------------------------------------------------------------------

    def _begin_closing(self) -> None:
        if self.phase == "open":
            self.registry.enter("closing")
            self._require_host().closing = True

    def _finish_closing(self) -> None:
        """The last full buffer is open: what waits is fewer than K and cannot be summed any more."""
        host = self._require_host()
        if self.phase == "closing" and host.may_end:
            self.registry.enter("closed")
            host.closed = True

    def _end_epoch(self, frame: bytes) -> None:
        """The operator's signature ends an epoch for its participants; what the server says does not."""
        host = self._require_host()
        end = unpacked(frame, _CONTROL_BYTES)
        if not isinstance(end, EpochEnd):
            raise Problem(400, "Malformed", "that is not the end of an epoch")
        key = self.settings.operator_key
        if not Ed25519Verifier().verify(key, statement(end), end.signature):
            raise Problem(400, "BadSignature", "the end is not signed by the operator")
        if end.epoch != host.agreement.id:
            raise Problem(409, "WrongEpoch", "that is the end of another epoch")
        if self.phase != "closed":
            raise Problem(409, "NotClosed", f"the epoch is {self.phase}: close it first")
        self.registry.end(frame, end)

    def _start_epoch(self, order: StartEpoch) -> None:
        if self.registry.charter is not None and self.registry.charter.epoch == order.epoch:
            return
        if self.phase in ("open", "closing"):
            raise Problem(409, "EpochOpen", "close the present epoch first")
        agreement = self._accept(order.epoch)
        self._require_successor(agreement.epoch)
        for name, frame in order.credentials.items():
            _check_credential(agreement, name, frame)
        charter = Charter(epoch=order.epoch, phase="open")
        old, host = self.host, self._make_host(agreement, charter, self._model_for(agreement))
        self.registry.begin(charter, order.credentials)
        self._store.commit([Forget("initial-model", "")])
        self._store.flush()
        self.host = host
        if old is not None:
            self._archive(old)

    def _accept(self, frame: bytes) -> Agreement:
        try:
            epoch = unpack(frame, MAX_CONTROL_BYTES)
            if not isinstance(epoch, Epoch):
                raise Problem(400, "Malformed", "that is not an epoch")
            return accept(epoch, self.settings.operator_key, Ed25519Verifier())
        except BASecAggError as error:
            raise Problem(400, "BadEpoch", str(error)) from None

    def _require_successor(self, epoch: Epoch) -> None:
        number = self.host.agreement.epoch.number if self.host else 0
        version = self._next_version
        keys = {m.name: m.signing_key for m in self.registry.members.values() if not m.revoked}
        wrong = (
            (epoch.federation != self.settings.federation, "it is for another federation"),
            (epoch.server_key not in self._identities, "it names another server's key"),
            (epoch.number <= number, f"epoch {number} was here already, {epoch.number} is older"),
            (epoch.first != self._first(), f"it must begin with the model of version {version}"),
            (
                any(keys.get(holder.name) != holder.signing_key for holder in epoch.holders),
                "a holder is not a member, or has another key",
            ),
        )
        for is_wrong, reason in wrong:
            if is_wrong:
                raise Problem(409, "BadEpoch", reason)

    @property
    def _next_version(self) -> int:
        return self.host.published.version if self.host else 0

    def _next_model(self) -> bytes:
        """What the next epoch begins with: the operator's model if there is one since the last began."""
        given = self._store.read("initial-model", "")
        return given or (self.host.published.data if self.host else b"")

    def _first(self) -> Link:
        model, head = np.frombuffer(self._next_model(), MODEL_DTYPE), bytes(32)
        return first_link(
            model, self._next_version, self.host.published.head if self.host else head
        )

    def _model_for(self, agreement: Agreement) -> Model:
        data, size = self._next_model(), agreement.parameters.model_size
        if not data:
            raise Problem(409, "NoModel", "send the initial model first")
        if len(data) != 4 * size:
            raise Problem(409, "WrongModel", f"the model has {len(data) // 4} numbers, d = {size}")
        return np.frombuffer(data, MODEL_DTYPE)

    def _make_host(self, agreement: Agreement, charter: Charter, model: Model) -> EpochHost:
        host = EpochHost(
            agreement,
            self._identities[agreement.epoch.server_key],
            self._open(EPOCH + agreement.id.hex()),
            model,
            retries=self.settings.retries,
            keep=self.settings.keep_versions,
            notify=self._notify,
        )
        host.closing, host.closed = charter.phase != "open", charter.phase == "closed"
        return host

    def _resume_host(self) -> EpochHost | None:
        charter = self.registry.charter
        if charter is None:
            return None
        agreement = self._accept(charter.epoch)
        # The epoch's own store has the model by now; this one only says of which size it is.
        model = np.zeros(agreement.parameters.model_size, MODEL_DTYPE)
        return self._make_host(agreement, charter, model)

    def _archive(self, old: EpochHost) -> None:
        """Of an epoch that is over, only its ledger is kept."""
        number = old.agreement.epoch.number
        lines = [Persist(f"ledger:{number}", key, value) for key, value in old.ledger()]
        self._store.commit(lines)
        self._store.flush()
        old.erase()

    # --- time -------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(0.25, self.settings.answer_timeout / 4))
            await self._quietly(self._renew)
            host = self.host
            if host is None:
                continue
            if host.is_opening:
                await self._quietly(lambda: self._require_host().tick(self.settings.answer_timeout))
            if self.phase == "closing" and host.may_end:
                await self._quietly(self._finish_closing)

    def _renew(self) -> None:
        self._durable.renew()
        if self.host is not None:
            self.host.renew()

    async def _quietly(self, job: Callable[[], None]) -> None:
        """A job that the clock starts. If it fails the machine was rebuilt, and the clock tries again."""
        try:
            await self.worker.do(job)
        except LeaseLost as lost:
            self.lost = lost
        except BASecAggError as error:
            _LOG.warning("clock", extra={"fields": {"error": str(error)}})

    def _require_host(self) -> EpochHost:
        if self.host is None:
            raise Problem(503, "NoEpoch", "no epoch has begun yet", retry_after=2.0)
        return self.host


def _limit(kind: type[Message], parameters: ProtocolParameters) -> int:
    is_bulk = kind in (Shipment, Upload, Answer)
    return limit_for(kind, parameters) if is_bulk else _CONTROL_BYTES


def _check_credential(agreement: Agreement, name: str, frame: bytes) -> None:
    try:
        credential = unpack(frame, _CONTROL_BYTES)
        if not isinstance(credential, Credential):
            raise Problem(400, "Malformed", "that is not a credential")
        agreement.require_enrolled(credential, name)
    except BASecAggError as error:
        raise Problem(400, "BadCredential", str(error)) from None


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, or the time is over."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
