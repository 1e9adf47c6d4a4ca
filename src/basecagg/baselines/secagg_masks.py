"""Many PRG streams added to one vector: where SecAgg spends its time.

Works through the vector in pieces that stay in the cache: every stream fills the same scratch memory, which is
added to 64-bit totals at once, and each total is reduced mod q once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from basecagg.maths.kernels.accumulate import add_row, reduce_totals, subtract_row
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import FieldStream, Words

_PIECE = 1 << 15


def add_masks(vector: Words, added: Iterable[bytes], subtracted: Iterable[bytes]) -> Words:
    """vector + Σ PRG(seed) over `added` − Σ PRG(seed) over `subtracted`, mod q = 2³² − 5."""
    plus = [FieldStream(seed, PAPER_MODULUS) for seed in added]
    minus = [FieldStream(seed, PAPER_MODULUS) for seed in subtracted]
    out = np.empty(vector.size, np.uint32)
    scratch = np.empty(_PIECE, np.uint32)
    q = np.uint32(PAPER_MODULUS)
    for start in range(0, vector.size, _PIECE):
        total = vector[start : start + _PIECE].astype(np.uint64)
        words = scratch[: total.size]
        for stream in plus:
            add_row(total, stream.draw(total.size, words))
        for stream in minus:
            subtract_row(total, stream.draw(total.size, words), q)
        reduce_totals(total, q, out[start : start + _PIECE])
    return out
