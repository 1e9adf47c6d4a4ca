"""Add or subtract rows of field elements, and reduce mod q once at the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.compiler import kernel
from basecagg.maths.randomness import Words

Totals = npt.NDArray[np.uint64]


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
    """out = total mod q. For q = 2³² − 5 without a division: 2³² ≡ 5."""
    low, shift, five, modulus = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(5), np.uint64(q)
    if q == np.uint32(4294967291):
        for i in range(out.size):
            # The first fold leaves less than 6·2³², the second less than 2³² + 25 < 2q.
            x = (total[i] >> shift) * five + (total[i] & low)
            x = (x >> shift) * five + (x & low)
            out[i] = np.uint32(x - modulus if x >= modulus else x)
    else:
        for i in range(out.size):
            out[i] = np.uint32(total[i] % modulus)
