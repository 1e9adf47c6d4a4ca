"""`python -m benchmarks.noise`: clipping, conditional rounding, noise and mask against encoding, one core."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.noise import noise_and_mask, noise_table, round_within
from basecagg.maths.norm_bounds import squared_bound
from basecagg.maths.randomness import FieldStream, WordStream
from benchmarks.sizes import MODULUS, Sizes
from benchmarks.timing import Task, minima

BAR = 2.0
LEVELS, CLIP_NORM, DEVIATION = 2**14, 1.0, 2**11


def seconds(d: int = 10**6) -> dict[str, float]:
    """What privacy adds to an upload, in turn with what dealing its mask takes for N = 100."""
    sizes = Sizes(100, d)
    code = MaskCode(sizes.n, sizes.u, sizes.t, threads=1)
    stream = FieldStream(bytes(32), MODULUS)
    mask = stream.draw(sizes.padded)
    rows = stream.draw(sizes.t * sizes.width).reshape(sizes.t, sizes.width)
    shares = code.encode(mask, rows)
    update = np.random.default_rng(1).normal(size=d).astype(np.float32)
    bound, table = squared_bound(LEVELS, CLIP_NORM, Decimal(1), d), noise_table(DEVIATION**2)
    coins, noise = WordStream(bytes(32)), WordStream(bytes([1] * 32))
    out = np.empty(d, np.uint32)
    rounded = out.view(np.int32)

    def hide() -> None:
        round_within(update, LEVELS, CLIP_NORM, 1.0, bound, coins, rounded)
        noise_and_mask(rounded, table, noise, mask[:d], MODULUS, out)

    return minima(
        [
            Task("encode", lambda: code.encode(mask, rows, out=shares)),
            Task("clip + round + noise", hide),
        ]
    )


def main() -> int:
    """Print both times and their ratio; fail if it is above the bar."""
    times = seconds()
    for name, time in times.items():
        print(f"{name}: {time * 1e3:.1f} ms")
    ratio = times["clip + round + noise"] / times["encode"]
    print(
        f"clip + round + noise / encode, N = 100, d = 10⁶, σ_i = 2¹¹: {ratio:.2f} (bar ≤ {BAR:g})"
    )
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
