"""The operator's secret keys at rest: as they are, or encrypted with a passphrase of some length.

Whoever has the folder can try as many passphrases as he likes. So each try goes through scrypt, which takes
128 MiB and about half a second; what comes of it encrypts the key with AES-256-GCM.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from basecagg.errors import DataError
from basecagg.service.logs import Log
from basecagg.service.private_files import read_file

Passphrase: TypeAlias = Callable[[], str]
"""Asks for it, when it is needed."""
_SHORTEST = 12
_WORK = 2**17
"""n of scrypt. It stands beside the salt, so that it can be raised later."""
_MOST_MEMORY = 2**28
"""Bytes that a file may ask scrypt to take."""
_SEALED = b"basecagg scrypt "
_PKCS8 = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_NONCE = bytes(12)
"""The same for all: a key comes of a salt, and a salt is used once."""
_LOG = Log("basecagg.operator")


def nobody_knows() -> str:
    """Where nobody can be asked."""
    raise DataError(
        "the operator's keys are encrypted: --passphrase-file names a file with the passphrase"
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file."""
    return read_file(path, "the passphrase").decode().partition("\n")[0]


def seal(secret: bytes, passphrase: str) -> bytes:
    """A secret key as it is stored; without a passphrase as it is."""
    if not passphrase:
        return secret
    salt = os.urandom(16)
    sealed = AESGCM(_stretched(passphrase, salt, _WORK)).encrypt(_NONCE, secret, None)
    return _SEALED + f"{_WORK} {salt.hex()} {sealed.hex()}".encode()


def unseal(stored: bytes, passphrase: Passphrase) -> bytes:
    """The secret key that `seal` put away."""
    if not stored.startswith((_SEALED, _PKCS8)):
        return stored
    opened_by = _open if stored.startswith(_SEALED) else _open_pkcs8
    words = passphrase()
    try:
        return opened_by(stored, words)
    except (InvalidTag, ValueError, TypeError):  # the last: a number that scrypt does not take
        raise DataError(
            "that is not the passphrase of the operator's keys, or they are damaged"
        ) from None


def _open(stored: bytes, passphrase: str) -> bytes:
    work, salt, sealed = stored.removeprefix(_SEALED).decode().split()
    key = _stretched(passphrase, bytes.fromhex(salt), int(work))
    return AESGCM(key).decrypt(_NONCE, bytes.fromhex(sealed), None)


def _open_pkcs8(stored: bytes, passphrase: str) -> bytes:
    """As keys were encrypted before, with no more than 2,048 rounds of PBKDF2 for each try."""
    key = load_pem_private_key(stored, passphrase.encode())
    if isinstance(key, Ed25519PrivateKey):
        return key.private_bytes_raw()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def warn_if_weak(stored: bytes) -> None:
    """Say so where an older basecagg has encrypted a key."""
    if stored.startswith(_PKCS8):
        _LOG.warning(
            "an older basecagg encrypted these keys, and guesses are quick: `basecagg operator passphrase`"
            " encrypts them better"
        )


def require_long(passphrase: str) -> str:
    """Whoever has the file can try as many as he likes."""
    if len(passphrase) < _SHORTEST:
        raise DataError(f"a passphrase has {_SHORTEST} characters at least: several words are best")
    return passphrase


@lru_cache(maxsize=8)
def _stretched(passphrase: str, salt: bytes, work: int) -> bytes:
    """Remembered, because `enrol --watch` opens the folder every second."""
    words = passphrase.encode()
    return hashlib.scrypt(words, salt=salt, n=work, r=8, p=1, maxmem=_MOST_MEMORY, dklen=32)
