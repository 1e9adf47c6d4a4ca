"""Measures what the protocol costs: CPU seconds of every machine, bytes of every message.

Parties in one process share one verifier that checks each signature once. Each is charged for its own check.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from basecagg.channels.identity import Ed25519Verifier, Identity, RememberingVerifier
from basecagg.parties.member import TO_CONTRIBUTORS
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import (
    Contribution,
    MaskName,
    Message,
    Parcel,
    PlainUpdate,
    Shipment,
    Upload,
    encode,
)
from basecagg.protocol.short_letters import QUESTIONS
from basecagg.simulation.loopback import Letter, Loopback

_BULK: dict[type[Message], tuple[str, ...]] = {
    Upload: ("words",),
    Parcel: ("sealed",),
    Shipment: ("sealed",),
    Contribution: ("sealed", "words"),
}
"""The long fields of each message that has some."""


@dataclass
class Meter:
    """Totals by role (seconds) and by message type (bytes and count)."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes_sent: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    spared: int = 0
    """By how many bytes users make an update in clear shorter than its message is here."""
    _envelopes: dict[type[Message], int] = field(default_factory=dict)
    _last: tuple[Message | None, int] = None, 0

    def add(self, kind: str, size: int) -> None:
        """Count a message."""
        self.messages[kind] += 1
        self.bytes_sent[kind] += size

    def weigh(self, message: Message) -> None:
        """Count a message by its size on the wire."""
        if message is not self._last[0]:  # the same question goes to all holders in a row
            self._last = (message, self._size(message))
        spared = self.spared if isinstance(message, PlainUpdate) else 0
        self.add(type(message).__name__, self._last[1] - spared)

    def _size(self, message: Message) -> int:
        """Bytes on the wire. Bulk is not encoded to be measured: its length and a fixed envelope will do."""
        kind = type(message)
        if kind not in _BULK:
            return len(encode(message))
        values = {name: getattr(message, name) for name in _BULK[kind]}
        if kind not in self._envelopes:
            emptied = {name: type(value)() for name, value in values.items()}
            self._envelopes[kind] = len(encode(msgspec.structs.replace(message, **emptied)))
        return self._envelopes[kind] + sum(map(_length, values.values()))

    def state(self) -> dict[str, dict[str, float]]:
        """For a checkpoint."""
        return {name: dict(getattr(self, name)) for name in ("seconds", "bytes_sent", "messages")}

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from a state."""
        for name, totals in state.items():
            getattr(self, name).clear()  # starting the machines has been counted already
            getattr(self, name).update(totals)


def _length(value: bytes | tuple[bytes, ...]) -> int:
    """Bytes of a long field; some have one envelope for each holder."""
    return len(value) if isinstance(value, bytes) else sum(map(len, value))


class MeteredLoopback(Loopback):
    """A loopback that keeps accounts."""

    def __init__(
        self, meter: Meter | None = None, verifier: RememberingVerifier | None = None
    ) -> None:
        """Charge checks that the verifier remembers at the price of real ones."""
        super().__init__()
        self.meter = meter or Meter()
        self.deaf: set[str] = set()
        """Holders that do not hear requests."""
        self.saved: Callable[[], int] = lambda: 0
        """Checks that an agreement shared by all parties did not have to repeat."""
        self._verifier = verifier
        self._seconds_per_check = _time_a_check() if verifier else 0.0
        self.observers.append(lambda letter: self.meter.weigh(letter.message))

    @contextmanager
    def charging(self, role: str) -> Iterator[None]:
        """Book the time of the block, and the checks that were remembered meanwhile."""
        started, remembered = time.process_time(), self._remembered
        yield
        seconds = time.process_time() - started
        seconds += (self._remembered - remembered) * self._seconds_per_check
        self.meter.seconds[role] += seconds

    @property
    def _remembered(self) -> int:
        """How many checks were answered from memory so far."""
        return self._verifier.remembered + self.saved() if self._verifier else 0

    def deliver(self, to: str, letters: Sequence[Letter]) -> None:
        """As the loopback does, at the expense of the role that the letters are for."""
        if to in self.deaf:
            letters = [each for each in letters if not isinstance(each.message, QUESTIONS)]
        for role, mail in groupby(letters, key=_role):
            with self.charging(role):
                super().deliver(to, list(mail))


def _role(letter: Letter) -> str:
    if letter.to == SERVER:
        return "server"
    return "contributor" if isinstance(letter.message, TO_CONTRIBUTORS) else "holder"


def plain_bytes(model_size: int) -> int:
    """Bytes on the wire of one update in clear, for schedules that have no server machine to weigh it."""
    envelope = PlainUpdate.unsigned(MaskName("user-00", bytes(16)), 0, bytes(32), b"")
    return len(encode(envelope)) + 4 * model_size


def _time_a_check(repeats: int = 20) -> float:
    """Seconds of one signature check on this machine."""
    identity, statement = Identity.create(), bytes(200)
    signature, verifier = identity.sign(statement), Ed25519Verifier()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        verifier.verify(identity.public_key, statement, signature)
        times.append(time.process_time() - started)
    return min(times)
