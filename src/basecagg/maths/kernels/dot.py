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

from basecagg.maths.kernels.balanced import WIDTH, combine, halves
from basecagg.maths.kernels.compiler import Pointer, fma, inner

# A sum has 4 terms, or a multiple of 8.
_SHORT, _CHUNK = 4, 8
# Terms until a sum must be reduced: 120·2³¹·2¹⁵ + 2³³ < 2⁵³ − 2³³, as `combine` asks.
_LONGEST = 120


def padded(terms: int) -> int:
    """The number of terms with which a sum of so many is computed."""
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
