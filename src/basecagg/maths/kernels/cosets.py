"""Encoding in the paper's field: evaluate polynomials at cosets of roots of unity.

At β = g·ζ^k·ω^s the power β^u is g^u·ζ^(k·(u mod 19))·ω^(s·(u mod 10)). So of all coefficients with
the same u mod 190 (u mod 10, if the coset has no ζ) one sum Σ g^u·row_u suffices, for each coset;
two short Fourier transforms make its values at all points of it. For N holders and U coefficients
that is N·U/190 products and two transforms instead of N·U products.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import WIDTH, Panel, fetch, load, new_panel, store
from basecagg.maths.kernels.compiler import Addresses, Pointer, inner, kernel, numbers_of
from basecagg.maths.kernels.cores import over_columns
from basecagg.maths.kernels.dot import dot, padded, table_of
from basecagg.maths.kernels.fourier import FOLDED, table_19, transform_10, transform_19
from basecagg.maths.kernels.roots import shifts
from basecagg.maths.primes import PAPER_MODULUS

_Q = float(PAPER_MODULUS)


class CosetEvaluation:
    """out = values of the polynomials with coefficients `rows` at roots.points(coset, number)."""

    def __init__(self, coset: int, number: int, coefficients: int) -> None:
        """Prepare the powers g^u; a quarter of each, as `transform_10` gives four times its sum."""
        self._coset = coset
        self._cosets = -(-number // coset)
        self._cosets += self._cosets % 2  # `dot` makes two rows at once
        terms = -(-coefficients // coset)
        self._terms = padded(terms)
        # Beyond the last coefficient the powers stay 0.
        powers = np.zeros((self._cosets, coset * terms), np.uint32)
        powers[:, :coefficients] = self._quartered_powers(coefficients)
        by_class = powers.reshape(self._cosets, terms, coset)
        tables = [table_of(by_class[:, :, u], PAPER_MODULUS) for u in range(coset)]
        self._table = np.concatenate(tables)
        self._table_19 = table_19()

    def __call__(self, rows: Addresses, out: Addresses, columns: int, threads: int) -> int:
        """Fill the rows of `out`; return the largest word read. If that is ≥ q, `out` is void."""

        def work(begin: int, end: int) -> int:
            sizes = self._terms, FOLDED, self._cosets * self._coset
            data, scratch, values = (new_panel(size) for size in sizes)
            shape = self._coset, self._cosets, self._terms
            tables = self._table, self._table_19
            return int(_evaluate(shape, tables, rows, out, begin, end, data, scratch, values))

        return over_columns(work, columns, rows.size + out.size, threads)

    def _quartered_powers(self, number: int) -> npt.NDArray[np.uint32]:
        quarter = pow(4, -1, PAPER_MODULUS)
        powers = np.empty((self._cosets, number), np.uint32)
        for c, g in enumerate(shifts(self._coset, self._cosets)):
            power = quarter
            for u in range(number):
                powers[c, u] = power
                power = power * g % PAPER_MODULUS
        return powers


@kernel
def _evaluate(
    shape: tuple[int, int, int],
    tables: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    rows: Addresses,
    out: Addresses,
    begin: int,
    end: int,
    data_panel: Panel,
    scratch_panel: Panel,
    values_panel: Panel,
) -> np.int64:
    coset, _, _ = shape
    table, table_19 = numbers_of(tables[0]), numbers_of(tables[1])
    data, scratch = numbers_of(data_panel), numbers_of(scratch_panel)
    values = numbers_of(values_panel)
    largest = np.int64(0)
    for column in range(begin, end, WIDTH):
        count = min(WIDTH, end - column)
        seen = _fold(shape, table, rows, column, count, data, scratch, values)
        largest = max(largest, seen)
        for point in range(0, out.size, coset):
            tens = (min(coset, out.size - point) + 9) // 10
            if coset > 10:
                for s in range(point, point + 10):
                    transform_19(values, s * WIDTH, scratch, table_19, -(-(tens - 1) // 6))
            for ten in range(point, point + 10 * tens, 10):
                _transform_and_store(values, ten, out, column, count)
    return largest


@inner
def _transform_and_store(
    values: Pointer, ten: int, out: Addresses, column: int, count: int
) -> None:
    """Make the values at ten points, and write those that are wanted."""
    wanted = range(ten, min(ten + 10, out.size))
    for i in wanted:
        fetch(out[i], column)
    transform_10(values, ten * WIDTH)
    for i in wanted:
        store(values, i * WIDTH, out[i], column, count, _Q, 1.0 / _Q)


@inner
def _fold(
    shape: tuple[int, int, int],
    table: Pointer,
    rows: Addresses,
    column: int,
    count: int,
    data: Pointer,
    scratch: Pointer,
    values: Pointer,
) -> np.int64:
    """For each class u mod coset and each coset, Σ g^u·row_u/4; return the largest word read.

    The sum of class u goes to row 10·(u mod 19) + u mod 10 of its coset: where the transforms look.
    """
    coset, cosets, terms = shape
    entry, largest = 0, np.int64(0)
    for u in range(coset):
        # A class may have one row less than others: what lies there still is multiplied by 0.
        for t, row in enumerate(range(u, rows.size, coset)):
            largest = max(largest, load(rows[row], column, count, data, t * WIDTH, _Q))
        place = u % (coset // 10) * 10 + u % 10
        for c in range(0, cosets, 2):
            first = (c * coset + place) * WIDTH
            second = first + coset * WIDTH
            dot(data, terms, table, entry, values, first, second, scratch, _Q, 1.0 / _Q)
            entry += 4 * terms
    return largest
