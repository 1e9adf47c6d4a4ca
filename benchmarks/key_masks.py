"""`python -m benchmarks.key_masks`: hiding an update and opening a sum with masks from keys, one core.

Measured against what no upload can do without: to copy d words, and to make as many with AES.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from basecagg.maths.approved_rings import APPROVED
from basecagg.maths.kernels.ring import GROUP
from basecagg.maths.key_masks import key_of, mask_of_sum, mask_of_upload, unmask_with
from basecagg.maths.packing import pack, unpack
from basecagg.maths.quantization import clip_update, quantize_and_mask, require_finite
from basecagg.maths.randomness import FieldStream, WordStream
from benchmarks import limits
from benchmarks.timing import Task, minima

BAR = 10.0
SEED, FRESH, EPOCH = (bytes([k] * 32) for k in range(3))
LEVELS, CLIP = 2**15, 4.0
SEGMENT = 4 * GROUP
"""Words that are hidden at a time: what they take stays in the second cache."""


def seconds(d: int = 10**6) -> dict[str, float]:
    """Both limits, and for each approved ring what a contributor and who opens a sum do with d words."""
    tasks = [Task("copy", limits.copier(4 * d)), Task("AES", limits.aes(4 * d))]
    for q in (ring.modulus for ring in APPROVED):
        words = FieldStream(SEED, q).draw(d)
        packed = pack(words, q).tobytes()
        tasks += [
            Task(f"hide, q = {q}", hider(d, q)),
            Task(f"unmask and scale, q = {q}", opener(words, q)),
            Task(f"pack, q = {q}", partial(pack, words, q)),
            Task(f"unpack, q = {q}", partial(unpack, packed, q)),
        ]
    return minima(tasks)


def hider(d: int, q: int) -> Callable[[], object]:
    """Clip, round, add the mask and its error, as `protocol.masking.hide` does."""
    update = np.random.default_rng(1).normal(size=d).astype(np.float32)
    masked, clipped = np.empty(d, np.uint32), np.empty(SEGMENT, np.float32)
    drawn = np.empty((2, SEGMENT), np.uint32)

    def hide() -> None:
        require_finite(update)
        mask, coins = mask_of_upload(SEED, FRESH, EPOCH, q), WordStream(SEED)
        for at in range(0, d, SEGMENT):
            out = masked[at : at + SEGMENT]
            part, _ = clip_update(update[at : at + SEGMENT], CLIP, out=clipped[: out.size])
            rounding, cover = drawn[:, : out.size]
            draws = coins.draw(out.size, rounding), mask.draw(out.size, cover)
            quantize_and_mask(part, LEVELS, q, *draws, out=out)

    return hide


def opener(words: np.ndarray, q: int) -> Callable[[], object]:
    """Grow the sum of masks from the sum of keys, take it off, bring the numbers back."""
    key, total = key_of(SEED, q), words.copy()
    return lambda: unmask_with(mask_of_sum(key, EPOCH, q), total, LEVELS, q)


def main() -> int:
    """Print all times, over the limit too; fail if hiding takes longer than the bar."""
    times = seconds()
    limit = times["copy"] + times["AES"]
    for name, time in times.items():
        print(f"{name}: {time * 1e3:.2f} ms, {time / limit:.2f} × (copy + AES)")
    worst = max(time / limit for name, time in times.items() if name.startswith("hide"))
    print(f"hide / (copy + AES), d = 10⁶: {worst:.2f} (bar ≤ {BAR:g})")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
