"""The post-quantum suite: HPKE with ML-KEM-768 and X25519 together, where the `cryptography` library has it.

An attacker who records sealed shares today must break both to read them later.
"""

import os
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from basecagg.channels import envelopes
from basecagg.channels.envelopes import KEY, NONCE, TAG
from basecagg.errors import ChannelError
from basecagg.protocol.ports import Lock

_MLKEM_SECRET, _MLKEM_PUBLIC = 64, 1184
SECRET_BYTES = _MLKEM_SECRET + 32
"""A secret is the ML-KEM seed, then the X25519 key."""
_WRAPPED = 1088 + 32 + KEY + TAG
"""Bytes of a key sealed by HPKE: ML-KEM's ciphertext, the sender's X25519 key, the key and its tag."""
_HEAD = _WRAPPED + NONCE


class HybridSealer:
    """Seals with a random key for every envelope, which HPKE seals to the recipient."""

    def locks(self, recipient_keys: Sequence[bytes], contexts: Sequence[bytes]) -> list[Lock]:
        """Fresh locks for one envelope to each of the recipients."""
        return [_lock(*each) for each in zip(recipient_keys, contexts, strict=True)]

    seal = staticmethod(envelopes.seal)


def _lock(recipient_key: bytes, context: bytes) -> Lock:
    mlkem, hpke = _library()
    key = os.urandom(KEY)
    try:
        public_key = hpke.MLKEM768X25519PublicKey(
            mlkem.MLKEM768PublicKey.from_public_bytes(recipient_key[:_MLKEM_PUBLIC]),
            X25519PublicKey.from_public_bytes(recipient_key[_MLKEM_PUBLIC:]),
        )
        wrapped = bytes(_suite(hpke).encrypt(key, public_key, info=context))
    except ValueError:
        raise ChannelError("the recipient's sealing key is not a hybrid key") from None
    return Lock(wrapped + os.urandom(NONCE), key)


class HybridOpener:
    """Opens what was sealed to one hybrid key."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ChannelError(f"a hybrid sealing key is {SECRET_BYTES} secret bytes")
        mlkem, self._hpke = _library()
        first = mlkem.MLKEM768PrivateKey.from_seed_bytes(secret[:_MLKEM_SECRET])
        second = X25519PrivateKey.from_private_bytes(secret[_MLKEM_SECRET:])
        self._private_key = self._hpke.MLKEM768X25519PrivateKey(first, second)
        self.public_key = bytes(
            first.public_key().public_bytes_raw() + second.public_key().public_bytes_raw()
        )

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Decrypt, or raise `ChannelError` when key, context or bytes are not the sealed ones."""
        try:
            wrapped = sealed[:_WRAPPED]
            key = bytes(_suite(self._hpke).decrypt(wrapped, self._private_key, info=context))
        except (InvalidTag, ValueError):
            raise envelopes.unopened() from None
        return envelopes.open_body(_HEAD, key, context, sealed)


def _suite(hpke: Any) -> Any:
    return hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


def _library() -> tuple[Any, Any]:
    """The two modules of `cryptography` that older versions do not have."""
    try:
        from cryptography.hazmat.primitives import hpke
        from cryptography.hazmat.primitives.asymmetric import mlkem
    except ImportError:
        raise ChannelError(
            "the suite mlkem768-x25519 needs cryptography 48 or newer: pip install -U cryptography"
        ) from None
    if not hasattr(hpke.KEM, "MLKEM768_X25519"):
        raise ChannelError("this build of cryptography has no HPKE with ML-KEM-768 and X25519")
    return mlkem, hpke
