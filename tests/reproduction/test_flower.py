"""Flower's SecAgg+ in this process gives the mean; so what is timed is a whole round."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("matplotlib")

from reproduction.flower import ROUNDS, Comparison, compare, median, report
from reproduction.flower_peer import run_flower_round

pytestmark = pytest.mark.filterwarnings("default")  # its own warnings are not ours to fix


def test_a_round_gives_the_mean_of_those_who_stayed() -> None:
    updates = [np.full(50, user / 10, np.float32) for user in range(5)]
    found = run_flower_round(updates, threshold=3, num_shares=5, gone=(4,))
    assert np.allclose(found.mean, 0.15, atol=1e-4)
    assert 0 < found.user_seconds < found.total_seconds


@pytest.mark.parametrize("shares", [8, 5])
def test_all_three_are_compared(shares: int) -> None:
    comparison = compare(8, shares, 500)
    assert comparison.flower_total > comparison.secagg_total > 0
    assert comparison.basecagg_total > 0
    assert comparison.rounds == ROUNDS
    assert comparison.flwr == version("flwr")


def test_the_run_in_the_middle_counts() -> None:
    runs = [(1, 9.0), (2, 5.0), (3, 7.0)]
    assert median(runs, lambda run: run[1]) == (3, 7.0)


# --- what the page says ---------------------------------------------------------------------------


def results(*basecagg: float, colluders: int = 2) -> dict[str, Any]:
    """A cell for each total of BASecAgg; our SecAgg needs 1 s."""
    cells = [
        Comparison(10, 10, number, 7, colluders, 1.0, 2.0, 12.0, 0.05, 0.5, 1.0, total, 3, "1.41.0")
        for number, total in enumerate(basecagg)
    ]
    return {str(number): cell._asdict() for number, cell in enumerate(cells)}


def test_the_page_names_the_runs_and_the_version_of_flower() -> None:
    publication = report(results(2.0), "full")
    assert "Each of the three was run 3 times, and the median counts" in publication.lead
    assert any("flwr 1.41.0." in note for note in publication.notes)


@pytest.mark.parametrize(
    ("totals", "words"),
    [
        ((2.0, 3.0), "in 2 of 2 rows, 2 to 3 times as much."),
        (
            (2.0, 0.5),
            "in 1 of 2 rows, 2 to 2 times as much, and less only at N = 10, n = 10, d = 1.",
        ),
        ((0.5, 0.6), "BASecAgg needs less CPU than our own SecAgg or SecAgg+ in every row."),
    ],
)
def test_it_is_said_where_basecagg_costs_more_than_secagg(
    totals: tuple[float, ...], words: str
) -> None:
    assert words in report(results(*totals), "full").notes[0]


def test_the_two_thresholds_and_the_mode_are_named() -> None:
    notes = " ".join(report(results(2.0), "full").notes)
    assert "T and t are not the same threat" in notes
    assert "T is less than t − 1 in 1 of 1 rows" in notes
    assert 'correctness="honest-holders"' in notes
    even = report(results(2.0, colluders=6), "full").notes
    assert any("T is less than t − 1 in 0 of 1 rows" in note for note in even)
