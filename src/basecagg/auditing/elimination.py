"""Exact elimination over a prime field: ranks and row spaces, the only tool of the audit."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.uint64]


class RowSpace(NamedTuple):
    """A row space by its reduced row echelon form: unit vectors in the pivot columns, no zero rows."""

    rows: Matrix
    pivots: npt.NDArray[np.intp]

    @property
    def rank(self) -> int:
        """The dimension of the space."""
        return len(self.pivots)


def row_space(matrix: Matrix, modulus: int) -> RowSpace:
    """Reduce a matrix of words below the prime `modulus` < 2³²."""
    rows, pivots = matrix.copy(), list[int]()
    for column in range(matrix.shape[1]):
        rank = len(pivots)
        below = np.flatnonzero(rows[rank:, column])
        if not below.size:
            continue
        rows[[rank, rank + below[0]]] = rows[[rank + below[0], rank]]
        _clear(rows, rank, column, modulus)
        pivots.append(column)
    return RowSpace(rows[: len(pivots)], np.array(pivots, dtype=np.intp))


def rank(matrix: Matrix, modulus: int) -> int:
    """The dimension of the matrix's row space."""
    return row_space(matrix, modulus).rank


def _clear(rows: Matrix, pivot: int, column: int, modulus: int) -> None:
    """Make the pivot one and everything else in its column zero. Left of the column the pivot's row is zero."""
    inverse = np.uint64(pow(int(rows[pivot, column]), -1, modulus))
    head = _mod(rows[pivot, column:] * inverse, modulus)
    rows[pivot, column:] = head
    others = np.flatnonzero(rows[:, column])
    others = others[others != pivot]
    factors = np.uint64(modulus) - rows[others, column]
    # Fits: (q − 1)·(q − 1) + (q − 1) < q² < 2⁶⁴.
    rows[others, column:] = _mod(rows[others, column:] + np.outer(factors, head), modulus)


def _mod(values: Matrix, modulus: int) -> Matrix:
    """values % modulus; NumPy divides by a constant much faster than it takes a remainder."""
    q = np.uint64(modulus)
    return values - values // q * q
