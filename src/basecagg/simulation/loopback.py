"""A network in memory: it carries letters between the server of an epoch and its members, and loses none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from basecagg.errors import Refused
from basecagg.parties.epoch_server import EpochServer
from basecagg.parties.member import Member
from basecagg.protocol.effects import News, Send
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import Message


class Letter(Struct, frozen=True, gc=False):
    """One message on its way."""

    sender: str
    to: str
    message: Message


class Loopback:
    """The parties of an epoch, and the letters between them.

    Letters wait in `in_flight` until they are delivered, so a caller can delay, lose, double or reorder them.
    `run` delivers everything, in order.

    Make the parties with its `post_all` and `tell`, and put them into `server` and `members`.
    """

    server: EpochServer

    def __init__(self) -> None:
        """Start with nobody."""
        self.members: dict[str, Member] = {}
        self.away: set[str] = set()
        """Members that are offline: letters to them are lost."""
        self.in_flight: deque[Letter] = deque()
        self.news: list[News] = []
        """What the parties reported, until somebody takes it."""
        self.refusals: list[tuple[str, Refused]] = []
        """Who refused a letter, and why."""
        self.observers: list[Callable[[Letter], None]] = []

    def tell(self, news: News) -> None:
        """Keep what a party reports."""
        self.news.append(news)

    def post(self, letter: Letter) -> None:
        """Put a letter on its way, in sight of the observers."""
        for observe in self.observers:
            observe(letter)
        self.in_flight.append(letter)

    def post_all(self, sends: Iterable[Send]) -> None:
        """Put the server's letters on their way."""
        for send in sends:
            self.post(Letter(SERVER, send.recipient, send.message))

    def send(self, name: str, messages: Iterable[Message]) -> None:
        """Put a member's messages for the server on their way."""
        for message in messages:
            self.post(Letter(name, SERVER, message))

    def run(self) -> None:
        """Deliver until nothing is on its way."""
        while self.in_flight:
            letters, self.in_flight = list(self.in_flight), deque()
            # Stable: the letters to one party keep their order.
            letters.sort(key=lambda letter: letter.to)
            for to, mail in groupby(letters, key=lambda letter: letter.to):
                self.deliver(to, list(mail))

    def deliver(self, to: str, letters: Sequence[Letter]) -> None:
        """Hand letters to one party; to one that is offline they are lost."""
        if to == SERVER:
            for letter in letters:
                refusal = self.server.receive(letter.sender, letter.message)
                if refusal is not None:
                    self.refusals.append((SERVER, refusal))
        elif to in self.members and to not in self.away:
            self.send(to, self.members[to].take([letter.message for letter in letters]))
