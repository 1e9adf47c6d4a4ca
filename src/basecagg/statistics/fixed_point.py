"""Numbers of known size as whole elements of the field, so that their sums are exact.

K elements of up to 2ᵇ each have a sum that the field has room for: b = 24 for 67 centres. That is too coarse
for a gradient, so a number takes three elements: it is written in fixed point with 3b/2 − 1 bits (35), of which
the lower two elements have b/4 each. Elements are summed apart, and the room that is left in the lower ones
hides how often they carry. The unit is a power of two, so whole numbers come back as they were.
"""

from __future__ import annotations

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import Words
from basecagg.statistics.statistic import Vector

ELEMENTS = 3
"""Of one number."""
_MOST_BITS = 24
"""Half as many again are fewer than the 53 of a float64, so that scaling and rounding are exact."""
_LEAST_BITS = 8


def element_bits(members: int) -> int:
    """b: the most bits with which K·(2ᵇ + 1) ≤ (q − 3)/2, which `ProtocolParameters` asks for."""
    bits = ((PAPER_MODULUS - 3) // 2 // members - 1).bit_length() - 1
    if bits < _LEAST_BITS:
        raise ParameterError(f"{members} centres are too many for one sum", rule="b ≥ 8")
    return min(bits, _MOST_BITS)


def split(vector: Vector, bounds: Vector, bits: int, coins: Words) -> Vector:
    """Three elements for each number, all at most 2ᵇ in size; a number beyond its bound counts as the bound.

    A sum of lower elements would say how often it carries: that depends on each centre's number, not on their
    sum. So a centre moves a random part from each element down to the next: two `coins` for each number.
    """
    # What is no number counts as 0: neither this nor the bound may be seen from outside.
    inside = np.clip(np.nan_to_num(vector), -bounds, bounds)
    digit = _digit_bits(bits)
    # At most 2³ᵇᐟ²⁻¹ in size, so the highest element is at most 2ᵇ⁻¹. What is moved is less than 2ᵇ⁻¹ below, so
    # that there is room for the digit and for what is moved on.
    whole = np.rint(inside / units(bounds, bits)).astype(np.int64)
    room = bits - digit
    upper, lower = np.split((coins >> (32 - room)).astype(np.int64) - (1 << (room - 1)), 2)
    mask = (1 << digit) - 1
    high = (whole >> 2 * digit) - upper
    middle = (whole >> digit & mask) + (upper << digit) - lower
    low = (whole & mask) + (lower << digit)
    return np.concatenate([high, middle, low]).astype(np.float64)


def join(elements: Vector, bounds: Vector, bits: int) -> Vector:
    """The numbers that elements stand for, of one centre or summed.

    K·2ᵇ < 2³¹, so the whole numbers are at most 2³²⁺ᵇᐟ² ≤ 2⁴⁴ in size.
    """
    high, middle, low = np.split(elements.astype(np.int64), ELEMENTS)
    digit = _digit_bits(bits)
    numbers: Vector = ((high << 2 * digit) + (middle << digit) + low) * units(bounds, bits)
    return numbers


def _digit_bits(bits: int) -> int:
    """Of a number in each lower element; the others there hide the carry."""
    return bits // 4


def units(bounds: Vector, bits: int) -> Vector:
    """The smallest part of each number that its elements can say: a power of two."""
    _, exponents = np.frexp(bounds)
    powers: Vector = np.ldexp(1.0, exponents - (bits - 1 + 2 * _digit_bits(bits)))
    return powers
