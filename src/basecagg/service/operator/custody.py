"""The operator's secret keys at rest: as they are, or encrypted with a passphrase (PKCS #8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from basecagg.errors import DataError
from basecagg.service.private_files import read_file

Passphrase: TypeAlias = Callable[[], str]
"""Asks for it, when it is needed."""
_SHORTEST = 12
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


def nobody_knows() -> str:
    """Where nobody can be asked."""
    raise DataError(
        "the operator's keys are encrypted: --passphrase-file names a file with the passphrase"
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file."""
    return read_file(path, "the passphrase").decode().partition("\n")[0]


def seal_key(secret: bytes, passphrase: str) -> bytes:
    """A signing key as it is stored; without a passphrase as it is."""
    if not passphrase:
        return secret
    return _pem(Ed25519PrivateKey.from_private_bytes(secret), passphrase)


def open_key(stored: bytes, passphrase: Passphrase) -> bytes:
    """The signing key that `seal_key` put away."""
    if not stored.startswith(_ENCRYPTED):
        return stored
    key = _load(stored, passphrase)
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError("what is stored as the operator's key is none")
    return key.private_bytes_raw()


def seal_authority(pem: bytes, passphrase: str) -> bytes:
    """The key of the certificate authority as it is stored."""
    key = load_pem_private_key(pem, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return _pem(key, passphrase)


def open_authority(stored: bytes, passphrase: Passphrase) -> bytes:
    """It, unencrypted."""
    if not stored.startswith(_ENCRYPTED):
        return stored
    key = _load(stored, passphrase)
    assert isinstance(key, EllipticCurvePrivateKey)
    return _pem(key, "")


def require_long(passphrase: str) -> str:
    """Whoever has the file can try as many as he likes."""
    if len(passphrase) < _SHORTEST:
        raise DataError(f"a passphrase has {_SHORTEST} characters at least: several words are best")
    return passphrase


def _pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey, passphrase: str) -> bytes:
    how: KeySerializationEncryption = NoEncryption()
    if passphrase:
        how = BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)


def _load(stored: bytes, passphrase: Passphrase) -> object:
    try:
        return load_pem_private_key(stored, passphrase().encode())
    except ValueError:
        raise DataError("that is not the passphrase of the operator's keys") from None
