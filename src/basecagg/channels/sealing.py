"""Envelopes that only one holder can open: X25519, or its hybrid with ML-KEM-768 against quantum computers.

The sender's key in an envelope is a short-lived one, so a stolen contributor cannot open what it sealed before.
Envelopes are anonymous by themselves; who made them is said by the signed dealing around them.

Suite "x25519": sender's key (32) ‖ step (1) ‖ nonce (12) ‖ AES-256-GCM. The key is HKDF-SHA256 of the shared
secret, salted with both public keys, of which a step takes 32 bytes; the context (epoch, masks, holder) is
the associated data.
Suite "mlkem768-x25519": a random key sealed by HPKE (RFC 9180), then nonce and AES-256-GCM likewise.
"""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NoReturn, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from basecagg.channels import envelopes, hybrid
from basecagg.channels.envelopes import KEY, NONCE, TAG
from basecagg.errors import ChannelError, LocalProtocolError
from basecagg.protocol.messages import Suite
from basecagg.protocol.ports import Lock, Sealer

_HEAD = KEY + 1 + NONCE
OVERHEAD = _HEAD + TAG
"""Bytes that sealing with X25519 adds to a share."""
SECRET_BYTES: dict[Suite, int] = {"x25519": 32, "mlkem768-x25519": hybrid.SECRET_BYTES}
"""Any random bytes of this length are a private key."""
_STEPS = 4
"""Dealings that one sender key serves."""
_DOMAIN = b"basecagg/seal/x25519/v2"
_SHA256 = SHA256()


class SealingSecret:
    """A holder's private key for one suite. Its bytes leave through `secret_bytes` only."""

    def __init__(self, suite: Suite, secret: bytes) -> None:
        """Use `create`, or the bytes of an earlier one."""
        self.suite = suite
        self._secret = secret
        self._opener = _make_opener(suite, secret)

    @classmethod
    def create(cls, suite: Suite = "x25519") -> Self:
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
        return f"SealingSecret({self.suite}, …)"

    def __reduce__(self) -> NoReturn:
        raise LocalProtocolError(
            "a sealing key is not pickled; keep secret_bytes() in a safe place"
        )


class SealingKeys:
    """The keys of one suite, as a participant makes and keeps them."""

    def __init__(self, suite: Suite, entropy: Callable[[int], bytes] = os.urandom) -> None:
        """Only a simulation replaces the entropy."""
        self.suite: Suite = suite
        self._entropy = entropy

    def create(self) -> SealingSecret:
        """A fresh key."""
        return SealingSecret(self.suite, self._entropy(SECRET_BYTES[self.suite]))

    def load(self, secret: bytes) -> SealingSecret:
        """The key whose `secret_bytes` these are."""
        return SealingSecret(self.suite, secret)

    def sealer(self) -> Sealer:
        """The contributor's side of the suite."""
        return make_sealer(self.suite)


def make_sealer(suite: Suite) -> Sealer:
    """The contributor's side of a suite."""
    return X25519Sealer() if suite == "x25519" else hybrid.HybridSealer()


@lru_cache(maxsize=1 << 12)
def fits(suite: Suite, public_key: bytes) -> bool:
    """Whether envelopes can be sealed to this key: it has the suite's length and is no point of low order."""
    try:
        make_sealer(suite).locks([public_key], [b""])
    except ChannelError:
        return False
    return True


class X25519Sealer:
    """Seals with a sender key whose private half is gone before anything is sealed with it.

    What remains are the keys of the next steps, one for each dealing and holder; each is gone when it is used.
    """

    def __init__(self) -> None:
        self._recipients: tuple[bytes, ...] = ()
        self._public_key = b""
        self._steps: list[tuple[bytes, ...]] = []

    def locks(self, recipient_keys: Sequence[bytes], contexts: Sequence[bytes]) -> list[Lock]:
        """Fresh locks for one envelope to each of the recipients."""
        if not self._steps or self._recipients != tuple(recipient_keys):
            self._renew(tuple(recipient_keys))
        way_to_key = self._public_key + bytes([_STEPS - len(self._steps)])
        # A key seals one envelope, so any nonce would do; but this process may be copied while it runs, and
        # two recipients may have the same key.
        nonces = os.urandom(NONCE * len(recipient_keys))
        heads = (way_to_key + nonces[at : at + NONCE] for at in range(0, len(nonces), NONCE))
        return [Lock(head, key) for head, key in zip(heads, self._steps.pop(), strict=True)]

    seal = staticmethod(envelopes.seal)

    def _renew(self, recipients: tuple[bytes, ...]) -> None:
        private_key = X25519PrivateKey.generate()
        public_key = private_key.public_key().public_bytes_raw()
        keys = [_agree(private_key, public_key, recipient) for recipient in recipients]
        self._recipients, self._public_key = recipients, public_key
        self._steps = [tuple(_key_of(step, each) for each in keys) for step in range(_STEPS)]
        self._steps.reverse()  # the next one is taken from the end


def _agree(private_key: X25519PrivateKey, sender: bytes, recipient: bytes) -> bytes:
    try:
        secret = private_key.exchange(_load_public_key(recipient))
    except ValueError:  # a wrong length, or a point of low order
        raise ChannelError("the recipient's sealing key is not an X25519 key") from None
    return _derive(secret, sender, recipient)


@lru_cache(maxsize=1 << 12)
def _load_public_key(recipient: bytes) -> X25519PublicKey:
    """A federation's holders are the recipients of everything."""
    return X25519PublicKey.from_public_bytes(recipient)


class X25519Opener:
    """Opens what was sealed to one X25519 key."""

    def __init__(self, secret: bytes) -> None:
        try:
            self._private_key = X25519PrivateKey.from_private_bytes(secret)
        except ValueError:
            raise ChannelError("an x25519 sealing key is 32 secret bytes") from None
        self.public_key = self._private_key.public_key().public_bytes_raw()
        # One sender key serves several dealings: its exchange is computed once.
        self._exchange = lru_cache(maxsize=4096)(self._exchange_with)

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Decrypt, or raise `ChannelError` when key, context or bytes are not the sealed ones."""
        if len(sealed) < OVERHEAD:
            raise ChannelError("the envelope is too short")
        sender = sealed[:KEY]
        try:
            keys = self._exchange(sender)
        except ValueError:  # a point of low order
            raise envelopes.unopened() from None
        return envelopes.open_body(_HEAD, _key_of(sealed[KEY], keys), context, sealed)

    def _exchange_with(self, sender: bytes) -> bytes:
        secret = self._private_key.exchange(X25519PublicKey.from_public_bytes(sender))
        return _derive(secret, sender, self.public_key)


def _derive(secret: bytes, sender: bytes, recipient: bytes) -> bytes:
    """The keys of all steps, one after the other."""
    salt = _DOMAIN + sender + recipient
    return HKDF(_SHA256, KEY * _STEPS, salt=salt, info=None).derive(secret)


def _key_of(step: int, keys: bytes) -> bytes:
    return keys[KEY * step : KEY * (step + 1)]


def _make_opener(suite: Suite, secret: bytes) -> X25519Opener | hybrid.HybridOpener:
    return X25519Opener(secret) if suite == "x25519" else hybrid.HybridOpener(secret)
