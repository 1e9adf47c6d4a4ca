"""Words on the wire: three bytes each if q < 2²⁴, else four, the lowest first. In memory they are uint32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.maths.elements import Elements, checked
from basecagg.maths.kernels.compiler import addresses_of
from basecagg.maths.kernels.cores import over_columns
from basecagg.maths.kernels.packed_sums import MOST_ROWS, sum_of_threes
from basecagg.maths.kernels.packing import pack_three, unpack_fours
from basecagg.maths.prime_field import PrimeField
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


def sum_packed(
    field: PrimeField, rows: Sequence[bytes | memoryview], weights: Sequence[int]
) -> Words:
    """Σ weights[i]·rows[i] mod q, of words as they are on the wire.

    Rows of three bytes a word that all weigh 1 are added as they are: to unpack K rows takes as much memory as
    they have words, and more time than to add them. Those who took them in have checked that words are below q.
    """
    q, packed = field.modulus, [np.frombuffer(row, np.uint8) for row in rows]
    if word_bytes(q) == 4 or len(rows) > MOST_ROWS or any(weight != 1 for weight in weights):
        return field.weighted_sum([unpack(row, q) for row in packed], weights)
    if len({row.size for row in packed}) != 1 or packed[0].size % 3:
        raise DataError("rows are of different lengths, or not whole words of 3 bytes")
    fours, most = packed[0].size // 12, 12 * (packed[0].size // 12)
    heads = [np.require(row[:most], requirements="A").view("<u4") for row in packed]
    total = np.empty(packed[0].size // 3, np.uint32)
    arguments = addresses_of(heads), np.uint64(total.ctypes.data)

    def work(begin: int, end: int) -> int:
        return int(sum_of_threes(*arguments, begin, end, np.uint32(q)))

    over_columns(work, fours, 3 * len(rows), field.threads)
    # The last words are fewer than four.
    tails = [unpack(row[most:], q) for row in packed]
    total[4 * fours :] = np.sum(tails, axis=0, dtype=np.uint64) % np.uint64(q)
    return total


def largest(data: bytes | memoryview, modulus: int) -> int:
    """The largest of these words. They are never there unpacked as a whole."""
    whole, piece = memoryview(data), _PIECE * word_bytes(modulus)
    parts = (whole[at : at + piece] for at in range(0, len(whole), piece))
    return max(int(unpack(part, modulus).max()) for part in parts)
