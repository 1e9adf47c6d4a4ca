"""Robust means: what they are, by other means; what a few false rows do to them; the same bits everywhere."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.maths.robust_means import ROBUST_MEANS, distance, length

ROBUST = [name for name in ROBUST_MEANS if name != "mean"]


def rows(count=10, size=40, seed=0):
    return list(np.random.default_rng(seed).normal(1.0, 1.0, (count, size)))


def of(name, means):
    return ROBUST_MEANS[name].of(means)


# --- what they are ------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_mean_median_and_trimmed_mean_as_plain_python_has_them(count, seed):
    means = rows(count, 7, seed)
    cut = (count - 1) // 3
    for place, column in enumerate(zip(*(row.tolist() for row in means), strict=True)):
        assert of("mean", means)[place] == pytest.approx(statistics.fmean(column))
        assert of("median", means)[place] == pytest.approx(statistics.median(column))
        kept = sorted(column)[cut : count - cut]
        assert of("trimmed-mean", means)[place] == pytest.approx(statistics.fmean(kept))


@pytest.mark.parametrize("seed", range(5))
def test_no_point_nearby_has_a_smaller_sum_of_distances(seed):
    means = rows(seed=seed)
    found = of("geometric-median", means)

    def total(point):
        return sum(distance(row, point) for row in means)

    generator = np.random.default_rng(seed)
    for _ in range(200):
        step = generator.normal(size=found.size)
        nearby = found + 0.1 * step / length(step)
        assert total(found) <= total(nearby)
    assert total(found) < total(of("mean", means))


def test_centred_clipping_pulls_as_far_as_the_middle_row_at_most():
    """With all rows but one in a point: the one pulls by nothing, for the middle distance is nothing."""
    point, far = np.ones(5), np.full(5, 100.0)
    assert of("centred-clipping", [point] * 9 + [far]).tolist() == point.tolist()


def test_centred_clipping_by_hand():
    """One number: v = 2, ρ = 1; then v moves by (−1 + 0 + 0.… + 1)/5, rows beyond ρ pulling by ρ."""
    means = [np.array([float(x)]) for x in (0, 1, 2, 3, 50)]
    centre = 2.0
    for _ in range(3):
        centre += sum(max(-1.0, min(1.0, float(x[0]) - centre)) for x in means) / 5
    assert of("centred-clipping", means)[0] == pytest.approx(centre)


@pytest.mark.parametrize("name", ROBUST_MEANS)
def test_equal_rows_have_themselves_as_mean(name):
    row = rows(1)[0]
    assert of(name, [row] * 7) == pytest.approx(row)
    assert of(name, [row]) == pytest.approx(row)


# --- what false rows do -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("count", [3, 4, 10, 11])
def test_as_many_false_rows_as_it_withstands_do_not_move_it_far(name, count):
    means = rows(count)
    few = ROBUST_MEANS[name].withstands(count)
    assert few == {"trimmed-mean": (count - 1) // 3}.get(name, (count - 1) // 2)
    lied = [np.full(40, 1e9)] * few + means[few:]
    spread = max(distance(one, other) for one in means[few:] for other in means[few:])
    assert distance(of(name, lied), of("mean", means[few:])) <= 3 * spread


@pytest.mark.parametrize("count", [3, 10])
def test_control_one_false_row_carries_the_mean_away(count):
    assert ROBUST_MEANS["mean"].withstands(count) == 0
    lied = [np.full(40, 1e9), *rows(count)[1:]]
    assert distance(of("mean", lied), np.ones(40)) > 1e7


# --- the same bits everywhere -------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBUST_MEANS)
def test_the_bits_do_not_depend_on_where_numbers_lie(name):
    means = rows(9, 1000)
    apart = [np.stack([row, row], axis=1)[:, 0] for row in means]
    assert of(name, means).tobytes() == of(name, apart).tobytes()


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_zeros_of_either_sign_give_the_same_bits(name):
    """How −0.0 and 0.0 are sorted nobody defines, and the hash of a model sees the difference."""
    zeros = [np.array([sign * 0.0]) for sign in (1, -1, -1, 1, -1)]
    found = {
        of(name, [zeros[i] for i in order]).tobytes()
        for order in ([0, 1, 2, 3, 4], [4, 2, 1, 3, 0])
    }
    assert found == {np.array([0.0]).tobytes()}


@given(st.lists(st.floats(-1e100, 1e100), max_size=50))
def test_length_is_the_root_of_the_sum_of_squares(values):
    exact = math.sqrt(math.fsum(value * value for value in values))
    assert length(np.array(values)) == pytest.approx(exact)


def test_length_adds_in_the_order_that_is_written_down():
    """Halves are folded; an odd one stays behind. Any other order has other bits here."""
    values = rows(1, 7)[0]
    a, b, c, d, e, f, g = (values * values).tolist()
    first = [a + d, b + e, c + f, g]
    second = [first[0] + first[2], first[1] + first[3]]
    assert length(values) == math.sqrt(second[0] + second[1])
