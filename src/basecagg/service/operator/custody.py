"""The operator's secret keys at rest: as they are, or encrypted with a passphrase of some length.

Whoever has the folder can try as many passphrases as he likes. So each try goes through scrypt, which takes
128 MiB and about half a second; what comes of it encrypts the key with AES-256-GCM.
"""

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from basecagg.errors import DataError
from basecagg.storage.disk import read_file

Passphrase: TypeAlias = Callable[[], str]
"""Asks for it, when it is needed."""
_SHORTEST = 12
_WORK = 2**17
"""n of scrypt. It stands beside the salt, so that it can be raised later."""
_MOST_MEMORY = 2**28
"""Bytes that a file may ask scrypt to take."""
_SEALED = b"basecagg scrypt "
_NONCE = bytes(12)
"""The same for all: a key comes of a salt, and a salt is used once."""


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
    if not stored.startswith(_SEALED):
        return stored
    words = passphrase()
    try:
        work, salt, sealed = stored.removeprefix(_SEALED).decode().split()
        key = _stretched(words, bytes.fromhex(salt), int(work))
        return AESGCM(key).decrypt(_NONCE, bytes.fromhex(sealed), None)
    except (InvalidTag, ValueError, TypeError):  # the last: a number that scrypt does not take
        raise DataError(
            "that is not the passphrase of the operator's keys, or they are damaged"
        ) from None


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
