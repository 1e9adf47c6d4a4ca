"""One round of SecAgg or SecAgg+ in one process: the machines, who drops out when, and what it costs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from basecagg.baselines.secagg import (
    Delivery,
    FromUser,
    MaskedInput,
    Roster,
    SecAggParameters,
    ToUser,
    UnmaskRequest,
)
from basecagg.baselines.secagg_client import SecAggClient
from basecagg.baselines.secagg_server import PhaseEnd, RoundFailed, SecAggServer, SumOpened
from basecagg.maths.randomness import Words, system_entropy
from basecagg.protocol.messages import encode

Phase: TypeAlias = Literal["keys", "shares", "inputs", "unmasking"]
PHASES: tuple[Phase, ...] = ("keys", "shares", "inputs", "unmasking")
_ROUND_BYTES = 16


class CostKey(NamedTuple):
    """Whose cost, and in which phase."""

    role: Literal["user", "server"]
    phase: Phase


class SecAggRound:
    """Runs a round from keys to the sum. `seconds` (CPU) and `sent` (bytes) are totals over all users."""

    def __init__(
        self,
        parameters: SecAggParameters,
        *,
        entropy: Callable[[int], Callable[[int], bytes]] = lambda user: system_entropy,
    ) -> None:
        """Give each user its source of randomness."""
        self.seconds: defaultdict[CostKey, float] = defaultdict(float)
        self.sent: Counter[CostKey] = Counter()
        self.id = system_entropy(_ROUND_BYTES)
        self.server = SecAggServer(parameters, self.id)
        with self.timed("user", "keys"):
            self.clients = {
                user: SecAggClient(parameters, self.id, user, entropy=entropy(user))
                for user in range(parameters.num_holders)
            }

    def run(
        self,
        inputs: Mapping[int, Words] | Callable[[int], Words],
        gone: Mapping[Phase, AbstractSet[int]] | None = None,
    ) -> SumOpened | RoundFailed:
        """The sum, or why there is none. `gone` are users that vanish before they send in a phase."""
        read = inputs if callable(inputs) else inputs.__getitem__
        absent: set[int] = set()
        mail: Mapping[int, ToUser | None] = dict.fromkeys(self.clients)
        for phase in PHASES:
            absent |= (gone or {}).get(phase, set())
            for user in sorted(mail.keys() - absent):
                self._answer(phase, user, mail[user], read)
            outcome = self._advance(phase)
            if not isinstance(outcome, dict):
                return outcome
            mail = outcome
        raise AssertionError("the last phase opens the sum or fails")

    def _answer(
        self, phase: Phase, user: int, message: ToUser | None, read: Callable[[int], Words]
    ) -> None:
        with self.timed("user", phase):  # a function that quantises when it is read is charged, too
            values = read(user) if phase == "inputs" else None
            reply = reply_of(self.clients[user], message, values)
        self.sent[CostKey("user", phase)] += size_of(reply)
        with self.timed("server", phase):
            self.server.receive(reply)

    def _advance(self, phase: Phase) -> PhaseEnd:
        with self.timed("server", phase):
            outcome = self.server.advance()
        if isinstance(outcome, dict):
            self.sent[CostKey("server", phase)] += sum(map(size_of, outcome.values()))
        return outcome

    @contextmanager
    def timed(self, role: Literal["user", "server"], phase: Phase) -> Iterator[None]:
        """Charge the processor time of the block."""
        started = time.process_time()
        yield
        self.seconds[CostKey(role, phase)] += time.process_time() - started


def reply_of(client: SecAggClient, message: ToUser | None, values: Words | None) -> FromUser:
    """What a client says to a message; to none, its keys."""
    if isinstance(message, Roster):
        return client.share(message)
    if isinstance(message, Delivery):
        assert values is not None
        return client.mask(message, values)
    if isinstance(message, UnmaskRequest):
        return client.unmask(message)
    return client.advertise()


def size_of(message: FromUser | ToUser) -> int:
    """Bytes on the wire. An input is not encoded to be measured: its words and a small envelope."""
    if isinstance(message, MaskedInput):
        return len(message.words) + len(encode(MaskedInput(message.round, message.user, b"")))
    return len(encode(message))
