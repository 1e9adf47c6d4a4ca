"""Clip an update by its length and round it so that the rounded one is never longer than promised.

Stochastic rounding makes a vector longer, by √d/2 or so. Kairouz, Liu and Steinke (2021) round again until the
result is at most C̃ long, which it nearly always is at once. What is promised is checked in integers: no error
of floating point can exceed it.
"""

from __future__ import annotations

import math

import numpy as np

from basecagg.maths.kernels.noise import round_and_square, sum_of_squares
from basecagg.maths.noise import Rounded
from basecagg.maths.quantization import Reals, checked_reals
from basecagg.maths.randomness import WordStream

_SEGMENT = 1 << 20
"""Elements that are rounded at a time."""
_TRIES = 64
"""Each fails with a probability of 2⁻⁴⁰ at most."""
_SHORTER = 1 - 2.0**-30
"""What is clipped ends a little below C: more than the norm in float64 may be wrong by."""


def round_within(
    x: Reals,
    levels: int,
    clip_norm: float,
    weight: float,
    bound: int,
    coins: WordStream,
    out: Rounded,
) -> bool:
    """out = x clipped to ‖x‖ ≤ C, times s·c_l, rounded so that Σ out² ≤ C̃² = `bound`; whether x was clipped.

    What is no number, or infinite, is taken for zeros: that it happened must not be seen from outside.
    """
    x, factor, clipped = _scaled(checked_reals(x), clip_norm)
    factor *= levels * weight
    for _ in range(_TRIES):
        if _round(x, factor, coins, out) <= bound:
            return clipped
    out[:] = 0
    return clipped


def _round(x: Reals, factor: float, coins: WordStream, out: Rounded) -> int:
    total = 0
    for at in range(0, x.size, _SEGMENT):
        part = x[at : at + _SEGMENT]
        total += int(round_and_square(part, factor, coins.draw(part.size), out[at : at + _SEGMENT]))
    return total


def _scaled(x: Reals, clip_norm: float) -> tuple[Reals, float, bool]:
    """A vector and a factor that make x clipped to C, and whether it had to be."""
    square = float(sum_of_squares(x))
    if math.isfinite(square):
        # A sum that underflows is of a vector much shorter than any C.
        norm = math.sqrt(square)
        return (x, clip_norm / norm * _SHORTER, True) if norm > clip_norm else (x, 1.0, False)
    if not np.isfinite(x).all():
        return np.zeros_like(x), 1.0, True
    x = x / np.abs(x).max()
    return x, clip_norm / math.sqrt(float(sum_of_squares(x))) * _SHORTER, True
