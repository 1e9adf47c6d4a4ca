"""Secret randomness: seeds that do not print, the streams that they open, and keyed fingerprints.

The stream of a seed is the AES-256-CTR keystream with the seed as key; the counter block is a
128-bit big-endian number that starts at 0. The keystream is read as little-endian 32-bit words.
`WordStream` gives the words. `FieldStream` takes the low ⌈log₂ q⌉ bits of each and skips values
≥ q. A draw goes on where the last one ended, so how a stream is cut into draws changes nothing.

There is one counter and no nonce per block: the counter alone makes a stream seekable, and one core
makes words several times faster than the encoder uses them.

Differs from the paper: its masks are truly uniform, ours are as good as AES. So privacy is
computational where the paper's is information-theoretic.
"""

from __future__ import annotations

import hmac
import os
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from basecagg.errors import DataError, LocalProtocolError, ParameterError
from basecagg.maths.elements import destination
from basecagg.maths.primes import require_modulus

Words = npt.NDArray[np.uint32]

SEED_BYTES = 32
_DERIVE_DOMAIN = b"basecagg/derive-seed/v1/"
# The byte order belongs to the stream, hence to the dtype. (On common machines it is np.uint32.)
_WORD = np.dtype("<u4")
_ALL_BITS = 2**32 - 1
# Words per step: few enough to be still in the cache when their largest is looked up.
_CHUNK = 1 << 17
_ZEROS = memoryview(bytes(_CHUNK * _WORD.itemsize))


class Seed:
    """32 secret bytes. They leave through `bytes(seed)` only: never by print, log or pickle."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != SEED_BYTES:
            given = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise DataError(f"a seed is {SEED_BYTES} bytes, not {given}; new_seed() makes one")
        self._secret = secret

    def __bytes__(self) -> bytes:
        """The secret itself, for a cipher or a sealed store."""
        return self._secret

    def __repr__(self) -> str:
        return "Seed(…)"

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        return isinstance(other, Seed) and hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]  # a dictionary would not compare in constant time

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise LocalProtocolError("a seed is not pickled or copied; to keep one, seal bytes(seed)")


def system_entropy(count: int) -> bytes:
    """`count` random bytes from the operating system."""
    return os.urandom(count)


def new_seed() -> Seed:
    """A fresh seed from the operating system."""
    return Seed(system_entropy(SEED_BYTES))


def derive_seed(seed: Seed | bytes, purpose: str) -> Seed:
    """The seed's child for one purpose: HKDF-Expand with SHA-256 (RFC 5869, §2.3).

    Mask, padding rows and rounding each take a child of their own, and the children tell nothing of each
    other. A seed that has children should open no stream itself.
    """
    if not purpose:
        raise ParameterError("purpose is empty: say what the seed is for", rule="purpose is named")
    info = _DERIVE_DOMAIN + purpose.encode()
    return Seed(HKDFExpand(SHA256(), SEED_BYTES, info).derive(_key(seed)))


class WordStream:
    """Uniform 32-bit words from a seed: the coins of stochastic rounding. For one thread only."""

    def __init__(self, seed: Seed | bytes) -> None:
        self._keystream = Cipher(AES(_key(seed)), CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def draw(self, n: int, out: Words | None = None) -> Words:
        """The next n numbers, in `out` if given: fresh memory costs as much as the numbers."""
        if n < 0:
            raise DataError(f"n = {n} is negative: draw 0 numbers or more")
        out = np.empty(n, _WORD) if out is None else destination(out, (n,))
        for start in range(0, n, _CHUNK):
            self._fill(out[start : start + _CHUNK])
        return out

    def _fill(self, chunk: Words) -> None:
        # CTR turns zeros into the keystream itself, straight into the caller's memory.
        self._keystream.update_into(_ZEROS[: chunk.nbytes], chunk.view(np.uint8).data)


class FieldStream(WordStream):
    """Elements uniform on 0…q−1 from a seed: masks z and padding rows. For one thread only."""

    def __init__(self, seed: Seed | bytes, modulus: int) -> None:
        require_modulus(modulus)
        super().__init__(seed)
        self._modulus = modulus
        self._low_bits = (1 << (modulus - 1).bit_length()) - 1

    def _fill(self, chunk: Words) -> None:
        # Asks for the missing words, never for more: the stream stops at the last element given.
        while chunk.size:
            super()._fill(chunk)
            chunk = chunk[self._keep_elements(chunk) :]

    def _keep_elements(self, words: Words) -> int:
        """Move what lies below q to the front; return how many that are."""
        if self._low_bits != _ALL_BITS:
            words &= self._low_bits
        if words.max() < self._modulus:  # for q = 2³² − 5 all but one word in 8.6·10⁸ lie below q
            return words.size
        from basecagg.maths.kernels.modular_sums import keep_below

        return int(keep_below(words, np.uint32(self._modulus)))


def fingerprint(key: bytes, numbers: npt.NDArray[np.float32]) -> bytes:
    """16 bytes that tell these numbers from all others under this key of 32 secret bytes.

    AES-GCM's tag of the bytes (GMAC): it reads as fast as memory, which matters for updates of many megabytes.
    The nonce is always 0, so this is a universal hash and not a signature: two different arrays meet with a
    probability below 2⁻¹⁰⁰ for a random key, if the one who chooses them does not know the key. It is for notes
    that stay with their owner; they never leave, with the key or without it.
    """
    return AESGCM(key).encrypt(bytes(12), b"", np.ascontiguousarray(numbers).data.cast("B"))


def _key(seed: Seed | bytes) -> bytes:
    return bytes(seed if isinstance(seed, Seed) else Seed(seed))
