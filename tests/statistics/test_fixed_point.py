"""Numbers of known size become whole elements, and their sums come back."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.errors import ParameterError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.statistics.encoding import element_bits, join, split


@given(st.integers(2, 10**6))
def test_so_many_bits_fit_and_no_more(members: int) -> None:
    bits, room = element_bits(members), (PAPER_MODULUS - 3) // 2
    assert members * (2**bits + 1) <= room
    assert bits == 24 or members * (2 ** (bits + 1) + 1) > room


def test_too_many_centres_are_refused() -> None:
    with pytest.raises(ParameterError, match="too many"):
        element_bits(10**8)


def coins(numbers: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, 2 * numbers, np.uint32)


@given(st.integers(0, 2**32), st.integers(2, 200))
def test_sums_are_those_of_the_numbers(seed: int, members: int) -> None:
    rng, bits = np.random.default_rng(seed), element_bits(members)
    bounds = 10.0 ** rng.uniform(-6, 6, 5)
    numbers = rng.uniform(-1, 1, (members, 5)) * bounds
    total = sum(split(each, bounds, bits, coins(5, seed + at)) for at, each in enumerate(numbers))
    error = np.abs(join(total, bounds, bits) - numbers.sum(axis=0)) / bounds
    assert error.max() <= members * 2.0 ** (1 - bits - 2 * (bits // 4)) * 2 + 1e-13


@given(st.lists(st.integers(-241, 241), min_size=1, max_size=67))
def test_counts_come_back_exactly(counts: list[int]) -> None:
    bounds, bits = np.array([241.0]), element_bits(67)
    total = sum(
        split(np.array([float(each)]), bounds, bits, coins(1, each + 241)) for each in counts
    )
    assert join(total, bounds, bits).tolist() == [sum(counts)]


EXTREMES = [np.array(two, np.uint32) for two in product((0, 1, 2**31, 2**32 - 1), repeat=2)]


@pytest.mark.parametrize("bound", [1.0, 241.0, 256.0, 1e-9, 1e9])
@pytest.mark.parametrize("members", [2, 67, 1000, 10**6])
def test_elements_are_whole_and_within_the_clip_at_the_bound_itself(
    bound: float, members: int
) -> None:
    bits, bounds = element_bits(members), np.array([bound])
    for value, two in product((bound, -bound, bound / 3, -bound / 3, 0.0), EXTREMES):
        elements = split(np.array([value]), bounds, bits, two)
        assert (elements == np.rint(elements)).all()
        assert np.abs(elements).max() <= 2**bits
        assert join(elements, bounds, bits) == pytest.approx(value, abs=2.0 ** (1 - bits) * bound)


@pytest.mark.parametrize(
    ("value", "counted"), [(1.0001, 1.0), (-7.0, -1.0), (np.nan, 0.0), (np.inf, 1.0)]
)
def test_what_is_beyond_its_bound_counts_as_the_bound(value: float, counted: float) -> None:
    bounds = np.array([1.0, 1.0])
    elements = split(np.array([0.0, value]), bounds, 24, coins(2))
    assert join(elements, bounds, 24).tolist() == [0.0, counted]


def test_coins_move_all_elements_far_and_the_number_not_at_all() -> None:
    bounds, value = np.array([64.0]), np.array([33.0])
    drawn = np.array([split(value, bounds, 24, coins(1, seed)) for seed in range(200)])
    # Uniform over 2¹⁸ values: a standard deviation of 2¹⁸/√12, carried 2⁶ further down.
    spread = 2**18 / 12**0.5 * np.array([1, 2**6, 2**6])
    assert drawn.std(axis=0) == pytest.approx(spread, rel=0.2)
    assert {join(each, bounds, 24)[0] for each in drawn} == {33.0}
