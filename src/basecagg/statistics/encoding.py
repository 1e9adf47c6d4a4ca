"""How a centre's numbers become elements of the field: exactly, or rounded and with noise.

**Exactly.** K elements of up to 2ᵇ each have a sum that the field has room for: b = 24 for 67 centres. That is
too coarse for a gradient, so a number takes three elements: it is written in fixed point with 3b/2 − 1 bits
(35). The lower two elements have b/4 of them each. Elements are summed apart, and the room that is left in the
lower ones hides how often they carry. The unit is a power of two, so whole numbers come back as they were.

**With noise.** Every centre adds its part, so that the sum hides each single record. The unit is the record,
not the centre: neighbours are two worlds in which one record is there or not. A centre's vector is rounded
once, and what one record changes then is in `basecagg.privacy`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.noise import CUT, noise_and_mask, noise_table
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import quantize, signed
from basecagg.maths.randomness import Words, WordStream, derive_seed
from basecagg.maths.staleness import constant
from basecagg.planning.budget import Budget, spend
from basecagg.privacy import Mechanism
from basecagg.statistics.statistic import Statistic, Vector

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


def private_sums(
    statistic: Statistic[Any], budget: Budget, members: int, silent: int, *, bits: int
) -> Mechanism:
    """The least noise with which k_max such sums of K members keep the budget for every record.

    Of the members `silent` may tell the server their noise. A number and its noise have `bits` bits.
    """
    if statistic.per_record is None:
        raise ParameterError(
            f"{statistic.name}: nobody knows how much one record changes it, so no noise makes it private",
            rule="a private statistic has a bound for one record",
        )
    if (budget.sampling_rate, budget.records) != (1, 1):
        raise ParameterError(
            f"a sampling rate of {budget.sampling_rate:g} among {budget.records} records: every record is in"
            " every answer of a centre, so chance hides none",
            rule="statistics: sampling_rate = 1, records = 1",
        )
    of_records = replace(budget, unit="record", clip_norm=statistic.per_record)
    mechanism = spend(of_records, members, silent, statistic.bounds.size, constant())
    largest = mechanism.levels * float(statistic.bounds.max()) + 1
    if largest + CUT * mechanism.deviation + 1 > 2**bits:
        raise ParameterError(
            f"a bound of {statistic.bounds.max():g} in steps of 1/{mechanism.levels} does not fit, with noise,"
            f" into {bits} bits: lower the bound of a centre's vector, or ask fewer centres at once",
            rule="a vector with its noise fits into an element",
        )
    return mechanism


def blurred(vector: Vector, bounds: Vector, mechanism: Mechanism, seed: bytes) -> Vector:
    """The vector in steps, rounded and with this centre's part of the noise.

    The vector is clipped to its bounds, and a value that is no number counts as 0. Neither brings two
    neighbours further apart, and nobody outside may see either.
    """
    inside = np.clip(np.nan_to_num(vector), -bounds, bounds)
    coins = WordStream(derive_seed(seed, "private rounding")).draw(vector.size)
    steps = signed(quantize(inside, mechanism.levels, PAPER_MODULUS, coins), PAPER_MODULUS)
    noisy, none = np.empty(vector.size, np.uint32), np.zeros(vector.size, np.uint32)
    stream, table = WordStream(derive_seed(seed, "private noise")), noise_table(mechanism.variance)
    noise_and_mask(steps.astype(np.int32), table, stream, none, PAPER_MODULUS, noisy)
    return signed(noisy, PAPER_MODULUS).astype(np.float64)
