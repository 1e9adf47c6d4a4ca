"""A federation on the bench: crashes on demand, and a judge who sees all that is sent, written and opened.

The judge knows every update as plain integers and adds them up by itself. It shares no arithmetic with the
machines, and it outlives them: what was durable or sent before a crash still counts after it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np

from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.buffer import MAX_WAITING_BUFFERS
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import (
    Abandoned,
    Effect,
    MaskEnded,
    Released,
    Send,
    Store,
    news_of,
    sends_of,
    writes_of,
)
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Answer,
    Certificate,
    CertifiedRequest,
    Contribution,
    Endorsement,
    History,
    MaskName,
    RecoveryRequest,
    ShortRequest,
    Ticket,
    Upload,
    Verdict,
    encode,
)
from basecagg.protocol.server import Server
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore
from reproduction.bench import AT_SERVER, Address, Federation, Letter, Loopback

LEVELS = 2**8  # c_l: a power of two, so that k / LEVELS is exact and is quantised to k again
WEIGHTS = 2**4  # c_g


def small(
    consistency: str = "certified", weights: str = "field", **changes: object
) -> ProtocolParameters:
    """Four holders, one may be gone; sums of three; masks and updates that age quickly.

    With field weights a sum is of any versions; with own weights, if it is certified, of one.
    """
    own = weights == "own"
    chosen = {
        "num_holders": 4,
        "recovery_threshold": 2 if consistency == "certified" else 3,
        "max_colluders": 1,
        "max_dropouts": 1,
        "buffer_size": 3,
        "model_size": 5,
        "max_staleness": 2,
        "mask_lifetime": 6,
        "update_levels": LEVELS,
        "weights": weights,
        "weight_levels": None if own else WEIGHTS,
        "staleness": polynomial(1.0),
        "consistency": consistency,
        "min_per_version": None if own else 1,
    }
    return ProtocolParameters(**(chosen | changes))  # type: ignore[arg-type]


def once(consistency: str = "certified", **changes: object) -> ProtocolParameters:
    """The same with masks from keys: contributors come once."""
    return small(consistency, "own", masks="keys", **changes)


class Crash(Exception):  # noqa: N818 - it is what happens, not what went wrong
    """A machine died here."""


def _is_burned(effect: Effect) -> bool:
    """Whether it tells a contributor that its update is lost: with its whole buffer, or alone to make room."""
    told = effect.message if isinstance(effect, Send) else None
    return isinstance(told, Verdict) and told.outcome == "burned"


def lengthened(
    short: ShortRequest, history: History, previous: Certificate | None
) -> RecoveryRequest | None:
    """The long form of a short request, if it is about this history and certificate."""
    heads = history.heads
    if history.last != short.version or any(t.base_version not in heads for t in short.tickets):
        return None
    tickets = tuple(
        Ticket(
            epoch=short.epoch,
            mask=MaskName(t.contributor, t.serial, t.expires),
            base_version=t.base_version,
            head=heads[t.base_version],
            upload_hash=t.upload_hash,
            staleness=t.staleness,
            signature=t.signature,
        )
        for t in short.tickets
    )
    slot = short.version, short.attempt
    return RecoveryRequest(short.epoch, *slot, history, tickets, previous, short.signature)


class Judge:
    """Holds the whole history against the protocol's promises."""

    def __init__(self, parameters: ProtocolParameters) -> None:
        self.parameters = parameters
        self.letters: list[Letter] = []
        self.updates: dict[MaskName, tuple[list[int], int]] = {}
        self.uploads: dict[MaskName, set[bytes]] = defaultdict(set)
        self.tickets: dict[MaskName, Ticket] = {}
        self.requests: dict[bytes, RecoveryRequest] = {}
        self.beginning = History(0, bytes(32))
        self.certificates: dict[int, Certificate] = {}
        self._certificates: list[Certificate | None] = [None]
        self.endorsements: dict[bytes, set[int]] = defaultdict(set)
        self.endorsed: dict[tuple[MaskName, int], set[bytes]] = defaultdict(set)
        self.answers: dict[tuple[MaskName, int], set[bytes]] = defaultdict(set)
        self.sums: dict[MaskName, set[bytes]] = defaultdict(set)
        self.admitted: set[MaskName] = set()
        self.parked: set[MaskName] = set()
        self.opened: set[MaskName] = set()
        self.burned: set[MaskName] = set()
        self.ended: dict[MaskName, str] = {}
        self.released: list[Released] = []
        self.models: dict[int, bytes] = {}
        self._versions: dict[Address, int] = {}

    # --- what happens -----------------------------------------------------------------------------

    def submitted(self, mask: MaskName, integers: Sequence[int], base_version: int) -> None:
        self.updates[mask] = (list(integers), base_version)

    def sent(self, letter: Letter) -> None:
        self.letters.append(letter)
        message = letter.message
        if isinstance(message, Upload | Contribution):
            self.tickets[message.ticket.mask] = message.ticket
            self._one(self.uploads[message.ticket.mask], encode(message), "uploads of a mask")
        elif isinstance(message, RecoveryRequest):
            self.requests[message.digest] = message
        elif isinstance(message, ShortRequest):
            self.requests[message.digest] = self._in_full(message)
        elif isinstance(message, CertifiedRequest):
            self._certified(message.certificate)
        elif isinstance(message, Certificate):
            self._certified(message)
        elif isinstance(message, Endorsement):
            self._endorsed(message)
        elif isinstance(message, Answer):
            self._answered(message)

    def _certified(self, certificate: Certificate) -> None:
        self.certificates[certificate.version] = certificate
        if certificate not in self._certificates:
            self._certificates.append(certificate)

    def _in_full(self, short: ShortRequest) -> RecoveryRequest:
        """The one request with this digest that can be made from all that holders were sent before."""
        known, link, most = self.requests.values(), short.link, self.parameters.max_staleness
        longer = [
            r.history.after(link, most) for r in known if link and r.version == link.version - 1
        ]
        same = [r.history for r in known if r.version == short.version]
        found = {
            request.digest: request
            for history in (self.beginning, *same, *longer)
            for previous in self._certificates
            if (request := lengthened(short, history, previous)) is not None
        }
        assert short.digest in found, "a short request that nobody can follow"
        return found[short.digest]

    def _endorsed(self, endorsement: Endorsement) -> None:
        self.endorsements[endorsement.digest].add(endorsement.holder)
        for mask in self.requests[endorsement.digest].masks:
            known = self.endorsed[mask, endorsement.holder]
            self._one(known, endorsement.digest, "endorsements of a mask by a holder")

    def _answered(self, answer: Answer) -> None:
        for mask in self.requests[answer.digest].masks:
            known = self.answers[mask, answer.holder]
            self._one(known, encode(answer), "answers for a mask by a holder")
            if self.parameters.consistency == "certified":
                self._one(self.sums[mask], answer.digest, "sums that a mask was answered in")

    def durable(self, effects: Sequence[Effect]) -> None:
        """These effects are on the disk: whether or not anybody is told of them, they have happened."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Verdict):
                self._ruled(effect.message)
            elif isinstance(effect, Released):
                self._opened(effect)
            elif isinstance(effect, Abandoned):
                self._over(effect.members, self.burned)
            elif isinstance(effect, MaskEnded):
                self.ended.setdefault(effect.mask, effect.state)
        burned = [e.message.mask for e in effects if _is_burned(e)]
        late = [mask for mask in burned if mask in self.admitted and mask not in self.burned]
        self._over(late, self.burned)

    def _ruled(self, verdict: Verdict) -> None:
        mask = verdict.mask
        if verdict.outcome == "parked":
            assert mask not in self.admitted | self.opened | self.burned, (
                "what was admitted is parked"
            )
            self.parked.add(mask)
            return
        self.parked.discard(mask)
        if verdict.outcome == "admitted":
            self.admitted.add(mask)
        elif verdict.outcome == "refused" and mask.expires >= len(self.released):
            assert mask not in self.admitted, "an admitted update was refused afterwards"

    def _opened(self, released: Released) -> None:
        """Σ s̄·Q(Δ), in Python's own integers, must be what the server opened: with keys but for K errors."""
        p, version = self.parameters, released.version
        assert version == len(self.released), "a version was skipped or opened twice"
        assert len(released.members) == p.buffer_size
        assert len({mask.contributor for mask in released.members}) == p.buffer_size
        self._over(released.members, self.opened)
        total = [0] * p.model_size
        told = zip(released.members, released.base_versions, released.weights, strict=True)
        for mask, base_version, weight in told:
            integers, trained_from = self.updates[mask]
            assert base_version == trained_from
            assert weight in self._plausible_weights(version - trained_from)
            total = [t + int(weight * k) for t, k in zip(total, integers, strict=True)]
        found = [Fraction(float(x)) * LEVELS for x in released.weighted_sum]
        most = p.buffer_size * p.error_reach
        errors = [abs(x - t) for x, t in zip(found, total, strict=True)]
        assert max(errors) <= most, "the opened sum is not Σ s̄·Q(Δ)"
        assert released.inconsistent_holders == ()
        self.released.append(released)

    def _plausible_weights(self, staleness: int) -> set[float]:
        """c_g/(1 + τ), rounded down or up; or 2^−t of some age τ̂ that is not above τ."""
        if self.parameters.weights == "own":
            return {2.0 ** -(1 + told).bit_length() * 2 for told in range(staleness + 1)}
        exact = Fraction(WEIGHTS, 1 + staleness)
        return {exact.__floor__(), exact.__ceil__()}

    def _over(self, masks: Iterable[MaskName], how: set[MaskName]) -> None:
        for mask in masks:
            assert mask in self.admitted, "an update was summed or burned that was never admitted"
            assert mask not in self.opened | self.burned, "an update was used up twice"
            how.add(mask)

    @staticmethod
    def _one(known: set[bytes], new: bytes, what: str) -> None:
        known.add(new)
        assert len(known) == 1, f"two different {what}"

    # --- what is true at any moment ---------------------------------------------------------------

    def inspect(self, nodes: Loopback) -> None:
        """Nothing admitted is missing, no version went back, no version has two models."""
        for address, node in nodes.nodes.items():
            if isinstance(node.machine, Server | Holder):
                version = node.machine.version
                assert version >= self._versions.get(address, 0), f"{address} went back"
                self._versions[address] = version
        if AT_SERVER in nodes.nodes:
            self.inspect_server(nodes.nodes[AT_SERVER].machine)

    def inspect_server(self, server: Server) -> None:
        assert server.version == len(self.released)
        for version in range(server.version + 1):
            published = server.head_of(version)
            if published is not None:
                known = self.models.setdefault(version, published)
                assert known == published, "one version has two models"
        waiting = {update.name for update in server.buffer.waiting}
        present = waiting | set(server.opening.outstanding())
        assert present == self.admitted - self.opened - self.burned, "an admitted update is lost"
        parked = {update.name for update in server.buffer.parked}
        assert parked == self.parked, "a parked update is lost"
        room = server.settings.buffer_size * MAX_WAITING_BUFFERS
        senders = [update.name.contributor for update in server.buffer.stored]
        assert len(set(senders)) == len(senders) <= room, "too many updates are stored"


class Bench(Loopback):
    """The loopback, counting every boundary between writes and sends, and crashing at the chosen ones."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge = judge
        self.observers.append(judge.sent)
        self.boundaries: list[Address] = []
        self.crash_at: set[int] = set()
        self.crashed: list[Address] = []
        self.after_crash: Callable[[], None] = lambda: None
        self.delivered: dict[int, Letter] = {}
        """What reached a machine that was there, by its identity."""

    def perform(self, address: Address, effects: Sequence[Effect]) -> None:
        writes, sends = writes_of(effects), sends_of(effects)
        if writes:
            self._boundary(address)
            super().perform(address, writes)
        self.judge.durable(effects)
        if effects:
            self._boundary(address)
        for send in sends:
            super().perform(address, [send])
            self._boundary(address)
        super().perform(address, news_of(effects))

    def _boundary(self, address: Address) -> None:
        self.boundaries.append(address)
        if len(self.boundaries) - 1 in self.crash_at:
            self.crashed.append(address)
            del self.nodes[address]
            raise Crash(address)

    def deliver(self, address: Address, mail: Iterable[Letter]) -> None:
        """As always; but what a dying machine was about to read is lost with it."""
        letters = list(mail)
        if address in self.nodes:
            self.delivered |= {id(letter): letter for letter in letters}
        try:
            super().deliver(address, letters)
        except Crash:
            self.after_crash()


class Dice:
    """A repeatable source of randomness for each purpose, which goes on where it was after a restart."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sources: dict[str, random.Random] = {}

    def __call__(self, purpose: str) -> Callable[[int], bytes]:
        source = self._sources.setdefault(purpose, random.Random(f"{self._seed}/{purpose}"))
        return source.randbytes


class Memory:
    """Stores that outlive their machines in memory."""

    def __init__(self) -> None:
        self.stores: dict[Address, Store] = {}

    def open(self, address: Address) -> Store:
        """The store of this machine, as it was left."""
        return self.stores.setdefault(address, MemoryStore())


class Disk:
    """Real stores, closed and opened again at every restart."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.stores: dict[Address, ParticipantStore | ServerStore] = {}

    def path(self, address: Address) -> Path:
        return self.folder / f"{address.role}-{address.name}.db"

    def open(self, address: Address) -> Store:
        """The store of this machine, read from its file."""
        self.close(address)
        self.stores[address] = store = (
            ServerStore(f"sqlite:///{self.path(address)}")
            if address == AT_SERVER
            else ParticipantStore(
                self.path(address), address.role, anchor_folder=self.folder / "anchors"
            )
        )
        return store

    def close(self, address: Address) -> None:
        if address in self.stores:
            self.stores.pop(address).close()

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *error: object) -> None:
        for address in list(self.stores):
            self.close(address)


class World:
    """A federation with its judge, and hands to play it."""

    def __init__(
        self,
        parameters: ProtocolParameters,
        *,
        seed: int = 0,
        cryptography: bool = False,
        stores: Memory | Disk | None = None,
        prompt: bool = False,
        **options: object,
    ) -> None:
        """With `prompt`, a machine that crashes is back at once; otherwise when all others are quiet."""
        self.parameters = parameters
        self.judge = Judge(parameters)
        self.network = Bench(self.judge)
        self.stores = stores or Memory()
        if prompt:
            self.network.after_crash = self.recover
        self._numbers = random.Random(seed)
        self._size = parameters.model_size
        self.now = 0.0
        self.federation = Federation(
            parameters,
            np.zeros(parameters.model_size, np.float32),
            cryptography=cryptography,
            network=self.network,
            entropy=Dice(seed),
            make_store=self.stores.open,
            **options,  # type: ignore[arg-type]
        )
        self.judge.beginning = self.federation.agreement.beginning

    @property
    def server(self) -> Server:
        return self.federation.server

    def online(self, role: str) -> list[Address]:
        return [address for address in self.network.nodes if address.role == role]

    def contributor(self, name: str) -> Contributor:
        """The contributor of this name, started when it is not there, even if it dies in the attempt."""
        address = Address("contributor", name)
        while address not in self.network.nodes:
            self.restart(address)
        return self.federation.contributor(name)

    # --- steps -------------------------------------------------------------------------------------

    def deal(self, name: str, count: int = 1) -> None:
        effects = self.contributor(name).deal(self.server.version, count)
        self.perform(Address("contributor", name), effects)

    def submit(self, name: str, base_version: int) -> None:
        """A random update on the grid of 4/c_l, some of it at the clip, trained from this version.

        Divided by two or four, as old updates are, it still is on the grid of 1/c_l.
        """
        most, dice = int(self.parameters.clip * LEVELS), self._numbers
        integers = [
            dice.choice((-most, most, dice.randrange(-most, most + 1, 4)))
            for _ in range(self._size)
        ]
        update = np.array(integers, np.float32) / np.float32(LEVELS)
        forgotten = bytes(32)
        trained_from = self.server.head_of(base_version) or forgotten
        known = min(self.server.version, base_version + self.parameters.max_staleness)
        contributor, version = self.contributor(name), max(base_version, known)
        effects = contributor.submit(update, base_version, trained_from, version)
        sent = [send.message for send in sends_of(effects)]
        (upload,) = (each for each in sent if isinstance(each, Upload | Contribution))
        self.judge.submitted(upload.ticket.mask, integers, base_version)
        self.perform(Address("contributor", name), effects)

    def tick(self, seconds: float) -> None:
        """So many seconds have passed by the server's clock; a holder is given one to answer."""
        self.now += seconds
        self.perform(AT_SERVER, self.server.tick(self.now, 1.0))

    def deadline(self) -> None:
        """The server's clock says that answers have been waited for long enough."""
        self.perform(AT_SERVER, self.server.deadline())

    def stop(self, address: Address) -> None:
        """Whatever was only in the machine's memory is lost."""
        del self.network.nodes[address]

    def restart(self, address: Address) -> None:
        """Build the machine from its store; whoever talks to it connects again."""
        self.network.nodes.pop(address, None)
        with suppress(Crash):
            self.federation.start(address, self.stores.open(address))
            if address == AT_SERVER:
                self.reconnect()

    def reconnect(self) -> None:
        """Everyone who is online speaks up: what was lost on the way is sent again."""
        for address in self.online("holder"):
            if AT_SERVER in self.network.nodes:
                self.perform(AT_SERVER, self.server.reconnect(address.name))
        for address in self.online("contributor"):
            self.perform(address, self.federation.contributor(address.name).reconnect())

    def settle(self) -> None:
        """Deliver until it is quiet, restarting whoever crashes."""
        self.recover()
        while self.network.in_flight:
            self.network.run()
            self.recover()

    def recover(self) -> None:
        """Restart whoever has crashed."""
        while self.network.crashed:
            self.restart(self.network.crashed.pop())

    def perform(self, address: Address, effects: Sequence[Effect]) -> None:
        with suppress(Crash):
            self.network.perform(address, effects)

    # --- training ----------------------------------------------------------------------------------

    def train(self, names: Sequence[str], until: int) -> None:
        """Let them deal and submit, the later ones from older models if m = 1, up to a version."""
        patience = 20 * until
        while self.server.version < until:
            for lag, name in enumerate(names):
                self.take_part(name, lag if self.parameters.min_per_version == 1 else 0)
                self.recover()
            self.settle()
            if self.server.is_opening:
                self.deadline()
                self.settle()
            self.judge.inspect(self.network)
            patience -= 1
            assert patience, f"training is stuck at version {self.server.version}"

    def take_part(self, name: str, lag: int = 0) -> None:
        """What an honest driver does for a contributor whenever it looks: use a mask, or deal one."""
        contributor = self.contributor(name)
        states = contributor.states().values()
        if "uploaded" in states:
            return
        if not contributor.is_ready:
            if "dealt" not in states:
                self.deal(name, 1 + lag % 2)
            return
        version = self.server.version
        old = max(0, version - lag % self.parameters.max_staleness)
        allowed = [base for base in (old, version) if contributor.may_train_from(base)]
        if allowed:
            self.submit(name, allowed[0])
