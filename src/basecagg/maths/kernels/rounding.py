"""Clip, round, add discrete Gaussian noise, mask; and back: each in one pass over memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.elements import Elements
from basecagg.maths.kernels.compiler import kernel

Numbers = npt.NDArray[np.float32 | np.float64]
Words = npt.NDArray[np.uint32]
LongWords = npt.NDArray[np.uint64]


@kernel
def clip_and_count(
    x: Numbers,
    bound: np.float32 | np.float64,
    out: Numbers,
) -> int:
    """out = x within ±bound; how many elements lay outside, or −1 if one is NaN or infinite."""
    outside, finite = 0, True
    for i in range(x.size):
        size = abs(x[i])
        outside += size > bound
        finite &= size < np.inf  # false for NaN as well
        out[i] = x[i] if size <= bound else (bound if x[i] > 0 else -bound)
    return outside if finite else -1


@kernel
def round_and_mask(
    x: Numbers,
    levels: float,
    limit: float,
    q: np.uint32,
    words: Words,
    mask: Elements,
    out: Elements,
) -> bool:
    """out = φ(⌊c·x⌋ or ⌊c·x⌋ + 1) + mask mod q; False if an element is bad, and `out` void then.

    Bad is |c·x| > limit ≤ (q − 3)/2, c·x that is no number, and a mask ≥ q. No branch in the loop,
    so that it vectorises; who wants to know which element is bad looks again.
    """
    bad = False
    for i in range(x.size):
        scaled = np.float64(x[i]) * levels
        floor = np.floor(scaled)
        # A word and the scaling by 2³² are exact in float64; scaled − floor is, unless scaled lies
        # in −1…0, where it may be off by 2⁻⁵⁴: far below the 2⁻³² that a word resolves.
        up = np.float64(words[i]) < (scaled - floor) * 4294967296.0
        # |floor + up| ≤ (q − 3)/2 < 2³¹ fits int32. It stays in 32 bits, so that 8 or 16 fit in a
        # register: numba widens every sum to 64 bits unless it is told not to.
        rounded = np.int32(np.int32(floor) + np.int32(up))
        element = np.uint32(np.uint32(rounded) + q) if rounded < 0 else np.uint32(rounded)
        # element + mask could pass 2³²; element − (q − mask) cannot.
        room = np.uint32(q - mask[i])
        out[i] = np.uint32(element - room) if element >= room else np.uint32(element + mask[i])
        bad |= not (abs(scaled) <= limit)  # true for NaN as well
        bad |= mask[i] >= q
    return not bad


@kernel
def unmask_and_scale(
    total: Elements, mask: Elements, q: np.uint32, levels: float, out: npt.NDArray[np.float64]
) -> np.int64:
    """total −= mask mod q, and out = φ⁻¹(total)/levels; the largest |φ⁻¹|, or −1 if a word is not below q."""
    largest, good = np.int32(0), True
    half = np.uint32((q - np.uint32(1)) >> np.uint32(1))
    for i in range(total.size):
        good &= (total[i] < q) & (mask[i] < q)
        missing = q if total[i] < mask[i] else np.uint32(0)
        element = np.uint32(np.uint32(total[i] + missing) - mask[i])
        total[i] = element
        # −(q + 1)/2 ≥ −2³¹ + 2, so its size fits as well.
        number = np.int32(np.uint32(element - q)) if element >= half else np.int32(element)
        out[i] = np.float64(number) / levels
        largest = max(largest, np.int32(abs(number)))
    return np.int64(largest) if good else np.int64(-1)


@kernel
def sum_of_squares(x: Numbers) -> float:
    """Σ x² in float64, in eight sums so that they run side by side; not finite if an element is not."""
    a = b = c = d = e = f = g = h = 0.0
    whole = x.size - x.size % 8
    for i in range(0, whole, 8):
        a += np.float64(x[i]) * np.float64(x[i])
        b += np.float64(x[i + 1]) * np.float64(x[i + 1])
        c += np.float64(x[i + 2]) * np.float64(x[i + 2])
        d += np.float64(x[i + 3]) * np.float64(x[i + 3])
        e += np.float64(x[i + 4]) * np.float64(x[i + 4])
        f += np.float64(x[i + 5]) * np.float64(x[i + 5])
        g += np.float64(x[i + 6]) * np.float64(x[i + 6])
        h += np.float64(x[i + 7]) * np.float64(x[i + 7])
    for i in range(whole, x.size):
        a += np.float64(x[i]) * np.float64(x[i])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@kernel
def round_and_square(
    x: Numbers, factor: float, words: Words, out: npt.NDArray[np.int32]
) -> np.int64:
    """out = ⌊factor·x⌋ or one more, by the words as `round_and_mask` does; returns Σ out².

    The caller knows that ‖factor·x‖ < 2³⁰ and d < 2⁵⁰. So an element fits int32, and
    Σ out² ≤ (2³⁰ + √d)² < 2⁶².
    """
    total = np.int64(0)
    for i in range(x.size):
        scaled = np.float64(x[i]) * factor
        floor = np.floor(scaled)
        up = np.float64(words[i]) < (scaled - floor) * 4294967296.0
        rounded = np.int32(np.int32(floor) + np.int32(up))
        out[i] = rounded
        total += np.int64(rounded) * np.int64(rounded)
    return total


@kernel
def add_noise_and_mask(
    rounded: npt.NDArray[np.int32],
    columns: Words,
    halves: LongWords,
    spare: LongWords,
    high: LongWords,
    low: LongWords,
    other: npt.NDArray[np.int32],
    reach: int,
    q: np.uint32,
    mask: Elements,
    out: Elements,
) -> bool:
    """out = φ(rounded + noise) + mask mod q; False if a mask is not below q, and `out` void then.

    A word that ties with the upper half of a threshold is decided by a spare one: once in 2⁶⁴ draws.
    """
    last, ties, good = np.uint32(high.size - 1), 0, True
    modulus = np.int64(q)
    for i in range(rounded.size):
        column = columns[i] & last
        word, threshold = halves[i], high[column]
        own = word < threshold
        if word == threshold:
            own = spare[ties % spare.size] < low[column]
            ties += 1
        noise = np.int64(column) - reach if own else np.int64(other[column])
        # |rounded| ≤ 2³¹ and |noise| < 2¹⁸: with a mask below q the sum is above −q and below 2q.
        total = np.int64(rounded[i]) + noise + np.int64(mask[i])
        total += modulus if total < 0 else 0
        out[i] = np.uint32(total - modulus if total >= modulus else total)
        good &= mask[i] < q
    return good
