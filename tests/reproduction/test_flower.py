"""Flower's SecAgg+ in this process gives the mean; so what is timed is a whole round."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("matplotlib")

from reproduction.flower import compare
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
