"""Noise in sums over records: as much as promised, and paid for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up import MONTHS, MOST

from basecagg.errors import ParameterError
from basecagg.planning.budget import Budget
from basecagg.privacy import Mechanism
from basecagg.statistics import count, histogram, kaplan_meier, private_sums
from basecagg.statistics.encoding import blurred

BUDGET = Budget(epsilon=3.0, delta=1e-5, max_uses=8)
CURVE = kaplan_meier(MONTHS, most=MOST)
K, SILENT, BITS = 67, 8, 24


def mechanism(**changes: object) -> Mechanism:
    return private_sums(CURVE, replace(BUDGET, **changes), K, SILENT, bits=BITS)


def test_all_uses_together_cost_what_was_promised() -> None:
    one = mechanism()
    assert 2.95 < one.epsilon <= 3.0
    assert one.privacy.unit == "record"
    assert one.privacy.clip_norm == CURVE.per_record


def test_fewer_questions_have_less_noise_each() -> None:
    assert mechanism(max_uses=2).privacy.noise == pytest.approx(
        mechanism().privacy.noise / 2, rel=0.01
    )


def test_the_noise_covers_rounding() -> None:
    """Two neighbours, rounded by the worst coins: c·Δ apart before, one step in each number more."""
    found = mechanism()
    worst = found.levels * CURVE.per_record + np.sqrt(found.size)
    assert found.honest * found.variance >= (found.privacy.noise * worst) ** 2 * (1 - 1e-6)


def test_the_noise_in_a_sum_has_the_promised_variance() -> None:
    cells = histogram("x", np.arange(2001), most=MOST)
    found = private_sums(cells, BUDGET, 10, 2, bits=BITS)
    vector = np.zeros(cells.bounds.size)

    def ratio(noise: Mechanism) -> float:
        """Measured noise of the 8 honest shares, against what one record needs."""
        rng = np.random.default_rng(1)
        shares = [blurred(vector, cells.bounds, noise, rng.bytes(32)) for _ in range(found.honest)]
        wanted = found.privacy.noise**2 * found.squared_change(0)
        return float(np.sum(shares, axis=0).var() / wanted)

    # 2000 cells: the standard deviation of the estimate is 3.2 %.
    assert 0.9 < ratio(found) < 1.1
    halved = replace(found, privacy=replace(found.privacy, noise=found.privacy.noise / 2))
    assert ratio(halved) < 0.3


def test_noise_is_around_the_vector() -> None:
    found, rng = mechanism(), np.random.default_rng(2)
    vector = rng.integers(0, MOST, CURVE.bounds.size).astype(float)
    draws = [blurred(vector, CURVE.bounds, found, rng.bytes(32)) for _ in range(400)]
    error = np.mean(draws, axis=0) / found.levels - vector
    assert np.abs(error).max() < 5 * found.deviation / found.levels / 20
    assert all((draw == np.rint(draw)).all() for draw in draws)


def test_with_noise_an_element_still_fits() -> None:
    found = mechanism()
    extreme = blurred(np.full(48, np.inf), CURVE.bounds, found, bytes(32))
    assert np.abs(extreme).max() <= 2**BITS
    assert np.abs(blurred(np.full(48, np.nan), CURVE.bounds, found, bytes(32))).max() < 2**18


def test_a_bound_with_no_room_is_refused_in_words() -> None:
    with pytest.raises(ParameterError, match="does not fit, with noise, into 24 bits"):
        private_sums(count("x", most=2**30), BUDGET, K, SILENT, bits=BITS)


def test_sampling_that_no_centre_does_buys_nothing() -> None:
    with pytest.raises(ParameterError, match="every record is in every answer"):
        mechanism(unit="record", sampling_rate=0.01, records=100)


def test_where_nobody_can_be_trusted_every_centre_adds_all_of_the_noise() -> None:
    """K − 1 silent ones: local noise, √(K − T_c) times as much in the sum; coarser steps cost 2 %."""
    alone = private_sums(CURVE, BUDGET, K, K - 1, bits=BITS)
    in_sum = [np.sqrt(K * each.variance) / each.levels for each in (alone, mechanism())]
    assert in_sum[0] / in_sum[1] == pytest.approx(np.sqrt(K - SILENT), rel=0.03)
