"""Privacy of an upload: clip by length and round within a bound, then add discrete Gaussian noise.

Stochastic rounding makes a vector longer, by √d/2 or so. Kairouz, Liu and Steinke (2021) round again until the
result is at most C̃ long, which it nearly always is at once. What is promised is checked in integers: no error
of floating point can exceed it.

The noise is the discrete Gaussian N_ℤ(0, σ²), drawn from a table without any float.
Canonne, Kamath and Steinke (2020) define it: P(k) ∝ exp(−k²/2σ²) on the integers. Here it is cut at 14σ and
its probabilities are multiples of 2⁻¹²⁸/n; together that is a statistical distance of less than 2⁻¹²⁷ for
one draw. Walker's alias method draws in constant time: a column of n by some bits, and one of its two values
by comparing 128 more with the column's threshold.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError, ParameterError
from basecagg.maths.elements import Elements, checked_shape
from basecagg.maths.kernels.rounding import add_noise_and_mask, round_and_square, sum_of_squares
from basecagg.maths.primes import require_modulus
from basecagg.maths.quantization import Reals, checked_reals
from basecagg.maths.randomness import WordStream

CUT = 14
"""σ: P(|X| > 14σ) ≤ 2e⁻⁹⁸ < 2⁻¹⁴⁰."""
MOST_VARIANCE = 2**26
"""A table of σ = 2¹³ has 2¹⁸ columns; it takes 5 MB, and a second to make."""
_UNIT = 1 << 128
_HALF = (1 << 64) - 1
_SPARE = 8
"""Second words for columns whose first word ties, in a segment of 2²⁰ draws. A single tie has 2⁻⁴⁴ there."""
_EXACT = Context(prec=90, rounding=ROUND_HALF_EVEN)
_SEGMENT = 1 << 20
"""Elements that are rounded at a time."""
_TRIES = 64
"""Each fails with a probability of 2⁻⁴⁰ at most."""
_SHORTER = 1 - 2.0**-30
"""What is clipped ends a little below C: more than the norm in float64 may be wrong by."""
Rounded = npt.NDArray[np.int32]


class NoiseTable(NamedTuple):
    """Columns of the alias method: column k gives k − reach below its threshold, else another value."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    """The threshold is high·2⁶⁴ + low."""
    other: npt.NDArray[np.int32]
    reach: int


@lru_cache(maxsize=4)
def noise_table(variance: int) -> NoiseTable:
    """The table for σ² = `variance`. A power of two of columns, so that bits choose one uniformly."""
    if not 1 <= variance <= MOST_VARIANCE:
        raise ParameterError(
            f"the variance σ² = {variance} of the noise is outside 1…{MOST_VARIANCE}",
            rule="1 ≤ σ_i² ≤ 2²⁶",
        )
    reach = math.isqrt(CUT * CUT * variance) + 1
    columns = 1 << (2 * reach).bit_length()
    masses = _masses(variance, reach, columns)
    thresholds, others = _pair(masses + [0] * (columns - len(masses)))
    high = np.array([threshold >> 64 for threshold in thresholds], np.uint64)
    low = np.array([threshold & _HALF for threshold in thresholds], np.uint64)
    return NoiseTable(high, low, np.array(others, np.int32) - np.int32(reach), reach)


def _masses(variance: int, reach: int, columns: int) -> list[int]:
    """P(k) for k = −reach…reach in units of 2⁻¹²⁸/columns, rounded down; what is left over goes to 0.

    exp(−k²/2σ²) by its recurrence: each step has a relative error of 10⁻⁸⁹, and there are at most 2¹⁷.
    """
    with localcontext(_EXACT):
        ratio, step = (Decimal(-1) / variance).exp(), (Decimal(-1) / (2 * variance)).exp()
        weights = [Decimal(1)]
        for _ in range(reach):
            weights.append(weights[-1] * step)
            step *= ratio
        scale = columns * _UNIT / (2 * sum(weights, Decimal(0)) - 1)
        side = [int(weight * scale) for weight in weights]
    side[0] = columns * _UNIT - 2 * sum(side[1:])
    return [*reversed(side), *side[1:]]


def _pair(masses: list[int]) -> tuple[list[int], list[int]]:
    """Fill every column with its own mass up to a threshold, and with one other's above it.

    A column that is full keeps itself as its other: then the threshold does not matter.
    """
    left, others = list(masses), list(range(len(masses)))
    thresholds = [_UNIT - 1] * len(masses)
    small = [k for k, mass in enumerate(left) if mass < _UNIT]
    large = [k for k, mass in enumerate(left) if mass >= _UNIT]
    while small and large:
        poor, rich = small.pop(), large[-1]
        thresholds[poor], others[poor] = left[poor], rich
        left[rich] -= _UNIT - left[poor]
        if left[rich] < _UNIT:
            small.append(large.pop())
    return thresholds, others


def noise_and_mask(
    rounded: Rounded,
    table: NoiseTable,
    stream: WordStream,
    mask: Elements,
    modulus: int,
    out: Elements,
) -> None:
    """φ(rounded + noise) + z mod q, in one pass; `out` may be the memory of `rounded`.

    An element takes three words of the stream: which column, and half of what is compared with its threshold.
    """
    require_modulus(modulus, least=3)
    if rounded.dtype != np.int32 or rounded.ndim != 1:
        raise DataError("rounded must be a vector of int32")
    count = rounded.size
    columns = checked_shape(stream.draw(count), "columns", rounded.shape)
    halves = stream.draw(2 * count).view(np.uint64)
    spare = stream.draw(2 * _SPARE).view(np.uint64)
    mask = checked_shape(mask, "mask", rounded.shape)
    high, low, other, reach = table
    q = np.uint32(modulus)
    if not add_noise_and_mask(
        rounded, columns, halves, spare, high, low, other, reach, q, mask, out
    ):
        raise DataError("mask has a word that is not below q")


# --- clip and round --------------------------------------------------------------------------------


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
