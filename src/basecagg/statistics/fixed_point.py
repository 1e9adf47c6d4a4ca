"""Numbers of known size as whole elements of the field, so that their sums are exact.

K elements of up to 2ᵇ each have a sum that the field has room for: b = 24 for 67 centres. That is too coarse
for a gradient, so a number takes two elements: it is written in fixed point with 3b/2 − 1 bits, 35 for b = 24,
and its upper and its lower part are summed apart. What is left of the lower element hides how often it carries.
The unit is a power of two, so whole numbers come back as they were.
"""

from __future__ import annotations

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import Words
from basecagg.statistics.statistic import Vector

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
    """Two elements for each number, both at most 2ᵇ in size; a number beyond its bound counts as the bound.

    The two are summed apart, and the sum of lower halves would say how often it carries: a function of each
    centre's number, not of their sum. So a centre moves some of the upper half into the lower one, by coins.
    """
    # What is no number counts as 0: neither this nor the bound may be seen from outside.
    inside = np.clip(np.nan_to_num(vector), -bounds, bounds)
    lower = _lower(bits)
    # At most 2³⁵ in size, so the upper half is at most 2ᵇ⁻¹, and has room for what is moved.
    whole = np.rint(inside / _units(bounds, bits)).astype(np.int64)
    spare = bits - lower
    moved = (coins >> (31 - spare)).astype(np.int64) - (1 << spare)
    high, low = (whole >> lower) - moved, (whole & ((1 << lower) - 1)) + (moved << lower)
    return np.concatenate([high, low]).astype(np.float64)


def join(elements: Vector, bounds: Vector, bits: int) -> Vector:
    """The numbers that elements stand for, of one centre or summed.

    K·2ᵇ < 2³¹, so the whole numbers are at most 2³²⁺ᵇᐟ² ≤ 2⁴⁴ in size.
    """
    high, low = np.split(elements.astype(np.int64), 2)
    numbers: Vector = ((high << _lower(bits)) + low) * _units(bounds, bits)
    return numbers


def _lower(bits: int) -> int:
    """Bits of a number in the lower element; the others of it hide the carry."""
    return bits // 2


def _units(bounds: Vector, bits: int) -> Vector:
    _, exponents = np.frexp(bounds)
    units: Vector = np.ldexp(1.0, exponents - (bits + _lower(bits) - 1))
    return units
