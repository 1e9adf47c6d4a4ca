"""Clip; round, lift into the field and mask: each in one pass over memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.elements import Elements
from basecagg.maths.kernels.compiler import kernel


@kernel
def clip_and_count(
    x: npt.NDArray[np.float32 | np.float64],
    bound: np.float32 | np.float64,
    out: npt.NDArray[np.float32 | np.float64],
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
    x: npt.NDArray[np.float32 | np.float64],
    levels: float,
    limit: float,
    q: np.uint32,
    words: npt.NDArray[np.uint32],
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
