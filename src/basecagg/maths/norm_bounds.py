"""How long a rounded update can be, and a sum of them with noise: the same integers on every machine.

Everything here is decided in decimal arithmetic of a fixed precision, because contributors, holders, server and
verifiers have to agree on it. Standard library only, so that parameters can ask before numpy is loaded.
Kairouz, Liu and Steinke (2021), "The distributed discrete Gaussian mechanism", is K-L-S below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
TAIL_BITS = 40
"""What must not happen by chance happens with a probability of 2⁻⁴⁰ at most."""


@lru_cache(maxsize=4096)
def squared_bound(levels: int, clip_norm: float, weight: Decimal, size: int) -> int:
    """⌊C̃(s)²⌋ (K-L-S, conditional rounding): no rounded update of d = `size` elements is longer than its root.

    The update was clipped to ‖Δ‖ ≤ C = `clip_norm`, weighed by s and multiplied by c_l = `levels`. An honest
    one has to be rounded again with a probability of β = 2⁻⁴⁰ at most.
    """
    with localcontext(_EXACT):
        n = levels * Decimal(clip_norm) * weight
        root = Decimal(size).sqrt()
        redraw = (2 * TAIL_BITS * Decimal(2).ln()).sqrt()
        likely = n * n + Decimal(size) / 4 + redraw * (n + root / 2)
        return int(min(likely, (n + root) ** 2))


@lru_cache(maxsize=4096)
def squared_change(levels: int, clip_norm: float, weight: Decimal, size: int) -> int:
    """⌊(n + √d)²⌋, n = c_l·s·C: how far two rounded updates can be apart that are ‖Δ − Δ′‖ ≤ C apart.

    With the same coins an element of the two differs by less than one step more than before rounding. Which
    of several coins fall does not depend on a record, so each has to hold by itself: nothing is rounded again.
    """
    with localcontext(_EXACT):
        return int((levels * Decimal(clip_norm) * weight + Decimal(size).sqrt()) ** 2)


def most_sampled(records: int, rate: float) -> int:
    """Records that a sample of `records`, each taken with probability `rate`, has at most, but for 2⁻⁴⁰.

    Bernstein: P(X ≥ b + t) ≤ exp(−t²/(2b + 2t/3)) for the mean b.
    """
    mean, tail = records * rate, TAIL_BITS * math.log(2)
    return min(records, math.ceil(mean + tail / 3 + math.sqrt(tail * tail / 9 + 2 * mean * tail)))


@lru_cache(maxsize=256)
def share_variance(noise: float, bound: int, honest: int) -> int:
    """σ_i²: so that K − T_c = `honest` shares of noise have σ = z·C̃ together; `bound` is C̃², z is `noise`.

    Rounded up to a whole number of steps squared, so that the table of the noise is the same everywhere.
    """
    return math.ceil(Fraction(noise) ** 2 * bound / honest)


def noise_reach(variance: int, members: int, size: int) -> int:
    """σ_i·√(2K·ln(2d·2⁴⁰)): no element of a sum of K shares of noise goes beyond, but for a tail of 2⁻⁴⁰."""
    with localcontext(_EXACT):
        return math.ceil((2 * members * variance * Decimal(size << (TAIL_BITS + 1)).ln()).sqrt())


def squared_sum_bound(bounds: Iterable[int], variance: int, size: int) -> int:
    """‖Σ r + noise‖² ≤ a² + 2aυ√(2t) + υ²(d + 2√(dt) + 2t) of honest members, but for a tail of 2⁻⁴⁰.

    a = Σ C̃(s_i) from the members' `squared_bound`s, υ² = K·σ_i², and 2e⁻ᵗ = 2⁻⁴⁰: the noise along the sum is
    sub-Gaussian, and its own length is bounded like a χ² variable (Laurent and Massart 2000).
    """
    squares = list(bounds)
    with localcontext(_EXACT):
        t, d = (TAIL_BITS + 1) * Decimal(2).ln(), Decimal(size)
        a = sum((Decimal(square).sqrt() for square in squares), Decimal(0))
        spread = Decimal(len(squares) * variance)
        along = 2 * a * spread.sqrt() * (2 * t).sqrt()
        return int(a * a + along + spread * (d + 2 * (d * t).sqrt() + 2 * t))
