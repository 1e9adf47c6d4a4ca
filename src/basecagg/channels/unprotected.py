"""No cryptography at all: for experiments on the arithmetic alone. Anybody can read and forge everything."""

from __future__ import annotations

from basecagg.protocol.ports import Lock


class NoIdentity:
    """Signs with nothing."""

    def __init__(self, name: bytes) -> None:
        """Anything tells one identity from another."""
        self.public_key = name

    def sign(self, statement: bytes) -> bytes:
        """No signature."""
        return b""


class NoVerifier:
    """Believes everything."""

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Yes."""
        return True


class NoSealing:
    """Seals with glass."""

    public_key = bytes(32)

    def lock(self, recipient_key: bytes, context: bytes) -> Lock:
        """No lock."""
        return Lock(b"", b"")

    def seal(self, lock: Lock, context: bytes, plaintext: bytes | memoryview) -> bytes:
        """The plaintext itself."""
        return bytes(plaintext)

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """The plaintext itself."""
        return sealed
