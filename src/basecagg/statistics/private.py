"""Noise in a sum over records: every centre adds its share, so that the sum hides each single record.

The unit is the record, not the centre: neighbours are two worlds in which one record is there or not. A
centre's vector is rounded once, and what one record changes then is in `basecagg.privacy`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.noise import CUT, noise_and_mask, noise_table
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import quantize, signed
from basecagg.maths.randomness import WordStream, derive_seed
from basecagg.maths.staleness import constant
from basecagg.planning.budget import Budget, spend
from basecagg.privacy import Mechanism
from basecagg.statistics.statistic import Statistic, Vector


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
