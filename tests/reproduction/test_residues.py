"""The best guess from an opened sum: against simulated sums, and what the experiment says of its figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from reproduction import residues
from reproduction.residues import Group, best_guesses, groups_of, on_grid, rounded

EXAMPLE = (64, 64, 64, 22, 21, 21)


def test_the_page_of_the_worked_example() -> None:
    a, b = 2, -1
    opened = 64 * (3 - 2 + 1) + 22 * a + 21 * b
    assert opened == 151
    assert (2 * a - 5 - b) % 64 == 0
    assert 61 * 21 % 64 == 1
    alone = best_guesses(groups_of(EXAMPLE, "field", 1.3))[1]
    (guess,) = alone.of(np.array([opened]))
    assert guess == pytest.approx(1.67, abs=0.1)
    assert alone.real_valued == pytest.approx(0.19, abs=0.005)
    assert alone.correlation == pytest.approx(0.80, abs=0.01)


@pytest.mark.parametrize("deviation", [0.05, 0.5, 1.3, 20])
def test_a_rounded_number_is_what_rounding_by_a_coin_makes(deviation: float) -> None:
    random = np.random.default_rng(3)
    v = random.normal(scale=deviation, size=400_000)
    low = np.floor(v)
    drawn = (low + (random.random(len(v)) < v - low)).astype(int)
    numbers = rounded(deviation)
    reach = len(numbers.chances) // 2
    counted = np.bincount(drawn + reach, minlength=2 * reach + 1) / len(v)
    parts = np.bincount(drawn + reach, v, 2 * reach + 1) / len(v)
    assert numbers.chances.sum() == pytest.approx(1)
    assert np.abs(counted - numbers.chances).max() < 0.005
    assert np.abs(parts - numbers.parts).max() < 0.01 * max(1, deviation)


@pytest.mark.parametrize("weights", [EXAMPLE, (64, 64, 32, 21, 13, 13), (5, 5, 5)])
def test_a_guess_is_as_good_on_drawn_sums_as_it_says(weights: tuple[int, ...]) -> None:
    random = np.random.default_rng(5)
    v = random.normal(scale=1.3, size=(len(weights), 40_000))
    low = np.floor(v)
    steps = (low + (random.random(v.shape) < v - low)).astype(np.int64)
    opened = np.array(weights) @ steps
    guesses = best_guesses(groups_of(weights, "field", 1.3))
    for weight, guess in zip(dict.fromkeys(weights), guesses, strict=True):
        truth = v[weights.index(weight)]
        assert np.corrcoef(guess.of(opened), truth)[0, 1] == pytest.approx(
            guess.correlation, abs=0.02
        )
        assert np.corrcoef(opened, truth)[0, 1] < guess.correlation + 0.02


def test_a_grid_that_no_other_member_fills_is_read_exactly() -> None:
    chances = np.array([0.25, 0.5, 0.25])
    alone = best_guesses([Group(5, 8, on_grid(chances)), Group(1, 1, on_grid(chances))])[1]
    assert alone.correlation == pytest.approx(1)


def test_wider_updates_than_are_computed_tell_nothing() -> None:
    """Half as wide as the widest, there is nothing left to tell already."""
    for guess in best_guesses(groups_of(EXAMPLE, "field", residues.WIDEST / 2)):
        assert guess.correlation == pytest.approx(guess.real_valued, abs=1e-3)


def point(best: float, real: float, levels: int = 2**16) -> dict[str, Any]:
    return {
        "levels": levels,
        "size": 2e-5,
        "members": 10,
        "best": best,
        "real_valued": real,
        "told_more": 0.5,
        "worst": [best, real],
    }


def results() -> dict[str, Any]:
    return {
        "run/own": {"sums": []},
        "stochastic/usual/2e-05": point(0.8, 0.19),
        "nearest/usual/2e-05": point(0.5, 0.19),
        "own/usual/2e-05": point(0.3, 0.3),
    }


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        ({}, ["corrected", "holds"]),
        ({"own/usual/2e-05": point(0.4, 0.3)}, ["corrected", "does not hold"]),
        (
            {key: point(0.2, 0.19) for key in ("stochastic/usual/2e-05", "nearest/usual/2e-05")},
            ["reproduced", "holds"],
        ),
    ],
)
def test_the_verdicts_follow_the_figures(changed: dict[str, Any], verdicts: list[str]) -> None:
    publication = residues.report(results() | changed, "full")
    assert [claim.verdict for claim in publication.claims] == verdicts
    assert len(publication.lines) == 3
    assert "residues" in publication.figures


def test_every_attack_on_the_page_is_a_test_with_its_control():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "explanation" / "residues.md").read_text("utf-8")
    names = re.findall(r"`(test_\w+)`", page)
    assert sum(name.startswith("test_control_") for name in names) == len(names) / 2 >= 5
    there = (root / "tests/claims/test_a_sum_tells_no_more_than_its_numbers.py").read_text("utf-8")
    assert all(f"def {name}(" in there for name in names)
