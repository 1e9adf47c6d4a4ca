"""Two users agree on a secret that the server between them does not know: X25519, then SHA-256.

As in SecAgg (Bonawitz et al. 2017, §3.3) the shared point is hashed, here together with both public keys and
the purpose, so that one pair of keys gives unrelated secrets for unrelated purposes.
"""

import hashlib
import os
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from basecagg.channels import envelopes
from basecagg.channels.envelopes import NONCE
from basecagg.errors import ChannelError, LocalProtocolError
from basecagg.protocol.ports import Lock

SECRET_BYTES = 32
_DOMAIN = b"basecagg/agree/v1"


class AgreementKey:
    """One user's half of the agreement. Its secret leaves through `secret_bytes` only."""

    def __init__(self, secret: bytes) -> None:
        """Any 32 random bytes are a key."""
        try:
            self._private_key = X25519PrivateKey.from_private_bytes(secret)
        except ValueError:
            raise ChannelError(f"an agreement key is {SECRET_BYTES} secret bytes") from None
        self.public_key = self._private_key.public_key().public_bytes_raw()

    def secret_bytes(self) -> bytes:
        """The secret itself, to be shared among others."""
        return self._private_key.private_bytes_raw()

    def agree(self, peer: bytes, purpose: bytes) -> bytes:
        """32 bytes that only the owners of the two keys can compute; the same on both sides."""
        try:
            point = self._private_key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise ChannelError(
                "the peer's public key cannot be used: 32 bytes, no weak point"
            ) from None
        first, second = sorted((self.public_key, peer))
        return hashlib.sha256(_DOMAIN + point + first + second + purpose).digest()

    def __repr__(self) -> str:
        return f"AgreementKey({self.public_key.hex()[:12]}…)"

    def __reduce__(self) -> NoReturn:
        raise LocalProtocolError("an agreement key is not pickled or copied")


def seal(key: bytes, context: bytes, plaintext: bytes) -> bytes:
    """Encrypt under an agreed key with AES-256-GCM; the context is bound to the envelope but not sent."""
    return envelopes.seal(Lock(os.urandom(NONCE), key), context, plaintext)


def unseal(key: bytes, context: bytes, sealed: bytes) -> bytes:
    """Decrypt, or raise `ChannelError` when key, context or bytes are not the sealed ones."""
    return envelopes.open_body(NONCE, key, context, sealed)
