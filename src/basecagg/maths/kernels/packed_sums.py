"""Sums of rows of three-byte words, without unpacking them: four words are three words of 32 bits.

The bytes of a 32-bit word are added apart, the first and third here, the second and fourth there. A sum of 256
bytes fits 16 bits, so two of them lie beside each other in 32 bits and nothing is carried over. Only when all
rows are added do bytes become words again. Rows stay 32-bit words in a row: loops become vectors, and memory
decides how long it takes.
"""

from __future__ import annotations

import numpy as np

from basecagg.maths.kernels.compiler import (
    Addresses,
    Pointer,
    inner,
    kernel,
    numbers_of,
    words_at,
)

MOST_ROWS = 256
"""256·255 < 2¹⁶."""
_BLOCK = 3072
"""Words of 32 bits of each row that are added before the next block, in the first cache."""
_TOGETHER = 4
_APART, _HALF = np.uint32(0x00FF00FF), np.uint32(0xFFFF)
_8, _16 = np.uint32(8), np.uint32(16)


@kernel
def sum_of_threes(rows: Addresses, out: np.uint64, begin: int, end: int, q: np.uint32) -> int:
    """out = Σ_i row_i mod q, for the words 4·begin … 4·end − 1 of at most `MOST_ROWS` rows.

    Words need not be below q: they are below 2²⁴, so their sum is below 2³².
    """
    here, there = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    even, odd, result = numbers_of(here), numbers_of(there), words_at(out)
    for first in range(3 * begin, 3 * end, _BLOCK):
        count = min(_BLOCK, 3 * end - first)
        here[:], there[:] = np.uint32(0), np.uint32(0)
        whole = rows.size - rows.size % _TOGETHER
        for i in range(0, whole, _TOGETHER):
            _add_four(rows, i, first, count, even, odd)
        for i in range(whole, rows.size):
            _add_one(rows, i, first, count, even, odd)
        _join(even, odd, count // 3, first // 3 * 4, result, q)
    return 0


@inner
def _add_four(rows: Addresses, i: int, first: int, count: int, even: Pointer, odd: Pointer) -> None:
    a, b = words_at(rows[i]), words_at(rows[i + 1])
    c, d = words_at(rows[i + 2]), words_at(rows[i + 3])
    for j in range(count):
        w, x, y, z = a[first + j], b[first + j], c[first + j], d[first + j]
        even[j] += ((w & _APART) + (x & _APART)) + ((y & _APART) + (z & _APART))
        odd[j] += (((w >> _8) & _APART) + ((x >> _8) & _APART)) + (
            ((y >> _8) & _APART) + ((z >> _8) & _APART)
        )


@inner
def _add_one(rows: Addresses, i: int, first: int, count: int, even: Pointer, odd: Pointer) -> None:
    a = words_at(rows[i])
    for j in range(count):
        even[j] += a[first + j] & _APART
        odd[j] += (a[first + j] >> _8) & _APART


@inner
def _join(even: Pointer, odd: Pointer, fours: int, at: int, out: Pointer, q: np.uint32) -> None:
    """Sums of bytes become sums of words: 2⁰, 2⁸ and 2¹⁶ times three bytes that follow each other."""
    for i in range(fours):
        e, f, g = even[3 * i], even[3 * i + 1], even[3 * i + 2]
        o, p, r = odd[3 * i], odd[3 * i + 1], odd[3 * i + 2]
        out[at + 4 * i] = _word(e & _HALF, o & _HALF, e >> _16, q)
        out[at + 4 * i + 1] = _word(o >> _16, f & _HALF, p & _HALF, q)
        out[at + 4 * i + 2] = _word(f >> _16, p >> _16, g & _HALF, q)
        out[at + 4 * i + 3] = _word(r & _HALF, g >> _16, r >> _16, q)


@inner
def _word(low: np.uint32, middle: np.uint32, high: np.uint32, q: np.uint32) -> np.uint32:
    """low + 2⁸·middle + 2¹⁶·high mod q; all of it is below 2³².

    The quotient as a float is off by less than 1 before it is cut, and below 2³².
    """
    word = np.uint32(low + (middle << _8) + (high << _16))
    quotient = np.uint32(np.uint64(np.float64(word) * (1.0 / np.float64(q))))
    rest = np.int32(np.uint32(word - np.uint32(quotient * q)))
    rest = np.int32(rest + np.int32(q)) if rest < 0 else rest
    return np.uint32(rest - np.int32(q) if rest >= np.int32(q) else rest)
