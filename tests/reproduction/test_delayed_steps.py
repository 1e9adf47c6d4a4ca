"""Steps from old models: known bounds, and the ones that decide about E."""

from __future__ import annotations

import math

import numpy as np
import pytest

from basecagg.maths.staleness import constant, polynomial
from reproduction.delayed_steps import largest_stable_step, largest_stable_step_on_average


@pytest.mark.parametrize(
    ("weights", "bound"),
    [
        ([1], 2.0),  # gradient descent
        ([0, 1], 1.0),  # always one version old
        ([0, 0, 1], 2 * math.sin(math.pi / 10)),  # always two: 2·sin(π/(2·(2τ + 1)))
        (
            [1] * 11,
            11 * 2 * math.sin(math.pi / 22) ** 2,
        ),  # uniform on 0…10, from the phase condition
    ],
)
def test_known_bounds(weights: list[float], bound: float) -> None:
    assert largest_stable_step_on_average(weights) == pytest.approx(bound, rel=1e-6)


def test_a_longer_step_does_grow_and_a_shorter_one_does_not() -> None:
    weights = [constant()(tau) for tau in range(11)]
    bound = largest_stable_step_on_average(weights)
    for factor, grows in ((0.95, False), (1.05, True)):
        past = [1.0] * 11
        for _ in range(2000):
            past = [past[0] - factor * bound * float(np.average(past, weights=weights)), *past[:-1]]
        assert (abs(past[0]) > 1) is grows


ALIKE = (1.0,) * 11
BY_AGE = tuple(polynomial(1.0)(tau) for tau in range(11))


def test_weights_by_age_allow_longer_steps() -> None:
    assert largest_stable_step(BY_AGE, 10) > 5 * largest_stable_step(ALIKE, 10)


def test_a_buffer_of_one_does_not_weigh() -> None:
    assert largest_stable_step(BY_AGE, 1) == pytest.approx(largest_stable_step(ALIKE, 1))


def test_a_small_buffer_bears_less_than_the_average_says() -> None:
    on_average = largest_stable_step_on_average(BY_AGE)
    found = [largest_stable_step(BY_AGE, k) for k in (3, 10, 100)]
    assert found == sorted(found)
    assert found[-1] < on_average
    assert found[1] == pytest.approx(2.7, abs=0.1)  # the same recursion, written by somebody else
    assert found[2] == pytest.approx(6.4, abs=0.2)
