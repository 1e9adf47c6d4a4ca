"""Envelopes that only one holder can open: X25519, or its hybrid with ML-KEM-768 against quantum computers.

The sender's key in an envelope is a short-lived one, so a stolen contributor cannot open what it sealed before.
Envelopes are anonymous by themselves; who made them is said by the signed dealing around them.

Suite "x25519": sender's key (32) ‖ nonce (12) ‖ AES-256-GCM. The key is HKDF-SHA256 of the shared secret,
bound to both public keys and to the context (epoch, mask, holder), which is also the associated data.
Suite "mlkem768-x25519": a random key sealed by HPKE (RFC 9180), then nonce and AES-256-GCM likewise.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import lru_cache
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from basecagg.channels import envelopes, hybrid
from basecagg.channels.envelopes import KEY, NONCE, TAG
from basecagg.errors import ChannelError, LocalProtocolError
from basecagg.protocol.epoch import Suite
from basecagg.protocol.ports import Lock, Sealer

_HEAD = KEY + NONCE
OVERHEAD = _HEAD + TAG
"""Bytes that sealing with X25519 adds to a share."""
SECRET_BYTES: dict[Suite, int] = {"x25519": 32, "mlkem768-x25519": hybrid.SECRET_BYTES}
"""Any random bytes of this length are a private key."""
_MASKS_PER_SENDER_KEY = 4
_DOMAIN = b"basecagg/seal/x25519/v1"


class SealingSecret:
    """A holder's private key for one suite. Its bytes leave through `secret_bytes` only."""

    def __init__(self, suite: Suite, secret: bytes) -> None:
        """Use `create`, or the bytes of an earlier one."""
        self.suite = suite
        self._secret = secret
        self._opener = _make_opener(suite, secret)

    @classmethod
    def create(cls, suite: Suite = "x25519") -> SealingSecret:
        """A fresh key from the operating system's randomness."""
        return cls(suite, os.urandom(SECRET_BYTES[suite]))

    @property
    def public_key(self) -> bytes:
        """What contributors seal to."""
        return self._opener.public_key

    def secret_bytes(self) -> bytes:
        """The secret itself, for a protected file."""
        return self._secret

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Open an envelope that was sealed to this key in this context."""
        return self._opener.open(context, sealed)

    def __repr__(self) -> str:
        """Nothing about the secret."""
        return f"SealingSecret({self.suite}, …)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise LocalProtocolError(
            "a sealing key is not pickled; keep secret_bytes() in a safe place"
        )


def make_sealer(suite: Suite) -> Sealer:
    """The contributor's side of a suite."""
    return X25519Sealer() if suite == "x25519" else hybrid.HybridSealer()


def _make_opener(suite: Suite, secret: bytes) -> X25519Opener | hybrid.HybridOpener:
    return X25519Opener(secret) if suite == "x25519" else hybrid.HybridOpener(secret)


class X25519Sealer:
    """Seals with a sender key that is thrown away after a few masks."""

    def __init__(self) -> None:
        """Start with a fresh sender key."""
        self._renew()

    def _renew(self) -> None:
        self._private_key = X25519PrivateKey.generate()
        self._public_key = self._private_key.public_key().public_bytes_raw()
        self._secrets: dict[bytes, HMAC] = {}
        self._uses: Counter[bytes] = Counter()

    def lock(self, recipient_key: bytes, context: bytes) -> Lock:
        """A fresh lock for one envelope to the recipient."""
        if self._uses[recipient_key] == _MASKS_PER_SENDER_KEY:
            self._renew()
        self._uses[recipient_key] += 1
        if recipient_key not in self._secrets:
            self._secrets[recipient_key] = _extract(self._exchange_with(recipient_key))
        key = _expand(self._secrets[recipient_key], self._public_key, recipient_key, context)
        return envelopes.new_lock(self._public_key, key)

    seal = staticmethod(envelopes.seal)

    def _exchange_with(self, recipient_key: bytes) -> bytes:
        try:
            recipient = X25519PublicKey.from_public_bytes(recipient_key)
            return self._private_key.exchange(recipient)
        except ValueError:  # a wrong length, or a point of low order
            raise ChannelError("the recipient's sealing key is not an X25519 key") from None

    def __repr__(self) -> str:
        """Nothing about the keys."""
        return "X25519Sealer(…)"


class X25519Opener:
    """Opens what was sealed to one X25519 key."""

    def __init__(self, secret: bytes) -> None:
        """Take the 32 secret bytes."""
        try:
            self._private_key = X25519PrivateKey.from_private_bytes(secret)
        except ValueError:
            raise ChannelError("an x25519 sealing key is 32 secret bytes") from None
        self.public_key = self._private_key.public_key().public_bytes_raw()
        # One sender key serves a few masks: its exchange is computed once.
        self._exchange = lru_cache(maxsize=4096)(self._exchange_with)

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Decrypt, or raise `ChannelError` when key, context or bytes are not the sealed ones."""
        if len(sealed) < OVERHEAD:
            raise ChannelError("the envelope is too short")
        sender = sealed[:KEY]
        try:
            exchanged = self._exchange(sender)
        except ValueError:  # a point of low order
            raise envelopes.unopened() from None
        key = _expand(exchanged, sender, self.public_key, context)
        return envelopes.open_body(_HEAD, key, context, sealed)

    def _exchange_with(self, sender: bytes) -> HMAC:
        return _extract(self._private_key.exchange(X25519PublicKey.from_public_bytes(sender)))

    def __repr__(self) -> str:
        """Nothing about the keys."""
        return "X25519Opener(…)"


def _extract(secret: bytes) -> HMAC:
    """HKDF's first half, without salt: the same for all masks of one sender key, so it is done once."""
    extracted = HMAC(bytes(KEY), SHA256())
    extracted.update(secret)
    return HMAC(extracted.finalize(), SHA256())


def _expand(extracted: HMAC, sender: bytes, recipient: bytes, context: bytes) -> bytes:
    """HKDF's second half for a key of one block: a single HMAC (RFC 5869, section 2.3)."""
    block = extracted.copy()
    block.update(_DOMAIN + sender + recipient + context + b"\x01")
    return block.finalize()
