"""The post-quantum suite: HPKE with ML-KEM-768 and X25519 together, where the `cryptography` library has it.

An attacker who records sealed shares today must break both to read them later.
"""

from __future__ import annotations

from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from basecagg.errors import ChannelError

_MLKEM_SECRET, _MLKEM_PUBLIC = 64, 1184
SECRET_BYTES = _MLKEM_SECRET + 32
"""A secret is the ML-KEM seed, then the X25519 key."""


class HybridSealer:
    """Seals with a key encapsulated afresh for every envelope."""

    def seal(self, recipient_key: bytes, context: bytes, plaintext: bytes | memoryview) -> bytes:
        """Encrypt to the recipient; the context is bound to the envelope but not sent."""
        mlkem, hpke = _library()
        try:
            public_key = hpke.MLKEM768X25519PublicKey(
                mlkem.MLKEM768PublicKey.from_public_bytes(recipient_key[:_MLKEM_PUBLIC]),
                X25519PublicKey.from_public_bytes(recipient_key[_MLKEM_PUBLIC:]),
            )
            return bytes(_suite(hpke).encrypt(plaintext, public_key, info=context))
        except ValueError:
            raise ChannelError("the recipient's sealing key is not a hybrid key") from None


class HybridOpener:
    """Opens what was sealed to one hybrid key."""

    def __init__(self, secret: bytes) -> None:
        """Take the secret bytes."""
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
            return bytes(_suite(self._hpke).decrypt(sealed, self._private_key, info=context))
        except (InvalidTag, ValueError):
            raise ChannelError("the envelope does not open with this key and context") from None

    def __repr__(self) -> str:
        """Nothing about the keys."""
        return "HybridOpener(…)"


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
