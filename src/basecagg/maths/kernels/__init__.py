"""The compiled loops behind `maths`: README.md in this directory says how they work, and why exactly."""

from __future__ import annotations

import time
from pathlib import Path


def warm_up(spare: Path | None = None) -> float:
    """Compile every kernel, or load it from numba's cache; give the seconds that took.

    Where numba finds no folder for its cache that can be written to, it is in the spare one.

    Worth calling where a pause is welcome: a fresh installation compiles for some seconds. The
    imports stand here because they are most of what is loaded.
    """
    start = time.perf_counter()
    import numpy as np

    from basecagg.maths.kernels.compiler import find_cache
    from basecagg.maths.kernels.modular_sums import add_row, keep_below, reduce_totals, subtract_row
    from basecagg.maths.kernels.ring import GROUP, SIZE
    from basecagg.maths.mds_code import MaskCode
    from basecagg.maths.noise import noise_and_mask, noise_table, round_within
    from basecagg.maths.packing import pack, sum_packed, unpack
    from basecagg.maths.prime_field import PrimeField
    from basecagg.maths.quantization import clip_update, quantize, unmask
    from basecagg.maths.randomness import WordStream
    from basecagg.maths.ring import RingProduct

    find_cache(spare)
    field, one = PrimeField(), np.ones(1, np.uint32)
    field.sub(one, one)
    field.weighted_sum([one], [1])
    code = MaskCode(num_holders=11, recovery_threshold=2, max_colluders=1)
    shares = code.encode(one, one.reshape(1, 1))
    code.correct(dict(enumerate(shares)), code.recovery_threshold)
    for dtype in (np.float32, np.float64):
        clip_update(np.ones(1, dtype), 1.0)
        quantize(np.ones(1, dtype), 1, field.modulus, one)
        words, rounded = WordStream(bytes(32)), np.zeros(1, np.int32)
        round_within(np.ones(1, dtype), 1, 1.0, 1.0, 1, words, rounded)
    noise_and_mask(
        rounded, noise_table(1), words, np.zeros(1, np.uint32), field.modulus, one.copy()
    )
    unmask(one.copy(), one, 1, field.modulus, out=np.empty(1))
    group = np.zeros(GROUP, np.uint32)
    RingProduct(np.zeros(SIZE, np.uint32), 2**32 - 12287)(group, group)
    keep_below(group, np.uint32(1))
    unpack(pack(group, 2), 2)
    sum_packed(PrimeField(2), [bytes(12)], [1])
    total, q = np.zeros(1, np.uint64), np.uint32(field.modulus)
    add_row(total, one)
    subtract_row(total, one, q)
    reduce_totals(total, q, one)
    return time.perf_counter() - start
