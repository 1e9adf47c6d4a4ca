"""A bench for single machines: a federation without drivers, whose every effect a test or measurement can see.

Server, holders and contributors are machines of their own, each with its own store, so that one of them can be
replaced, restarted or asked alone. `basecagg.Federation` is the real life: members with all that they do.
Machines are made when they are first needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SECRET_BYTES, SealingSecret, make_sealer
from basecagg.channels.unprotected import NoIdentity, NoSealing, NoVerifier
from basecagg.errors import Refused
from basecagg.maths.randomness import system_entropy
from basecagg.parameters import ProtocolParameters
from basecagg.parties.member import TO_CONTRIBUTORS
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, News, Released, Store, perform, refusal_reply
from basecagg.protocol.epoch import SERVER, Agreement, Seat, accept, draft_epoch, first_link
from basecagg.protocol.global_model import Model
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import Closing, Credential, Message, Parcel, Receipt, Suite
from basecagg.protocol.ports import Verifier
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.server import Server, ServerSettings
from basecagg.protocol.step_rule import PAPER_STEP, StepRule
from basecagg.storage.in_memory import MemoryStore

Machine: TypeAlias = Server | Holder | Contributor


class Address(NamedTuple):
    """Where a machine is: one name may be a holder and a contributor."""

    role: str
    name: str


AT_SERVER = Address("server", SERVER)


class Letter(Struct, frozen=True, gc=False):
    """One message on its way."""

    sender: str
    to: Address
    message: Message


@dataclass
class Station:
    """A machine with its store."""

    machine: Machine
    store: Store

    def receive(self, letter: Letter) -> list[Effect]:
        """Hand a message to the machine."""
        if isinstance(self.machine, Server):
            return self.machine.receive(letter.sender, letter.message)
        return self.machine.receive(letter.message)


class Loopback:
    """All machines of a federation, and the messages between them."""

    def __init__(self) -> None:
        """Start with nobody."""
        self.nodes: dict[Address, Station] = {}
        self.in_flight: deque[Letter] = deque()
        self.news: list[News] = []
        self.refusals: list[tuple[Address, Refused]] = []
        self.observers: list[Callable[[Letter], None]] = []

    @property
    def server(self) -> Server:
        """The server's machine."""
        machine = self.nodes[AT_SERVER].machine
        assert isinstance(machine, Server)
        return machine

    def add(self, address: Address, machine: Machine, store: Store) -> None:
        """Bring a machine online and let it take up its work; one that was there before is replaced."""
        self.nodes[address] = Station(machine, store)
        self.perform(address, machine.start())

    def perform(self, address: Address, effects: Sequence[Effect]) -> None:
        """Do what a machine wants done: first everything durable, then everything sent."""
        for send in perform(self.nodes[address].store, effects, self.news.append):
            for to in _destinations(send.recipient, send.message):
                self.post(Letter(address.name, to, send.message))

    def post(self, letter: Letter) -> None:
        """Put a message on its way, in sight of the observers."""
        for observe in self.observers:
            observe(letter)
        self.in_flight.append(letter)

    def run(self) -> None:
        """Deliver until nothing is on its way."""
        while self.in_flight:
            letters, self.in_flight = list(self.in_flight), deque()
            # Stable: each machine's letters keep their order.
            letters.sort(key=lambda letter: letter.to)
            for role, mail in groupby(letters, key=lambda letter: letter.to.role):
                self.deliver_to_all(role, mail)

    def deliver_to_all(self, role: str, mail: Iterable[Letter]) -> None:
        """Hand letters to machines of one role, sorted by machine."""
        for address, letters in groupby(mail, key=lambda letter: letter.to):
            self.deliver(address, letters)

    def deliver(self, address: Address, mail: Iterable[Letter]) -> None:
        """Hand letters to one machine; to one that is offline they are lost."""
        if address not in self.nodes:
            return
        for batched, letters in groupby(
            mail, key=lambda each: isinstance(each.message, Parcel | Receipt)
        ):
            if batched:
                self._handle(address, letters)
            else:
                for letter in letters:
                    self._handle(address, [letter])

    def _handle(self, address: Address, letters: Iterable[Letter]) -> None:
        node, effects = self.nodes[address], list[Effect]()
        for letter in letters:
            try:
                effects += node.receive(letter)
            except Refused as refusal:
                self.refusals.append((address, refusal))
                reply = refusal_reply(letter.sender, letter.message, refusal)
                effects += [] if reply is None else [*refusal.also, reply]
        if isinstance(node.machine, Holder):
            effects += node.machine.acknowledge()
        self.perform(address, effects)


def _destinations(recipient: str, message: Message) -> list[Address]:
    """One, but what a contributor lost concerns it both as a contributor and as a holder."""
    to = [_destination(recipient, type(message))]
    burned = message.masks if isinstance(message, Closing) and message.outcome == "burned" else ()
    if any(mask.contributor == recipient for mask in burned):
        to.append(Address("contributor", recipient))
    return to


@lru_cache(maxsize=1 << 14)
def _destination(recipient: str, kind: type[Message]) -> Address:
    if recipient == SERVER:
        return AT_SERVER
    return Address("contributor" if issubclass(kind, TO_CONTRIBUTORS) else "holder", recipient)


class Federation:
    """All machines of one epoch, in memory, and a network that loses nothing.

    With `cryptography=False` nothing is sealed or signed: arithmetic only.
    """

    def __init__(
        self,
        parameters: ProtocolParameters,
        initial_model: Model | None = None,
        *,
        holders: Sequence[str] | None = None,
        suite: Suite = "x25519",
        cryptography: bool = True,
        step: StepRule = PAPER_STEP,
        max_burns: int = 1,
        keep: int = 1,
        retries: int = 1,
        make_store: Callable[[Address], Store] = lambda address: MemoryStore(),
        network: Loopback | None = None,
        verifier: Verifier | None = None,
        entropy: Callable[[str], Callable[[int], bytes]] = lambda purpose: system_entropy,
        keeps_masks: bool = False,
    ) -> None:
        """Draft the epoch with fresh keys, and start the server and the holders.

        Holders are called user-0, user-1, … and the first model is all zeros, unless given.
        `entropy` gives each key and each contributor its own source of randomness; a simulation that must be
        repeatable replaces the operating system's. A contributor that is started again gives up its unused
        masks unless it `keeps_masks`, as in a simulation that goes on from a checkpoint.
        """
        self.network = network or Loopback()
        self._verifier = verifier
        self._entropy = entropy
        self._keeps_masks = keeps_masks
        self._cryptography = cryptography
        self._suite: Suite = suite
        self._make_store = make_store
        self._stores: dict[Address, Store] = {}
        self._retries = retries
        self._keep = keep
        if initial_model is None:
            initial_model = np.zeros(parameters.model_size, np.float32)
        self._initial_model = initial_model
        self._identities: dict[str, Identity | NoIdentity] = {}
        self._secrets: dict[str, SealingSecret | NoSealing] = {}
        self._credentials: dict[str, Credential] = {}
        names = holders or [f"user-{index}" for index in range(parameters.num_holders)]
        terms = {"parameters": parameters, "first": first_link(initial_model)}
        self.agreement = self._agree(names, step=step, max_burns=max_burns, **terms)
        for address in (AT_SERVER, *(Address("holder", name) for name in names)):
            self.start(address)

    # --- from updates to a sum ----------------------------------------------------------------

    def contribute(self, name: str, update: Model) -> None:
        """Let a user hide an update made from the newest model under a mask, and send it.

        An update is the model before − after training. It is on its way then; `run` brings it to the server.
        """
        if not self.contributor(name).is_ready:
            self.deal(name)
            self.network.run()
        self.submit(name, update, self.server.version, self.server.head)

    def run(self) -> list[Released]:
        """Deliver all that is on its way; the sums that were opened since the last time.

        All other news stays for `take_news`: masks that ended and why, buffers that were given up.
        """
        self.network.run()
        news = self.take_news()
        self.network.news = [each for each in news if not isinstance(each, Released)]
        return [each for each in news if isinstance(each, Released)]

    # --- machines and messages, one by one ------------------------------------------------------

    @property
    def server(self) -> Server:
        """The server's machine."""
        return self.network.server

    def contributor(self, name: str) -> Contributor:
        """The contributor of this name, enrolled and started when first asked for."""
        address = Address("contributor", name)
        if address not in self.network.nodes:
            self.start(address)
        machine = self.network.nodes[address].machine
        assert isinstance(machine, Contributor)
        return machine

    def holder(self, name: str) -> Holder:
        """The holder of this name."""
        machine = self.network.nodes[Address("holder", name)].machine
        assert isinstance(machine, Holder)
        return machine

    def start(self, address: Address, store: Store | None = None) -> None:
        """Build a machine from its store, or from the given one, and let it take up its work.

        Doing so again is a restart: everything that was only in memory is lost.
        """
        if store is not None:
            self._stores[address] = store
        elif address not in self._stores:
            self._stores[address] = self._make_store(address)
        machine = self._build(address, self._stores[address])
        self.network.add(address, machine, self._stores[address])
        if isinstance(machine, Holder) and AT_SERVER in self.network.nodes:
            self.network.perform(AT_SERVER, self.server.reconnect(address.name))

    def stop(self, address: Address) -> None:
        """Take a machine offline; its store stays for `start`."""
        del self.network.nodes[address]

    def deal(self, name: str) -> None:
        """Let a contributor deal one mask, unless each comes with its update."""
        contributor = self.contributor(name)
        if self.agreement.parameters.one_visit:
            return
        self.network.perform(Address("contributor", name), contributor.deal(self.server.version))

    def submit(self, name: str, update: Model, base_version: int, head: bytes) -> None:
        """Let a contributor mask and upload one update. What it would not upload itself, it takes for fresh."""
        age, most = self.server.version - base_version, self.agreement.parameters.max_staleness
        version = self.server.version if 0 <= age <= most else base_version
        effects = self.contributor(name).submit(update, base_version, head, version)
        self.network.perform(Address("contributor", name), effects)

    def take_news(self) -> list[News]:
        """What the machines reported since the last time."""
        news, self.network.news = self.network.news, []
        return news

    # --- keys and machines --------------------------------------------------------------------

    def _agree(self, names: Sequence[str], **terms: Any) -> Agreement:
        operator, enrolment, server = (
            self.identity(role) for role in ("operator", "enrolment", "server")
        )
        epoch = draft_epoch(
            federation="loopback",
            holders=[
                Seat(name, self.identity(name).public_key, self._secret(name).public_key)
                for name in names
            ],
            server_key=server.public_key,
            enrolment_key=enrolment.public_key,
            operator=operator,
            suite=self._suite,
            **terms,
        )
        default = Ed25519Verifier() if self._cryptography else NoVerifier()
        return accept(epoch, operator.public_key, self._verifier or default)

    def identity(self, name: str) -> Identity | NoIdentity:
        """The signing identity of a role or participant."""
        if name not in self._identities:
            secret = self._entropy(f"signing/{name}")(32)
            identity = Identity.from_secret(secret) if self._cryptography else NoIdentity(secret)
            self._identities[name] = identity
        return self._identities[name]

    def _secret(self, name: str) -> SealingSecret | NoSealing:
        if name not in self._secrets:
            secret = self._entropy(f"sealing/{name}")(SECRET_BYTES[self._suite])
            sealing = SealingSecret(self._suite, secret) if self._cryptography else NoSealing()
            self._secrets[name] = sealing
        return self._secrets[name]

    def _build(self, address: Address, store: Store) -> Machine:
        builders: dict[str, Callable[[str, Store], Machine]] = {
            "server": self._build_server,
            "holder": self._build_holder,
            "contributor": self._build_contributor,
        }
        return builders[address.role](address.name, store)

    def _build_server(self, name: str, store: Store) -> Server:
        recovery = Recovery(self.agreement, self.identity(name), store, self._retries, self._keep)
        settings = ServerSettings.of(self.agreement)
        return Server(settings, recovery, store, self._initial_model)

    def _build_holder(self, name: str, store: Store) -> Holder:
        index = self.agreement.holder_names.index(name)
        return Holder(self.agreement, index, self.identity(name), self._secret(name), store)

    def _build_contributor(self, name: str, store: Store) -> Contributor:
        identity = self.identity(name)
        if name not in self._credentials:
            self._credentials[name] = enrol(
                self.identity("enrolment"), self.agreement.id, name, identity.public_key
            )
        sealer = make_sealer(self._suite) if self._cryptography else NoSealing()
        credential, entropy = self._credentials[name], self._entropy(f"masks/{name}")
        return Contributor(
            self.agreement,
            credential,
            identity,
            sealer,
            store,
            entropy=entropy,
            keeps_masks=self._keeps_masks,
        )
