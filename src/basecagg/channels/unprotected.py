"""No cryptography at all: for experiments on the arithmetic alone. Anybody can read and forge everything."""

from collections.abc import Sequence
from typing import Self

from basecagg.protocol.messages import Suite
from basecagg.protocol.ports import Lock


class NoIdentity:
    """Signs with nothing."""

    def __init__(self, name: bytes) -> None:
        self.public_key = name

    def sign(self, statement: bytes) -> bytes:
        """No signature."""
        return b""


class NoVerifier:
    """Believes everything."""

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Yes."""
        return True

    def fits(self, suite: Suite, sealing_key: bytes) -> bool:
        """Yes."""
        return True


class NoSealing:
    """Seals with glass: the suite, its only key, and both sides of it."""

    suite: Suite = "x25519"
    public_key = bytes(32)

    def create(self) -> Self:
        """The only key."""
        return self

    def load(self, secret: bytes) -> Self:
        """The only key."""
        return self

    def sealer(self) -> Self:
        """The contributor's side."""
        return self

    def secret_bytes(self) -> bytes:
        """Nothing is secret."""
        return b""

    def locks(self, recipient_keys: Sequence[bytes], contexts: Sequence[bytes]) -> list[Lock]:
        """Locks without keys; an envelope begins with the sender's, as in the suite."""
        return [Lock(self.public_key, b"")] * len(recipient_keys)

    def seal(self, lock: Lock, context: bytes, plaintext: bytes | memoryview) -> bytes:
        """The plaintext itself behind it."""
        return lock.head + bytes(plaintext)

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """The plaintext itself."""
        return sealed[len(self.public_key) :]
