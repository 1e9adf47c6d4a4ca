"""Numbers of known size as whole elements of the field, so that their sums are exact.

K elements of up to 2ᵇ each have a sum that the field has room for: b = 24 for 67 centres. That is too coarse
for a gradient, so a number takes two elements: it is written in fixed point with 2b bits, and its high and its
low half are summed apart. The unit is a power of two, so whole numbers come back as they were.
"""

from __future__ import annotations

import numpy as np

from basecagg.errors import DataError, ParameterError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.statistics.statistic import Vector

_MOST_BITS = 24
"""Twice as many are fewer than the 53 of a float64, so that scaling and rounding are exact."""
_LEAST_BITS = 8


def element_bits(members: int) -> int:
    """b: the most bits with which K·(2ᵇ + 1) ≤ (q − 3)/2, which `ProtocolParameters` asks for."""
    bits = ((PAPER_MODULUS - 3) // 2 // members - 1).bit_length() - 1
    if bits < _LEAST_BITS:
        raise ParameterError(f"{members} centres are too many for one sum", rule="b ≥ 8")
    return min(bits, _MOST_BITS)


def split(vector: Vector, bounds: Vector, bits: int) -> Vector:
    """Two elements for each number, both at most 2ᵇ in size; a number beyond its bound is refused."""
    # Written so that what is no number is refused as well.
    beyond = ~(np.abs(vector) <= bounds)
    if beyond.any():
        raise DataError(f"number {np.argmax(beyond)} of this centre is beyond its agreed bound")
    # At most 2²ᵇ ≤ 2⁴⁸ in size.
    whole = np.rint(vector / _units(bounds, bits)).astype(np.int64)
    high, low = whole >> bits, whole & ((1 << bits) - 1)
    return np.concatenate([high, low]).astype(np.float64)


def join(elements: Vector, bounds: Vector, bits: int) -> Vector:
    """The numbers that elements stand for, of one centre or summed.

    K·2ᵇ < 2³¹, so the whole numbers are at most 2³¹⁺ᵇ ≤ 2⁵⁵ in size.
    """
    high, low = np.split(elements.astype(np.int64), 2)
    numbers: Vector = ((high << bits) + low) * _units(bounds, bits)
    return numbers


def _units(bounds: Vector, bits: int) -> Vector:
    _, exponents = np.frexp(bounds)
    units: Vector = np.ldexp(1.0, exponents - 2 * bits)
    return units
