"""One honest participant, Ann, across epochs; everybody else in her town is a puppet of the test.

The operator's key signs whatever epoch is asked for, the other holders endorse whatever they are shown, and the
contributors deal and sign as they are told. Only Ann is real: her machine, her store and her anchor.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from harness import small

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingKeys
from basecagg.channels.wire import MAX_CONTROL_BYTES, unpack
from basecagg.errors import ChannelError, Refused
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, News, Send, perform, refusal_reply, sends_of
from basecagg.protocol.epoch import NEVER, SERVER, Agreement, Epoch, Seat, draft_epoch
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.mailroom import _parcel
from basecagg.protocol.messages import (
    Answer,
    Certificate,
    CertifiedRequest,
    Closing,
    Credential,
    Endorsement,
    EpochEnd,
    History,
    Link,
    MaskName,
    Message,
    Parcel,
    Receipt,
    RecoveryRequest,
    Ticket,
    Upload,
    certificate_of,
    encode,
    endorsement_of,
    signed,
)
from basecagg.protocol.participant import Participant, Pins
from basecagg.protocol.short_letters import shortened
from basecagg.protocol.stored import HeldShare, Progress, load, parse
from basecagg.storage import disk
from basecagg.storage.anchor import Mark
from basecagg.storage.batch import Batch
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.participant_store import ParticipantStore

ANN, NOW = "ann", 1_000_000
OTHERS = ("bob", "cat", "dan")
DEALERS = ("w", "x", "y", "z")
PARAMETERS = small(weights="own")
MODEL = bytes(32)
"""The hash of every version's model: nobody trains here."""
VERIFIER = Ed25519Verifier()
SUITE = SealingKeys("x25519")
STRANGER = Identity.create()


@pytest.fixture
def quick(monkeypatch):
    """No waiting for the disk: nothing here cuts the power. Without a log one file is the whole store."""
    monkeypatch.setattr(disk, "PRAGMAS", ("journal_mode = MEMORY", "synchronous = OFF"))
    monkeypatch.setattr(disk, "sync", lambda descriptor: None)
    monkeypatch.setattr(disk, "sync_folder", lambda folder: None)


class Town:
    """Operator, server, the other holders and the dealers: all of them say what they are told to say."""

    def __init__(self, federation: str = "town") -> None:
        self.federation = federation
        self.identities = {
            name: Identity.create()
            for name in ("operator", "enrolment", "server", ANN, *OTHERS, *DEALERS)
        }
        self._sealing = {name: SUITE.create().public_key for name in OTHERS}

    def key(self, name: str) -> bytes:
        return self.identities[name].public_key

    def pins(self, **changes) -> Pins:
        told = {"federation": self.federation, "name": ANN, "signing_key": self.key(ANN)}
        return Pins(**told | {"operator_key": self.key("operator")} | changes)

    # --- what the operator signs --------------------------------------------------------------------

    def epoch(self, sealing_key: bytes, number: int = 1, *, ends=NEVER, **changes) -> Epoch:
        """An epoch in which Ann is holder 0 with this sealing key."""
        others = [Seat(name, self.key(name), self._sealing[name]) for name in OTHERS]
        told = {
            "federation": self.federation,
            "parameters": PARAMETERS,
            "holders": [Seat(ANN, self.key(ANN), sealing_key), *others],
            "server_key": self.key("server"),
            "enrolment_key": self.key("enrolment"),
            "operator": self.identities["operator"],
            "first": Link(0, MODEL, bytes(32), bytes(32)),
        }
        return draft_epoch(**told | changes, number=number, ends=ends)

    def credential(self, epoch: Epoch, name: str = ANN, key: bytes | None = None) -> Credential:
        return enrol(self.identities["enrolment"], epoch.id, name, key or self.key(name))

    def end(self, epoch: Epoch, by: str = "operator") -> EpochEnd:
        return signed(EpochEnd(epoch.id, 0, MODEL), self.identities[by])

    # --- what the server and its friends say ----------------------------------------------------------

    def deal(self, epoch: Epoch, dealer: str, version: int = 0) -> tuple[Parcel, Ticket]:
        """Ann's share of a fresh mask, and the ticket of an update under it."""
        identity, agreement = self.identities[dealer], Agreement(epoch, VERIFIER)
        contributor = Contributor(
            agreement, self.credential(epoch, dealer), identity, SUITE.sealer(), MemoryStore()
        )
        (shipment,) = (send.message for send in sends_of(contributor.deal(version)))
        (mask,) = shipment.dealing.masks
        parcel = _parcel(shipment.dealing, shipment.leaves, 0, shipment.sealed[0])
        return parcel, self.ticket(epoch, mask, version)

    def ticket(self, epoch: Epoch, mask: MaskName, version: int = 0, previous=None) -> Ticket:
        head = self.history(epoch, version, previous).head
        ticket = Ticket(epoch.id, mask, version, head, bytes(32))
        return signed(ticket, self.identities[mask.contributor])

    def history(self, epoch: Epoch, version: int, previous=None) -> History:
        """The models that the server tells of: version 1 was made from what the certificate is for."""
        history = Agreement(epoch, VERIFIER).beginning
        for v in range(1, version + 1):
            made_from = previous.digest if previous and previous.version == v - 1 else bytes(32)
            history = history.after(Link(v, MODEL, bytes(32), made_from), 10)
        return history

    def request(
        self, epoch: Epoch, tickets: Iterable[Ticket], version=0, previous=None, attempt=0
    ) -> RecoveryRequest:
        members = tuple(sorted(tickets, key=lambda ticket: ticket.mask))
        history = self.history(epoch, version, previous)
        request = RecoveryRequest(epoch.id, version, attempt, history, members, previous)
        return signed(request, self.identities["server"])

    def certificate(self, request: RecoveryRequest, *hers: Endorsement) -> Certificate:
        """What the other holders endorse, with her endorsement if there is one."""
        votes = [*hers, *(self.vote(request, index) for index in range(1, 1 + len(OTHERS)))]
        signatures = tuple((vote.holder, vote.signature) for vote in votes)
        return certificate_of(request, signatures)

    def vote(self, request: RecoveryRequest, holder: int) -> Endorsement:
        return signed(endorsement_of(request, holder), self.identities[(ANN, *OTHERS)[holder]])

    def certified(self, request: RecoveryRequest, *hers: Endorsement) -> CertifiedRequest:
        return CertifiedRequest(request, self.certificate(request, *hers))

    def closing(self, epoch: Epoch, *masks: MaskName) -> Closing:
        return signed(Closing(epoch.id, 0, masks, "burned"), self.identities["server"])

    def receipts(self, epoch: Epoch, *masks: MaskName) -> list[Receipt]:
        """All holders have their shares of Ann's masks, Ann as well."""
        names = enumerate((ANN, *OTHERS))
        return [signed(Receipt(epoch.id, i, masks), self.identities[name]) for i, name in names]

    def everything(self, epoch: Epoch) -> Iterator[Message]:
        """The parcels; sums of every three of four masks, now and later, with certificates; what ends them."""
        dealt = [self.deal(epoch, dealer) for dealer in DEALERS]
        late = [self.deal(epoch, dealer, 6) for dealer in DEALERS[:3]]
        yield from (parcel for parcel, _ in (*dealt, *late))
        tickets = [ticket for _, ticket in dealt]
        sums = [self.request(epoch, three) for three in combinations(tickets, 3)]
        previous = self.certificate(sums[0])
        sums += [self.request(epoch, three, 1, previous) for three in (tickets[:3], tickets[1:])]
        far = self.certificate(self.request(epoch, tickets[:3], 6, previous))
        sums.append(self.request(epoch, [ticket for _, ticket in late], 7, far))
        for request in sums:
            yield request
            yield shortened(request)
            yield self.certificate(request)
            yield self.certified(request)
        yield self.closing(epoch, tickets[0].mask, tickets[3].mask)
        yield self.end(epoch)
        yield self.credential(epoch)


class Judge:
    """Holds all that Ann ever says, and what she is, against what must never weaken. It forgets nothing."""

    RANKS = ("unknown", "announced", "joined", "destroyed")
    SLOTS = ("unknown", "held", "endorsed", "spent", "closed")

    def __init__(self) -> None:
        self.requests: dict[bytes, RecoveryRequest] = {}
        self._said: dict[object, object] = {}
        self.number = 0
        self.keys: dict[str, str] = {}
        self.remember(b"", {}, set(), set())

    def remember(
        self, epoch: bytes, slots: dict[str, HeldShare], votes: set[str], fingerprints: set[str]
    ) -> None:
        self.epoch, self.slots, self.votes = epoch, slots, votes
        self.fingerprints = fingerprints

    # --- what she says --------------------------------------------------------------------------------

    def hear(self, message: Message) -> None:
        """A mask of an epoch has one endorsement, one answer and one upload, ever."""
        if isinstance(message, Upload):
            self._one("uploads", message.ticket.mask, encode(message))
        if isinstance(message, Answer | Endorsement):
            for mask in self.requests[message.digest].masks:
                kind = "answers" if isinstance(message, Answer) else "endorsements"
                self._one(kind, (message.epoch, mask), encode(message))

    def _one(self, kind: str, about: object, said: object) -> None:
        assert self._said.setdefault((kind, about), said) == said, f"two different {kind}"

    # --- what she is ----------------------------------------------------------------------------------

    def look(self, ann: Ann) -> None:
        """Compare with the last look; after `excuse` with what her files had by then."""
        store, states = ann.store, ann.machine.keys.states()
        assert ann.machine.number >= self.number, "the number fell"
        for key, state in {**dict.fromkeys(self.keys, "destroyed"), **states}.items():
            before = self.keys.get(key, "unknown")
            assert self.RANKS.index(state) >= self.RANKS.index(before), f"a key that was {before}"
            self.keys[key] = state
        self.number = ann.machine.number
        epoch = store.read("epoch", "") or b""
        slots = load(store, "held", HeldShare)
        votes, fingerprints = set(store.keys("vote")), set(store.keys("sent"))
        assert fingerprints >= self.fingerprints, "a fingerprint is forgotten"
        if epoch == self.epoch:
            assert votes >= self.votes, "a vote is forgotten"
            self._compare(slots, ann)
        self.remember(epoch, slots, votes, fingerprints)

    def _compare(self, slots: dict[str, HeldShare], ann: Ann) -> None:
        for key, was in self.slots.items():
            if key in slots:
                states = (slots[key].state, was.state)
                assert self.SLOTS.index(states[0]) >= self.SLOTS.index(states[1]), (
                    f"a slot that was {was.state}"
                )
                assert was.digest in (b"", slots[key].digest) or slots[key].state != "endorsed"
            else:
                progress = parse(ann.store.read("progress", "") or b"", Progress)
                assert was.name.expires < progress.version, f"what was {was.state} is forgotten"

    def excuse(self, ann: Ann, *, number: int = 0) -> None:
        """Her files were replaced: only what is in the new ones can be known. Keys and words still count."""
        store = ann.store
        slots = load(store, "held", HeldShare)
        votes, sent = set(store.keys("vote")), set(store.keys("sent"))
        self.remember(store.read("epoch", "") or b"", slots, votes, sent)
        self.number = min(self.number, number)


class PowerCutError(Exception):
    """Ann's machine died here."""


class Ann:
    """The participant with a store and an anchor in a folder. What she sends is kept in `sent`."""

    def __init__(self, town: Town, folder: Path, *, namespace: str = "participant") -> None:
        folder.mkdir(exist_ok=True)
        self.town, self.folder, self.namespace = town, folder, namespace
        self.floor = LocalFloor()
        self.pins = town.pins()
        self.now = NOW
        self.judge = Judge()
        self.cut = ""
        """Where the power fails at the next commit: 'before' it, 'between' store and anchor, 'after' both."""
        self.sent: list[Message] = []
        self.news: list[News] = []
        self.refusals: list[Refused] = []
        self.start()

    # --- her machine ----------------------------------------------------------------------------------

    def open(self) -> None:
        self.store = ParticipantStore(
            self.path, self.namespace, anchor_folder=self.folder / "anchors"
        )
        self._whole, self.store._write = self.store._write, self._write  # type: ignore[method-assign]
        signer = self.town.identities[ANN]
        self.machine = Participant(self.pins, signer, SUITE, VERIFIER, self.store, floor=self.floor)

    def _write(self, batch: Batch, mark: Mark) -> None:
        """What the store does with a commit, unless the power fails."""
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise PowerCutError
        if cut == "between":
            self.store._drop_anchor = lambda: None  # type: ignore[method-assign]
        self._whole(batch, mark)
        if cut:
            raise PowerCutError

    def start(self) -> list[Message]:
        self.open()
        return self.do(self.machine.start(self.now))

    def restart(self) -> list[Message]:
        self.store.close()
        return self.start()

    def do(self, effects: Sequence[Effect]) -> list[Message]:
        """Carry out effects; return what was sent."""
        return self._say(perform(self.store, effects, self.news.append))

    def _say(self, sends: Sequence[Send]) -> list[Message]:
        messages = [send.message for send in sends]
        self.sent += messages
        for message in messages:
            self.judge.hear(message)
        return messages

    def hear(self, *messages: Message) -> list[Message]:
        """Letters from the server, as every driver hands them over; return what she sends."""
        for message in messages:
            request = message.request if isinstance(message, CertifiedRequest) else message
            if isinstance(request, RecoveryRequest):
                self.judge.requests[request.digest] = request
        return [sent for message in messages for sent in self._hear_one(message)]

    def _hear_one(self, message: Message) -> list[Message]:
        try:
            effects = list(self.machine.receive(message))
        except Refused as refusal:
            self.refusals.append(refusal)
            reply = refusal_reply(SERVER, message, refusal)
            effects = [] if reply is None else [reply]
        return self.do([*effects, *self.machine.acknowledge()])

    def hear_bytes(self, frame: bytes) -> None:
        with suppress(ChannelError):
            message = unpack(frame, MAX_CONTROL_BYTES)
            if isinstance(message, Epoch):
                self.do(self.machine.offer(message))
            else:
                self.hear(message)

    def announce(self, *, another: bool = False) -> bytes:
        """A sealing key of hers for the next epoch."""
        (message,) = self.do(self.machine.announce(another=another))
        return message.sealing_key

    def offer(self, epoch: Epoch, credential: Credential | None = None) -> News | None:
        """What she makes of an epoch: the last news of it."""
        before = len(self.news)
        self.do(self.machine.offer(epoch, credential))
        return self.news[-1] if len(self.news) > before else None

    def tick(self, now: int) -> None:
        self.now = now
        self.do(self.machine.tick(now))

    def join(self, number: int = 1, **changes) -> Epoch:
        """An epoch in which she holds shares and contributes."""
        epoch = self.town.epoch(self.announce(), number, **changes)
        self.offer(epoch, self.town.credential(epoch))
        return epoch

    def ready_mask(self, epoch: Epoch) -> None:
        """Deal one mask; all holders confirm it."""
        (shipment,) = self.do(self.machine.working().deal(0))
        self.hear(*self.town.receipts(epoch, *shipment.dealing.masks))

    def submit(self, update: np.ndarray) -> list[Message]:
        return self.do(self.machine.working().submit(update, 0, MODEL, 0))

    # --- her files ------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.folder / "state.db"

    @property
    def anchor(self) -> Path:
        return self.store._anchor.path

    def copy(self) -> tuple[bytes, bytes]:
        """Her store and her anchor as they are now. Needs `quick`: one file is all of the store."""
        return self.path.read_bytes(), self.anchor.read_bytes()

    def restore(self, store: bytes | None = None, anchor: bytes | None = None) -> list[Message]:
        """Put these in place of the present ones (b"" deletes; None leaves alone), and start again."""
        self.replace(store, anchor)
        return self.start()

    def replace(self, store: bytes | None, anchor: bytes | None) -> None:
        self.store.close()
        for path, content in ((self.path, store), (self.anchor, anchor)):
            if content is not None:
                path.unlink(missing_ok=True)
            if content:
                path.write_bytes(content)

    def lose_everything(self) -> list[Message]:
        """A new disk: neither store nor anchor; the identity came back from a backup."""
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        return self.start()

    # --- what negative controls do otherwise ----------------------------------------------------------

    def hear_of_another_epoch(self) -> None:
        """An unsigned word: nothing happens."""

    def keep_aside(self) -> object:
        """Before her files are replaced: nothing of hers is anywhere else."""

    def put_back(self, kept: object) -> None:
        """Afterwards: so there is nothing to put back."""
