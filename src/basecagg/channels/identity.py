"""Who signs: Ed25519 keys that do not print, and the checking of signatures."""

from typing import NoReturn, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from basecagg.channels.sealing import fits
from basecagg.errors import ChannelError, DataError, LocalProtocolError
from basecagg.protocol.messages import Credential, signed
from basecagg.protocol.ports import Signer, Verifier

_KEY, _SIGNATURE = 32, 64
"""Bytes."""


class Identity:
    """A signing key. Its secret leaves through `secret_bytes` only: never by print, log or pickle."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        """Wrap a private key; `create` and `from_secret` make one."""
        self._private_key = private_key
        self.public_key = private_key.public_key().public_bytes_raw()

    @classmethod
    def create(cls) -> Self:
        """A fresh identity from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> Self:
        """The identity whose `secret_bytes` these are."""
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(secret))
        except ValueError:
            raise ChannelError("a signing key is 32 secret bytes") from None

    def secret_bytes(self) -> bytes:
        """The secret itself, for a protected file."""
        return self._private_key.private_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement."""
        return self._private_key.sign(statement)

    def __repr__(self) -> str:
        return f"Identity({self.public_key.hex()[:12]}…)"

    def __reduce__(self) -> NoReturn:
        raise LocalProtocolError("an identity is not pickled; keep secret_bytes() in a safe place")


def read_public_key(given: bytes | str) -> bytes:
    """A public key as people give it: its bytes, or as hexadecimal text."""
    try:
        key = bytes.fromhex(given) if isinstance(given, str) else bytes(given)
    except ValueError:
        key = b""
    if len(key) != _KEY:
        raise DataError(f"{given!r} is not a key: {_KEY} bytes, or as hexadecimal text")
    return key


class Ed25519Verifier:
    """Checks sealing keys, and signatures with libsodium: twice as fast as OpenSSL, which makes them."""

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Say whether the holder of the key signed the statement."""
        if (len(public_key), len(signature)) != (_KEY, _SIGNATURE):
            return False  # the library below does not look
        try:
            crypto_sign_open(signature + statement, public_key)
        except BadSignatureError:
            return False
        return True

    fits = staticmethod(fits)


class RememberingVerifier:
    """Checks each signature once: for many simulated parties in one process, which see the same ones."""

    def __init__(self, verifier: Verifier) -> None:
        self.fits = verifier.fits
        self.remembered = 0
        self._verifier = verifier
        self._good: dict[tuple[bytes, bytes, bytes], None] = {}

    def verify(self, public_key: bytes, statement: bytes, signature: bytes) -> bool:
        """Say whether the holder of the key signed the statement, from memory if it is known to be so."""
        seen = (public_key, signature, statement)
        if seen in self._good:
            self.remembered += 1
            return True
        good = self._verifier.verify(public_key, statement, signature)
        if good:
            self._good[seen] = None
            if len(self._good) > _REMEMBERED:
                del self._good[next(iter(self._good))]
        return good


_REMEMBERED = 1 << 16


def enrol(enrolment: Signer, epoch_id: bytes, contributor: str, signing_key: bytes) -> Credential:
    """The operator's part: admit a contributor to an epoch."""
    return signed(Credential(epoch_id, contributor, signing_key), enrolment)
