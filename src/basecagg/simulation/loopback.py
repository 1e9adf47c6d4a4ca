"""A network in memory: it moves effects between the machines, and does nothing else.

Messages wait in `in_flight` until they are delivered, so whoever drives the loopback decides what is late,
lost, doubled or out of order. `run` delivers everything, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from basecagg.errors import Refused
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Effect, News, Store, perform
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.holder import Holder
from basecagg.protocol.letters import BATCHED, answered
from basecagg.protocol.messages import Closing, Message
from basecagg.protocol.participant import TO_CONTRIBUTORS
from basecagg.protocol.server import Server

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
        for batched, letters in groupby(mail, key=lambda each: isinstance(each.message, BATCHED)):
            if batched:
                self._handle(address, letters)
            else:
                for letter in letters:
                    self._handle(address, [letter])

    def _handle(self, address: Address, letters: Iterable[Letter]) -> None:
        node, effects = self.nodes[address], list[Effect]()

        def refused(_: Message, refusal: Refused) -> None:
            self.refusals.append((address, refusal))

        for letter in letters:
            receive = partial(node.receive, letter)
            effects += answered(letter.sender, letter.message, receive, refused)
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
