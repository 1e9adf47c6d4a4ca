"""Words on the wire: three bytes each if q < 2²⁴, else four, the lowest first. In memory they are uint32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.maths.elements import Elements, checked
from basecagg.maths.kernels.packing import pack_three, unpack_fours
from basecagg.maths.primes import word_bytes
from basecagg.maths.randomness import Words

_PIECE = 1 << 16
"""Words that are unpacked at a time only to be looked at."""


def pack(words: Elements, modulus: int) -> npt.NDArray[np.uint8]:
    """The bytes of a vector of words below q; not copied if they are four a word."""
    words = checked(words, "words")
    if word_bytes(modulus) == 4:
        return words.astype("<u4", copy=False).view(np.uint8)
    packed = np.empty(3 * words.size, np.uint8)
    if pack_three(words, packed) >= modulus:
        raise DataError(
            f"words holds a value that is not below q = {modulus}: it has no three bytes"
        )
    return packed


def unpack(data: bytes | memoryview | npt.NDArray[np.uint8], modulus: int) -> Words:
    """The words that these bytes are, read-only if they are four a word. Not checked to be below q."""
    width, packed = word_bytes(modulus), np.frombuffer(data, np.uint8)
    number, more = divmod(packed.size, width)
    if more:
        raise DataError(f"{packed.size} bytes are not a whole number of words of {width} bytes")
    if width == 4:
        return packed.view("<u4")
    words = np.empty(number, np.uint32)
    # The kernel takes four words at a time; the last ones are fewer.
    fours = number - number % 4
    unpack_fours(np.require(packed[: 3 * fours], requirements="A").view("<u4"), words)
    rest = packed[3 * fours :].reshape(-1, 3)
    words[fours:] = rest @ np.array([1, 2**8, 2**16], np.uint32)
    return words


def largest(data: bytes | memoryview, modulus: int) -> int:
    """The largest of these words. They are never there unpacked as a whole."""
    whole, piece = memoryview(data), _PIECE * word_bytes(modulus)
    parts = (whole[at : at + piece] for at in range(0, len(whole), piece))
    return max(int(unpack(part, modulus).max()) for part in parts)
