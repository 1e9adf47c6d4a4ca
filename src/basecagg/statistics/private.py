"""Noise in a sum over records: every centre adds its share, so that the sum hides each single record.

The unit is the record, not the centre: neighbours are two worlds in which one record is there or not. A
centre's vector is rounded once, which may add a step to each difference: Δ̃ = c·Δ + √d. The rest is the
mechanism of `basecagg.privacy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.noise import CUT, noise_and_mask, noise_table
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import quantize, signed
from basecagg.maths.randomness import WordStream, derive_seed
from basecagg.planning.budget import Budget
from basecagg.privacy import LEAST_DEVIATION, Mechanism, Privacy
from basecagg.statistics.statistic import Statistic, Vector

_MOST_VARIANCE = 2**22
"""σ_i² in steps up to which a table of the noise is small and quickly made."""


@dataclass(frozen=True)
class PerRecord(Mechanism):
    """The mechanism where one record is hidden, not all that a centre sends."""

    def squared_bound(self, staleness: int) -> int:
        """Δ̃², in steps: one record changes a rounded vector by no more. Rounded up, in whole numbers."""
        longest = math.ceil(self.levels * Fraction(self.privacy.clip_norm))
        return int((longest + math.isqrt(self.size - 1) + 1) ** 2)


def private_sums(
    statistic: Statistic[Any],
    budget: Budget,
    members: int,
    silent: int,
    *,
    bits: int,
    share: float | None = None,
) -> PerRecord:
    """The least noise with which this sum of K members takes `share` of the budget; unless given 1/k_max.

    Of the members `silent` may tell the server their noise. A number and its noise have `bits` bits.
    """
    if statistic.per_record is None:
        raise ParameterError(
            f"{statistic.name}: nobody knows how much one record changes it, so no noise makes it private",
            rule="a private statistic has a bound for one record",
        )
    privacy = Privacy(
        clip_norm=statistic.per_record,
        noise=1.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        max_uses=budget.max_uses,
    )
    plain = PerRecord(privacy, members, silent, statistic.bounds.size, 1)
    part = plain.budget * (1 / budget.max_uses if share is None else share)
    # The cost is ½·(1/z + τ√d)²; τ is negligible, but not nothing.
    noise = 1 / math.sqrt(2 * part) * (1 + 1e-9)
    with_noise = replace(plain, privacy=replace(privacy, noise=noise))
    return _finest(with_noise, float(statistic.bounds.max()), bits)


def _finest(mechanism: PerRecord, bound: float, bits: int) -> PerRecord:
    """As many levels as the field and the table of the noise have room for."""
    finest = [replace(mechanism, levels=2**power) for power in range(bits)]
    fitting = [
        each
        for each in finest
        if LEAST_DEVIATION**2 <= each.variance <= _MOST_VARIANCE
        and each.levels * bound + 1 + CUT * each.deviation + 1 <= 2**bits
    ]
    if not fitting:
        raise ParameterError(
            f"a bound of {bound:g} and noise of z = {mechanism.privacy.noise:.3g} do not fit into {bits} bits:"
            " lower the bound of a centre's vector, or ask fewer centres at once",
            rule="a vector with its noise fits into an element",
        )
    return fitting[-1]


def blurred(vector: Vector, bounds: Vector, mechanism: PerRecord, seed: bytes) -> Vector:
    """The vector in steps, rounded and with this centre's share of the noise.

    It is clipped to its bounds, and what is no number is 0: neither brings two neighbours further apart, and
    neither may be seen from outside.
    """
    inside = np.clip(np.nan_to_num(vector), -bounds, bounds)
    coins = WordStream(derive_seed(seed, "private rounding")).draw(vector.size)
    steps = signed(quantize(inside, mechanism.levels, PAPER_MODULUS, coins), PAPER_MODULUS)
    noisy, none = np.empty(vector.size, np.uint32), np.zeros(vector.size, np.uint32)
    stream, table = WordStream(derive_seed(seed, "private noise")), noise_table(mechanism.variance)
    noise_and_mask(steps.astype(np.int32), table, stream, none, PAPER_MODULUS, noisy)
    return signed(noisy, PAPER_MODULUS).astype(np.float64)
