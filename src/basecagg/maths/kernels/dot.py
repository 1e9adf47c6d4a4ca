"""Sums of products mod q: two rows of coefficients times the rows of a panel.

Two rows at once, because every number loaded then serves four products. A small generator writes
the loops: only with every coefficient in a variable of its own does the compiler keep them in
registers, and nobody should have to read the 32 lines of a sum of 8.

Panels that a loop reads and panels that it writes are different arguments: told apart like this,
the compiler proves with one comparison that they do not overlap, and vectorises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import WIDTH, Panel, combine, halves, load, new_panel, store
from basecagg.maths.kernels.compiler import Addresses, Pointer, fma, inner, kernel, numbers_of
from basecagg.maths.kernels.cores import over_columns

# A sum has 4 terms, or a multiple of 8.
_SHORT, _CHUNK = 4, 8
# Terms until a sum must be reduced: 120·2³¹·2¹⁵ + 2³³ < 2⁵³ − 2³³, as `combine` asks.
_LONGEST = 120


def padded(terms: int) -> int:
    """The number of terms that a sum is filled up to: 4, or a multiple of 8."""
    return _SHORT if terms <= _SHORT else -(-terms // _CHUNK) * _CHUNK


def table_of(matrix: npt.NDArray[np.uint32], modulus: int) -> npt.NDArray[np.float64]:
    """The coefficients in the order in which the loops read them.

    That is: by pairs of rows, by chunks of terms, by row of the pair, by half, by term.
    An odd last row and missing terms are filled up with zeros.
    """
    rows, terms = matrix.shape
    length = padded(terms)
    chunk = min(length, _CHUNK)
    full = np.zeros((2, rows + rows % 2, length))
    full[:, :rows, :terms] = halves(matrix, modulus)
    split = full.reshape(2, -1, 2, length // chunk, chunk)
    return np.ascontiguousarray(split.transpose(1, 3, 2, 0, 4)).reshape(-1)


def _unrolled(
    name: str,
    terms: int,
    *,
    begin: str,
    end: str,
    arguments: str = "first, second, q, inverse",
) -> Any:
    """Compile a loop over columns j that sums `terms` products for each of two rows.

    The sums are high1, low1, high2, low2, after the halves of the coefficients at table[entry…];
    `begin` and `end` are the lines before and after them, which may use `arguments`.
    """
    sums = ("high1", "low1", "high2", "low2")
    indices = range(terms)
    lines = [f"def {name}(data, row, table, entry, out, {arguments}):"]
    for s, total in enumerate(sums):
        lines += [f" {total}_{i} = table[entry + {s * terms + i}]" for i in indices]
    lines += [" for j in range(WIDTH):", *_indented(begin)]
    lines += [f"  x{i} = data[row + {i * WIDTH} + j]" for i in indices]
    for total in sums:
        lines += [f"  {total} = fma({total}_{i}, x{i}, {total})" for i in indices]
    lines += _indented(end)
    scope: dict[str, Any] = {"WIDTH": WIDTH, "fma": fma, "combine": combine}
    exec("\n".join(lines), scope)  # noqa: S102  # the text above, and no input
    return inner(scope[name])


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip().splitlines()]


_FROM_ZERO = "high1 = low1 = high2 = low2 = 0.0"
_TO_RESIDUES = """
out[first + j] = combine(high1, low1, q, inverse)
out[second + j] = combine(high2, low2, q, inverse)
"""
_dot_4 = _unrolled("dot_4", _SHORT, begin=_FROM_ZERO, end=_TO_RESIDUES)
_dot_8 = _unrolled("dot_8", _CHUNK, begin=_FROM_ZERO, end=_TO_RESIDUES)

# A long sum lies in four rows: high1, low1, high2, low2.
_add_8 = _unrolled(
    "add_8",
    _CHUNK,
    arguments="",
    begin="""
high1 = out[j]; low1 = out[WIDTH + j]; high2 = out[2 * WIDTH + j]; low2 = out[3 * WIDTH + j]
""",
    end="""
out[j] = high1; out[WIDTH + j] = low1; out[2 * WIDTH + j] = high2; out[3 * WIDTH + j] = low2
""",
)

LONG_SUM = 4
"""Rows of scratch that `dot` needs."""


@inner
def dot(
    data: Pointer,
    terms: int,
    table: Pointer,
    entry: int,
    out: Pointer,
    first: int,
    second: int,
    scratch: Pointer,
    q: float,
    inverse: float,
) -> None:
    """Rows first and second of out = two sums of `terms` products with the rows of `data`.

    The numbers there are at most 2³¹ in size; the sums are residues below 1.001·q.
    """
    if terms == _SHORT:
        _dot_4(data, 0, table, entry, out, first, second, q, inverse)
    elif terms == _CHUNK:
        _dot_8(data, 0, table, entry, out, first, second, q, inverse)
    else:
        _long_dot(data, terms, table, entry, scratch, q, inverse)
        for j in range(WIDTH):
            out[first + j] = scratch[WIDTH + j]
            out[second + j] = scratch[3 * WIDTH + j]


@inner
def _long_dot(
    data: Pointer,
    terms: int,
    table: Pointer,
    entry: int,
    scratch: Pointer,
    q: float,
    inverse: float,
) -> None:
    """The two sums, in rows 1 and 3 of scratch."""
    for j in range(LONG_SUM * WIDTH):
        scratch[j] = 0.0
    for begin in range(0, terms, _LONGEST):
        for t in range(begin, min(begin + _LONGEST, terms), _CHUNK):
            _add_8(data, t * WIDTH, table, entry + 4 * t, scratch)
        for j in range(WIDTH):
            scratch[WIDTH + j] = combine(scratch[j], scratch[WIDTH + j], q, inverse)
            scratch[3 * WIDTH + j] = combine(
                scratch[2 * WIDTH + j], scratch[3 * WIDTH + j], q, inverse
            )
            scratch[j] = scratch[2 * WIDTH + j] = 0.0


# --- a matrix times rows -------------------------------------------------------------------------


class Product:
    """out = matrix · rows mod q, the matrix prepared once. Rows are given by their addresses."""

    def __init__(self, matrix: npt.NDArray[np.uint32], modulus: int) -> None:
        self._terms = padded(matrix.shape[1])
        self._table = table_of(matrix, modulus)
        self._q = float(modulus)

    def __call__(self, rows: Addresses, out: Addresses, columns: int, threads: int) -> int:
        """Fill the rows of `out`; return the largest word read. If that is ≥ q, `out` is void."""

        def work(begin: int, end: int) -> int:
            data, scratch, pair = (new_panel(n) for n in (self._terms, LONG_SUM, 2))
            matrix = self._table, self._terms
            return int(_multiply(matrix, rows, out, begin, end, self._q, data, scratch, pair))

        return over_columns(work, columns, rows.size + out.size, threads)


@kernel
def _multiply(
    matrix: tuple[npt.NDArray[np.float64], int],
    rows: Addresses,
    out: Addresses,
    begin: int,
    end: int,
    q: float,
    data_panel: Panel,
    scratch_panel: Panel,
    pair_panel: Panel,
) -> np.int64:
    data, scratch, pair = numbers_of(data_panel), numbers_of(scratch_panel), numbers_of(pair_panel)
    table, terms = numbers_of(matrix[0]), matrix[1]
    inverse = 1.0 / q
    largest = np.int64(0)
    for column in range(begin, end, WIDTH):
        count = min(WIDTH, end - column)
        for u in range(rows.size):
            largest = max(largest, load(rows[u], column, count, data, u * WIDTH, q))
        for i in range(0, out.size, 2):
            dot(data, terms, table, 2 * i * terms, pair, 0, WIDTH, scratch, q, inverse)
            store(pair, 0, out[i], column, count, q, inverse)
            if i + 1 < out.size:
                store(pair, WIDTH, out[i + 1], column, count, q, inverse)
    return largest
