"""No rounded update is longer than promised, whatever the input; and an honest one is rounded without bias."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from mpmath import log, mp, mpf, sqrt

from basecagg.maths.noise import round_within
from basecagg.maths.norm_bounds import (
    noise_reach,
    share_variance,
    squared_bound,
    squared_sum_bound,
)
from basecagg.maths.randomness import WordStream

LEVELS, CLIP = 2**10, 0.3


def rounded(x, *, levels=LEVELS, clip=CLIP, weight=1.0, bound=None, seed=0):
    out = np.full(x.size, 7, np.int32)
    most = squared_bound(levels, clip, Decimal(weight), x.size) if bound is None else bound
    coins = WordStream(seed.to_bytes(32, "big"))
    clipped = round_within(x, levels, clip, weight, most, coins, out)
    return out, clipped, most


def length(numbers):
    return sum(int(k) ** 2 for k in numbers)


# --- the bound ----------------------------------------------------------------------------------


def hostile(case, dice):
    """A vector that someone chose to be rounded to something long."""
    size = int(dice.choice([1, 2, 3, 7, 50, 400]))
    dtype = dice.choice([np.float32, np.float64])
    top = float(np.finfo(dtype).max)
    tiny = float(np.finfo(dtype).smallest_subnormal)
    kinds = (
        lambda: np.full(size, CLIP / math.sqrt(size)),
        lambda: np.full(size, 1e6),
        lambda: np.full(size, top),
        lambda: np.full(size, tiny),
        lambda: np.full(size, 0.5 / LEVELS),
        lambda: np.eye(1, size, dice.integers(size))[0] * top,
        lambda: np.eye(1, size, dice.integers(size))[0] * CLIP,
        lambda: dice.normal(size=size) * 10.0 ** dice.integers(-12, 12),
        lambda: dice.choice([-1, 1], size) * (0.5 + dice.integers(0, 9, size)) / LEVELS,
        lambda: np.where(dice.random(size) < 0.1, np.nan, 1.0),
        lambda: np.where(dice.random(size) < 0.1, -np.inf, 1.0),
        lambda: np.zeros(size),
    )
    with np.errstate(over="ignore"):
        return kinds[case % len(kinds)]().astype(dtype)


def never_longer(cases):
    dice = np.random.default_rng(5)
    for case in range(cases):
        x = hostile(case, dice)
        weight = float(dice.choice([1.0, 0.5, 1 / 11]))
        levels = int(dice.choice([1, 8, LEVELS, 2**20]))
        with np.errstate(all="ignore"):
            out, _, most = rounded(x, levels=levels, weight=weight, seed=case)
        assert length(out) <= most, (case, x)
        assert np.abs(out).max() <= math.ceil(levels * CLIP) + 1


def test_no_hostile_input_is_longer_than_the_bound():
    never_longer(3000)


@pytest.mark.soak
def test_no_hostile_input_is_longer_than_the_bound_long():
    never_longer(10**5)


@pytest.mark.parametrize("value", [1.0, 1e-4, 3e38, 1e-44])
def test_a_million_equal_elements(value):
    out, _, most = rounded(np.full(10**6, value, np.float32))
    assert int((out.astype(np.int64) ** 2).sum()) <= most


def test_a_bound_that_is_too_small_gives_zeros_at_last():
    """Coins are tossed again as long as the result is too long, not for ever."""
    out, _, _ = rounded(np.full(50, 0.04), bound=3)
    assert not out.any()


def test_the_coins_are_tossed_again():
    """Rounding once would be longer: two elements of ½ are (1, 1) in one of four cases."""
    x = np.full(2, 0.5 / LEVELS)
    once = [length(rounded(x, bound=2, seed=seed)[0]) for seed in range(40)]
    again = [length(rounded(x, bound=1, seed=seed)[0]) for seed in range(40)]
    assert max(once) == 2
    assert max(again) == 1


# --- what an honest update becomes --------------------------------------------------------------


def test_a_short_update_keeps_its_length_and_mean():
    x = np.full(20_000, 0.25 / LEVELS)
    out, clipped, _ = rounded(x)
    assert not clipped
    assert out.mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 9, 1000])
def test_a_long_update_keeps_its_direction(size, dtype):
    x = np.random.default_rng(size).normal(size=size).astype(dtype) * 100
    out, clipped, _ = rounded(x, levels=2**20, weight=0.5)
    assert clipped
    wanted = x.astype(float) / np.linalg.norm(x.astype(float)) * 2**20 * CLIP * 0.5
    assert np.abs(out - wanted).max() <= 1.001


def test_huge_numbers_are_clipped_without_overflow():
    x = np.full(4, 1e300)
    out, clipped, _ = rounded(x)
    assert clipped
    assert np.abs(out - LEVELS * CLIP / 2).max() <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_becomes_zeros(bad):
    out, clipped, _ = rounded(np.array([1.0, bad, 2.0]))
    assert clipped
    assert out.tolist() == [0, 0, 0]


# --- the formulas, computed another way ----------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 7850, 10**6])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_bound_is_the_formula(size, weight):
    with mp.workprec(300):
        n = mpf(LEVELS) * mpf(CLIP) * mpf(weight)
        likely = n**2 + mpf(size) / 4 + sqrt(80 * log(2)) * (n + sqrt(mpf(size)) / 2)
        certain = (n + sqrt(mpf(size))) ** 2
        assert squared_bound(LEVELS, CLIP, Decimal(weight), size) == int(min(likely, certain))


def test_the_bound_does_not_depend_on_who_asks():
    squared_bound.cache_clear()
    usual = squared_bound(LEVELS, CLIP, Decimal(1) / 3, 1000), noise_reach(100, 10, 1000)
    squared_bound.cache_clear()
    with localcontext() as context:
        context.prec = 5
        third = Decimal("0.3333333333333333333333333333")
        assert (squared_bound(LEVELS, CLIP, third, 1000), noise_reach(100, 10, 1000)) == usual


def test_the_variance_is_rounded_up():
    assert share_variance(2.0, 100, 7) == math.ceil(400 / 7)
    assert share_variance(1.0, 12, 3) == 4


def test_the_bound_of_a_sum_holds_for_honest_sums_and_stops_others():
    """K updates of the largest length in one direction, with noise: below; with twice as much in it: above."""
    dice, size, members, variance = np.random.default_rng(3), 400, 10, 400
    bound = squared_bound(LEVELS, CLIP, Decimal(1), size)
    most = squared_sum_bound([bound] * members, variance, size)
    direction = np.full(size, math.sqrt(bound / size))
    for _ in range(200):
        noise = dice.normal(size=(members, size)).sum(0) * math.sqrt(variance)
        honest = members * direction + noise
        assert float(honest @ honest) <= most
        lie = honest + 20 * direction
        assert float(lie @ lie) > most


def test_without_noise_the_bound_of_a_sum_is_the_sum_of_lengths():
    assert squared_sum_bound([9, 16, 25], 0, 1000) == 144
