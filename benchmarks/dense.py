"""The encoder without structure: a product with the whole Vandermonde matrix, by float64 BLAS.

What a careful NumPy programmer would write, in blocks that fit the cache. Exact: an entry of the
matrix is split into a₁·2¹⁶ + a₀ with |aᵢ| ≤ 2¹⁵, and rows are centred in ±2³¹. So 120 products add up
to less than 2⁵³, and no sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

TERMS = 120
CACHE = 2**19
"""Bytes of one block of results."""


def encoder(
    points: np.ndarray, rows: np.ndarray, q: int, out: np.ndarray
) -> Callable[[], np.ndarray]:
    """Write Σ_u row_u·β_j^u mod q to out[j]. The matrix is made beforehand, in its favour."""
    matrix = _centred(_vandermonde(points, len(rows), q), q)
    low = np.remainder(matrix + 2.0**15, 2.0**16) - 2.0**15
    high = (matrix - low) / 2.0**16
    return lambda: _product(high, low, rows, q, out)


def _product(
    high: np.ndarray, low: np.ndarray, rows: np.ndarray, q: int, out: np.ndarray
) -> np.ndarray:
    width = CACHE // (8 * len(high))
    for start in range(0, rows.shape[1], width):
        block = _centred(rows[:, start : start + width], q)
        total = np.zeros((len(high), block.shape[1]))
        for first in range(0, len(rows), TERMS):
            terms = slice(first, first + TERMS)
            upper = _reduced(high[:, terms] @ block[terms], q)
            upper *= 2.0**16
            upper += low[:, terms] @ block[terms]
            total += _reduced(upper, q)
        total = _reduced(total, q)
        total += q * (total < 0)
        out[:, start : start + width] = total
    return out


def _vandermonde(points: np.ndarray, size: int, q: int) -> np.ndarray:
    powers = np.ones((len(points), size), np.uint64)
    for u in range(1, size):
        powers[:, u] = powers[:, u - 1] * points % np.uint64(q)
    return powers


def _centred(values: np.ndarray, q: int) -> np.ndarray:
    real = values.astype(np.float64)
    real -= q * (real > q // 2)
    return real


def _reduced(x: np.ndarray, q: int) -> np.ndarray:
    """A residue of about q/2 at most, in the same memory."""
    quotient = x * (1 / q)
    np.rint(quotient, out=quotient)
    quotient *= q
    x -= quotient
    return x
