"""Ports: what the machines need from outside, which is keys, sealed envelopes and a store to read from.

`basecagg.channels` implements keys and envelopes with real cryptography, `basecagg.storage` the stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from basecagg.protocol.messages import Suite


class Discreet:
    """A Struct with a secret in it. It prints the fields that `_shown` gives, and no others."""

    __slots__ = ()

    def _shown(self) -> dict[str, object]:
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self._shown().values())) or '…'})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The rich library would print all fields of a Struct."""
        return list(self._shown().items())


class Lock(Discreet, Struct, frozen=True, gc=False):
    """Closes one envelope, and closes it again byte for byte: the envelope's head, and the key of its body."""

    head: bytes
    key: bytes


class Signer(Protocol):
    """Signs statements with one's own Ed25519 key, whose public half shows it."""

    @property
    def public_key(self) -> bytes:
        """The public half."""

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of the statement."""


class Verifier(Protocol):
    """Checks other people's signatures and keys."""

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Say whether the holder of the key signed the statement."""

    def fits(self, suite: Suite, sealing_key: bytes) -> bool:
        """Say whether envelopes can be sealed to this public key in the suite."""

    def __hash__(self) -> int: ...


class Sealer(Protocol):
    """Closes envelopes that only their recipient can open."""

    def locks(self, recipient_keys: Sequence[bytes], contexts: Sequence[bytes]) -> list[Lock]:
        """Fresh locks for one envelope to each of the recipients, in their contexts."""

    def seal(self, lock: Lock, context: bytes, plaintext: bytes | memoryview) -> bytes:
        """Encrypt; the context is bound to the envelope but not sent. One lock seals one plaintext."""


class Opener(Protocol):
    """Opens the envelopes sealed to oneself."""

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Decrypt, or raise `ChannelError` when key, context or bytes are not the sealed ones."""


class SealingKey(Opener, Protocol):
    """A private sealing key."""

    @property
    def public_key(self) -> bytes:
        """What others seal to."""

    def secret_bytes(self) -> bytes:
        """The secret itself, for the store."""


class SealingSuite(Protocol):
    """One way to seal shares, and its keys."""

    suite: Suite

    def create(self) -> SealingKey:
        """A fresh key from the operating system's randomness."""

    def load(self, secret: bytes) -> SealingKey:
        """The key whose `secret_bytes` these are."""

    def sealer(self) -> Sealer:
        """The contributor's side."""


class Records(Protocol):
    """A store to read from: what earlier `Persist` effects wrote, all that a machine knows at a start."""

    @property
    def rolled_back(self) -> bool:
        """Whether the store turned out to be an older copy of itself when it was opened."""

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""

    def keys(self, kind: str) -> Iterable[str]:
        """Return all keys of a kind, in order, without reading what may be large."""

    def scan(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""


class LastingRecords(Records, Protocol):
    """The store of a machine that outlives an epoch, with an anchor that outlives the store."""

    @property
    def number(self) -> int:
        """The highest value that 'highest' ever had, even if an older copy of the store is opened."""
