"""The body of an envelope: AES-256-GCM under a key of its own, which the envelope's head leads to.

A head ends with the nonce. A lock (head and key) closes an envelope again byte for byte, so a contributor
keeps a lock for each holder until the share is delivered, instead of the share. It is no more secret than the
seed beside it, from which share and mask follow, and it is forgotten sooner. What it closes must be the same
share every time: GCM gives two plaintexts away that were sealed with one key and nonce.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from basecagg.errors import ChannelError
from basecagg.protocol.ports import Lock

KEY, NONCE, TAG = 32, 12, 16
"""Bytes."""


def seal(lock: Lock, context: bytes, plaintext: bytes | memoryview) -> bytes:
    """Close the envelope; the context is bound to it but not sent."""
    return lock.head + AESGCM(lock.key).encrypt(lock.head[-NONCE:], plaintext, context)


def open_body(head_size: int, key: bytes, context: bytes, sealed: bytes) -> bytes:
    """Decrypt what follows the head, or raise `ChannelError` when anything is not as it was sealed."""
    try:
        body = memoryview(sealed)[head_size:]
        return AESGCM(key).decrypt(sealed[head_size - NONCE : head_size], body, context)
    except (InvalidTag, ValueError):
        raise unopened() from None


def unopened() -> ChannelError:
    """The one answer to everything that does not open: which part was wrong is nobody's business."""
    return ChannelError("the envelope does not open with this key and context")
