"""An epoch of real parties and nothing else: letters go from one to the other until none is left."""

from __future__ import annotations

from collections import deque

import numpy as np
from parties import SIZE, USERS, parameters

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.sealing import SealingKeys
from basecagg.parameters import ProtocolParameters
from basecagg.parties.epoch_server import EpochServer
from basecagg.parties.member import Member, Pins
from basecagg.protocol.effects import News, Released, Send
from basecagg.protocol.epoch import SERVER, Seat, accept, draft_epoch, first_link
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Message
from basecagg.storage.in_memory import MemoryStore

MODEL = np.zeros(SIZE, np.float32)


class WholeEpoch:
    """A server and seven members, K = 3, each with a store in memory; whoever is `away` gets no letters."""

    def __init__(self, terms: ProtocolParameters | None = None, **changes) -> None:
        terms = terms or parameters(**changes)
        # Everybody wrote it down where updates are in clear.
        self.floor = LocalFloor(allow_clear=not terms.is_masked)
        self.identities = {n: Identity.create() for n in (*USERS, SERVER, "operator", "enrolment")}
        self.stores = {name: MemoryStore() for name in (*USERS, SERVER)}
        self.news: list[News] = []
        self.letters: deque[Send] = deque()
        self.away: set[str] = set()
        self.members: dict[str, Member] = {}
        for name in USERS:
            self.start_member(name)
        seats = [
            Seat(name, self.identities[name].public_key, member.announce().sealing_key)
            for name, member in self.members.items()
        ]
        self.epoch = draft_epoch(
            federation="town",
            parameters=terms,
            holders=seats if terms.is_masked else [],
            server_key=self.identities[SERVER].public_key,
            enrolment_key=self.identities["enrolment"].public_key,
            operator=self.identities["operator"],
            first=first_link(MODEL),
            max_burns=20,
        )
        self.start_server()
        for name, member in self.members.items():
            assert member.offer([self.epoch, self.credential(name)]) is None

    def credential(self, name: str) -> Message:
        key = self.identities[name].public_key
        return enrol(self.identities["enrolment"], self.epoch.id, name, key)

    def start_member(self, name: str, **options) -> list[Message]:
        """Also again: then it goes on from its store."""
        identity = self.identities[name]
        pins = Pins(
            federation="town",
            name=name,
            signing_key=identity.public_key,
            operator_key=self.identities["operator"].public_key,
        )
        member = self.members[name] = Member(
            pins,
            identity,
            SealingKeys("x25519"),
            Ed25519Verifier(),
            self.stores[name],
            tell=self.news.append,
            **{"floor": self.floor} | options,
        )
        return member.start(0)

    def start_server(self) -> None:
        """Also again: then it goes on from its store."""
        agreement = accept(self.epoch, self.identities["operator"].public_key, Ed25519Verifier())
        self.server = EpochServer.of(
            agreement,
            self.identities[SERVER],
            self.stores[SERVER],
            MODEL,
            post=self.letters.extend,
            tell=self.news.append,
        )
        self.server.start()

    def say(self, name: str, messages: list[Message]) -> None:
        """A member's messages arrive, and so does everything that follows from them."""
        for message in messages:
            self.server.receive(name, message)
        self.run()

    def run(self) -> None:
        while self.letters:
            letter = self.letters.popleft()
            if letter.recipient not in self.away:
                said = self.members[letter.recipient].take([letter.message])
                for message in said:
                    self.server.receive(letter.recipient, message)

    def contribute(self, name: str, update) -> None:
        machine, member = self.server.machine, self.members[name]
        self.tell_of_version(name)
        self.say(name, member.deal())
        self.say(name, member.submit(update, machine.version, machine.head))

    def tell_of_version(self, name: str) -> None:
        """What a member asks for before it trains. Holders hear of it by the server's questions."""
        release = self.server.kept.release(self.server.machine.version)
        self.members[name].take([] if release is None else [release])

    @property
    def released(self) -> list[Released]:
        return [news for news in self.news if isinstance(news, Released)]
