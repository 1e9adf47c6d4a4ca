"""Sums of rows of words, mod any prime below 2³², in 64-bit integers.

Every kernel returns the largest word it read: numbers ≥ q are noticed without a pass of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.compiler import (
    CACHE_LINE,
    Addresses,
    Pointer,
    fetch_soon,
    inner,
    kernel,
    numbers_of,
    words_at,
)
from basecagg.maths.primes import PAPER_MODULUS

Words = npt.NDArray[np.uint32]
Totals = npt.NDArray[np.uint64]

MOST_WEIGHT = 2**32 - 1
"""The weights of one group of rows add up to this at most (see `weighted_sum`)."""

# Columns whose sums stay in the first cache. Long runs of each row let the machine read ahead.
_BLOCK = 2048
_AT_ONCE = 8
# Up to half as many rows are added faster one by one.
_FEW = _AT_ONCE // 2
# Every _STEP columns memory is asked for those that will be needed _AHEAD columns later.
_STEP, _AHEAD = 32, 256
_SMALL = 2**13
# Products of a word and 16 bits that fit 64 bits: 2¹⁵·2³²·2¹⁶ = 2⁶³.
_LONGEST = 2**15


@inner
def _remainder(x: np.uint64, modulus: np.uint64) -> np.uint64:
    """x mod q, without a division of integers, for which there are no vectors.

    As a float the quotient is off by at most 3·2⁻⁵³·2⁶⁴/q < 1 before it is cut, as q > 2¹³. For q = 2³² − 5, as
    2³² ≡ 5, folds do: the first leaves less than 6·2³², the second less than 2³² + 25 < 2q.
    """
    if modulus < _SMALL:
        return x % modulus
    if modulus != PAPER_MODULUS:
        quotient = np.uint64(np.float64(x) * (1.0 / np.float64(modulus)))
        rest = np.int64(x - quotient * modulus)
        rest += np.int64(modulus) if rest < 0 else np.int64(0)
        return np.uint64(rest - np.int64(modulus) if rest >= np.int64(modulus) else rest)
    five, low, bits = np.uint64(5), np.uint64(0xFFFFFFFF), np.uint64(32)
    x = (x >> bits) * five + (x & low)
    x = (x >> bits) * five + (x & low)
    return x - modulus if x >= modulus else x


@kernel
def weighted_sum(
    rows: Addresses,
    weights: Words,
    groups: npt.NDArray[np.int64],
    out: np.uint64,
    begin: int,
    end: int,
    modulus: np.uint64,
) -> np.int64:
    """Σ_i w_i·row_i mod q, in one pass over memory; groups[g] is the row after those of group g.

    A group's weights add up to at most 2³² − 1. So its sum, with the remainder of the group before,
    is at most (2³² − 1)·(q − 1) + q − 1 < 2⁶⁴, and fits the accumulator.
    """
    totals = np.empty(_BLOCK, np.uint64)
    total, result = numbers_of(totals), words_at(out)
    largest = np.uint32(0)
    for column in range(begin, end, _BLOCK):
        count = min(_BLOCK, end - column)
        totals[:] = 0
        row = 0
        for group in groups:
            while group - row > _FEW:
                seen = _add_eight(rows, weights, row, group, column, count, total)
                largest = max(largest, seen)
                row = min(row + _AT_ONCE, group)
            while row < group:
                largest = max(largest, _add_one(rows, weights, row, column, 0, count, total))
                row += 1
            for j in range(count):
                total[j] = _remainder(total[j], modulus)
        for j in range(count):
            result[column + j] = np.uint32(total[j])
    return np.int64(largest)


@inner
def _add_eight(
    rows: Addresses,
    weights: Words,
    row: int,
    end: int,
    column: int,
    count: int,
    total: Pointer,
) -> np.uint32:
    """Eight rows at once: that many streams from memory, and one pass over the accumulators."""
    a, wa = _row(rows, weights, row, end)
    b, wb = _row(rows, weights, row + 1, end)
    c, wc = _row(rows, weights, row + 2, end)
    d, wd = _row(rows, weights, row + 3, end)
    e, we = _row(rows, weights, row + 4, end)
    f, wf = _row(rows, weights, row + 5, end)
    g, wg = _row(rows, weights, row + 6, end)
    h, wh = _row(rows, weights, row + 7, end)
    end = min(row + _AT_ONCE, end)
    whole = count - count % _STEP
    largest = np.uint32(0)
    for begin in range(0, whole, _STEP):
        _fetch_ahead(rows, row, end, column + begin)
        for j in range(begin, begin + _STEP):
            k = column + j
            first = (wa * a[k] + wb * b[k]) + (wc * c[k] + wd * d[k])
            second = (we * e[k] + wf * f[k]) + (wg * g[k] + wh * h[k])
            total[j] += first + second
            largest = max(largest, a[k], b[k], c[k], d[k], e[k], f[k], g[k], h[k])
    for rest in range(row, end):
        largest = max(largest, _add_one(rows, weights, rest, column, whole, count, total))
    return largest


@inner
def _row(rows: Addresses, weights: Words, row: int, end: int) -> tuple[Pointer, np.uint64]:
    """A row and its weight. Past the end it is the last row again, and weighs nothing.

    The weight is widened here, so that the compiler knows: multiplying 32 by 32 bits suffices.
    """
    last = min(row, end - 1)
    return words_at(rows[last]), np.uint64(weights[last]) if row < end else np.uint64(0)


@inner
def _fetch_ahead(rows: Addresses, row: int, end: int, column: int) -> None:
    """Fetch the next columns of each row early: the machine's own prefetching stops at every page."""
    begin = np.uint64(4 * (column + _AHEAD))
    for r in range(row, end):
        for line in range(0, 4 * _STEP, CACHE_LINE):
            fetch_soon(rows[r] + begin + np.uint64(line))


@inner
def _add_one(
    rows: Addresses,
    weights: Words,
    row: int,
    column: int,
    begin: int,
    end: int,
    total: Pointer,
) -> np.uint32:
    words, weight = words_at(rows[row]), np.uint64(weights[row])
    largest = np.uint32(0)
    for j in range(begin, end):
        total[j] += weight * words[column + j]
        largest = max(largest, words[column + j])
    return largest


@kernel
def sub(
    a: np.uint64, b: np.uint64, out: np.uint64, begin: int, end: int, modulus: np.uint64
) -> np.int64:
    """a − b mod q."""
    x, y, result = words_at(a), words_at(b), words_at(out)
    largest = np.uint32(0)
    for j in range(begin, end):
        missing = modulus if x[j] < y[j] else np.uint64(0)
        result[j] = np.uint32(x[j] + missing - y[j])
        largest = max(largest, x[j], y[j])
    return np.int64(largest)


@kernel
def inner_product(a: np.uint64, b: np.uint64, columns: int, modulus: np.uint64) -> np.int64:
    """Σ_j a_j·b_j mod q."""
    x, y = words_at(a), words_at(b)
    half, bits = np.uint64(0xFFFF), np.uint64(16)
    total = np.uint64(0)
    for begin in range(0, columns, _LONGEST):
        high = low = np.uint64(0)
        for j in range(begin, min(begin + _LONGEST, columns)):
            high += (np.uint64(y[j]) >> bits) * x[j]
            low += (np.uint64(y[j]) & half) * x[j]
        # (q − 1)·2¹⁶ + 2⁶³ + q < 2⁶⁴
        total = (total + ((high % modulus) << bits) + low) % modulus
    return np.int64(total)


# --- rows one by one -----------------------------------------------------------------------------


@kernel
def add_row(total: Totals, row: Words) -> None:
    """total += row. A row adds less than 2³² to each total, so 2³² rows fit before reducing."""
    for i in range(row.size):
        total[i] += np.uint64(row[i])


@kernel
def subtract_row(total: Totals, row: Words, q: np.uint32) -> None:
    """total += q − row, which is −row mod q and less than 2³² as well."""
    for i in range(row.size):
        total[i] += np.uint64(np.uint32(q - row[i]))


@kernel
def reduce_totals(total: Totals, q: np.uint32, out: Words) -> None:
    """out = total mod q."""
    modulus = np.uint64(q)
    for i in range(out.size):
        out[i] = np.uint32(_remainder(total[i], modulus))


@kernel
def keep_below(words: Words, q: np.uint32) -> int:
    """Move the words below q to the front, in order; how many that are."""
    kept = 0
    for i in range(words.size):
        word = words[i]
        words[kept] = word
        kept += word < q
    return kept
