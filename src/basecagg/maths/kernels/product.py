"""A fixed matrix times rows, mod any odd prime below 2³²."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import WIDTH, Panel, load, new_panel, store
from basecagg.maths.kernels.compiler import Addresses, kernel, numbers_of
from basecagg.maths.kernels.cores import over_columns
from basecagg.maths.kernels.dot import LONG_SUM, dot, padded, table_of


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
