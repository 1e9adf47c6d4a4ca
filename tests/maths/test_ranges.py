"""Reports of range: exact in the field at any c_l, private by coins, and enough to choose B and c_l."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import clip_update, dequantize, quantize
from basecagg.maths.randomness import Seed
from basecagg.maths.ranges import (
    EPSILON,
    FLIP,
    HEADROOM,
    OCTAVES,
    REPORT_SIZE,
    RangeTally,
    fitting,
    with_report,
    without_report,
)
from basecagg.parameters import ProtocolParameters

PAPER = ProtocolParameters(
    num_holders=100,
    recovery_threshold=62,
    max_colluders=8,
    max_dropouts=30,
    buffer_size=10,
    model_size=1000,
    weights="field",
)


def secret(user: int) -> Seed:
    return Seed(user.to_bytes(32, "big"))


def update_of(octave: int, user: int, size: int = 20) -> np.ndarray:
    """Numbers whose largest is in this octave."""
    numbers = np.random.default_rng(user).uniform(-1, 1, size)
    return (0.75 * 2.0**octave * numbers / np.abs(numbers).max()).astype(np.float32)


def report_of(update: np.ndarray, user: int) -> np.ndarray:
    return with_report(update, 1, secret(user))[update.size :]


def opened(updates: list[np.ndarray], weights: list[int], levels: int) -> np.ndarray:
    """Σ s̄·Δ as a server opens it, through the field, wrapped around where it does not fit."""
    words = np.random.default_rng(9)
    rows = [
        quantize(
            clip_update(with_report(update, levels, secret(user)), 4.0)[0],
            levels,
            PAPER_MODULUS,
            words.integers(0, 2**32, update.size + REPORT_SIZE, dtype=np.uint32),
            wrap=True,
        )
        for user, update in enumerate(updates)
    ]
    total = PrimeField(PAPER_MODULUS).weighted_sum(rows, weights)
    return dequantize(total, levels, PAPER_MODULUS)


@pytest.mark.parametrize("levels", [1, 2**16, 2**33, 1000])
def test_reports_are_summed_exactly_at_any_levels(levels: int) -> None:
    updates = [update_of(-4, user) for user in range(10)]
    weights = [64, 32, 21, 16, 13, 11, 9, 8, 7, 6]
    reports = [report_of(update, user) for user, update in enumerate(updates)]
    expected = np.average(reports, axis=0, weights=weights) * sum(weights)
    total = opened(updates, weights, levels)[-REPORT_SIZE:] * levels
    assert total == pytest.approx(expected, abs=1e-3)


def test_the_update_itself_is_not_changed() -> None:
    update = update_of(-4, user=1)
    reported = with_report(update, 2**16, secret(1))
    assert without_report(reported).tobytes() == update.tobytes()
    assert reported.dtype == update.dtype


def test_the_same_update_has_the_same_report_and_others_have_others() -> None:
    """Else a contributor that masks an update twice would not notice."""
    update = update_of(-4, user=1)
    assert (report_of(update, 1) == report_of(update.copy(), 1)).all()
    assert (report_of(update, 1) == report_of(update.astype(np.float64), 1)).all()
    assert (report_of(0.0 * update, 1) == report_of(-0.0 * update, 1)).all()
    assert (report_of(update, 1) != report_of(update, 2)).any()
    assert (report_of(update, 1) != report_of(update_of(-4, user=2), 1)).any()


def test_coins_turn_numbers_around_as_often_as_they_say() -> None:
    reports = np.array([report_of(update_of(-4, user), user) for user in range(4000)])
    ones = reports.mean(axis=0)
    own = OCTAVES.index(-4)
    assert ones[own] == pytest.approx(1 - FLIP, abs=0.03)
    assert np.delete(ones, own) == pytest.approx(FLIP, abs=0.03)


def test_a_report_is_private_by_itself() -> None:
    """The ratio of the chances of any report, between any two octaves, is at most e^ε; some attain it."""
    chances = {True: 1 - FLIP, False: FLIP}
    ratios = [
        (chances[a] * chances[not b]) / (chances[not a] * chances[b])
        for a, b in product((True, False), repeat=2)
    ]
    assert max(ratios) == pytest.approx(math.exp(EPSILON))
    assert math.exp(EPSILON) == pytest.approx(9)


def test_without_coins_a_weighted_sum_tells_who() -> None:
    """The negative control: sums of zeros and ones with known weights can be solved for their members."""
    weights = (64, 32, 21, 16)
    sums = [sum(np.multiply(weights, bits)) for bits in product((0, 1), repeat=4)]
    assert len(set(sums)) == 2**4


@pytest.mark.parametrize("octave", [-23, -9, -4, 0, 5])
@pytest.mark.parametrize("levels", [1, 2**16, 2**33])
def test_a_tally_finds_the_octave(octave: int, levels: int) -> None:
    tally, weights = RangeTally(), [64, 32, 21, 16, 13, 11, 9, 8, 7, 6]
    for version in range(12):
        updates = [update_of(octave, 10 * version + user) for user in range(10)]
        tally.add(opened(updates, weights, levels), tuple(map(float, weights)), levels)
    assert tally.octave() == octave
    assert tally.shares[OCTAVES.index(octave)] == pytest.approx(1, abs=6 * tally.deviation)


def test_coins_alone_decide_nothing() -> None:
    generator, decided = np.random.default_rng(3), 0
    for _ in range(2000):
        tally = RangeTally()
        coins = generator.random((60, REPORT_SIZE)) < FLIP
        tally.add(coins.sum(axis=0).astype(float), (1.0,) * 60, levels=1)
        decided += tally.octave() is not None
    assert decided <= 2
    assert RangeTally().octave() is None


@given(
    octave=st.sampled_from(OCTAVES), clip_bits=st.integers(-12, 6), level_bits=st.integers(0, 34)
)
def test_fitting_parameters_do_not_wrap_and_fit(
    octave: int, clip_bits: int, level_bits: int
) -> None:
    start = replace(PAPER, clip=2.0**clip_bits, update_levels=2**level_bits, allow_wraparound=True)
    found = fitting(start, octave)
    assert found.largest_sum <= found.room_for_sum
    assert 2 <= found.clip / 2.0**octave <= 16
    assert fitting(found, octave) == found


def test_too_fine_too_coarse_and_misfitting_starts_are_changed() -> None:
    fine = replace(PAPER, update_levels=2**33, allow_wraparound=True)
    coarse = replace(PAPER, update_levels=1)
    for start in (fine, coarse, PAPER):
        found = fitting(start, -4)
        assert (found.clip, found.update_levels) == (HEADROOM / 16, 2**23)
    assert fitting(PAPER.clipped_to(0.25), -4) == PAPER.clipped_to(0.25)
    assert fitting(PAPER.clipped_to(0.25), -3) == PAPER.clipped_to(0.25)
    assert fitting(PAPER.clipped_to(0.25), -2).clip == 1.0
