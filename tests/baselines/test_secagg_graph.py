"""The graphs of SecAgg and SecAgg+: regular, symmetric, in random seats; and how sparse they may be."""

from __future__ import annotations

import numpy as np
import pytest

from basecagg.baselines import secagg_graph
from basecagg.baselines.secagg import SecAggParameters
from basecagg.baselines.secagg_graph import (
    choose_degree,
    complete,
    neighbourhood,
    random_regular,
)
from basecagg.errors import ParameterError


@pytest.mark.parametrize(("users", "degree"), [(5, 4), (10, 2), (31, 8), (64, 20)])
def test_the_random_graph_is_regular_and_symmetric(users: int, degree: int) -> None:
    graph = random_regular(users, degree)
    for user, neighbours in enumerate(graph):
        assert len(set(neighbours)) == degree
        assert user not in neighbours
        assert all(user in graph[other] for other in neighbours)
        assert neighbours == tuple(sorted(neighbours))


def test_degree_n_minus_1_is_the_complete_graph() -> None:
    assert random_regular(7, 6) == complete(7)


def test_seats_are_drawn_anew() -> None:
    assert random_regular(40, 4) != random_regular(40, 4)
    assert len({random_regular(5, 2) for _ in range(400)}) == 12  # (5 − 1)!/2 circles


@pytest.mark.parametrize("degree", [0, 3, 10, 11])
def test_other_degrees_are_refused(degree: int) -> None:
    with pytest.raises(ParameterError, match="degree k"):
        random_regular(10, degree)


@pytest.mark.parametrize("graph", [((1,), ()), ((1,), (0,), ()), ((0, 1), (0, 1))])
def test_what_is_no_graph_is_refused(graph: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ParameterError, match="graph"):
        SecAggParameters(num_holders=2, threshold=2, vector_size=1, graph=graph)


def test_the_chosen_degree_holds_in_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loose failure bound, the failures that happen stay below it."""
    monkeypatch.setattr(secagg_graph, "system_entropy", np.random.default_rng(2).bytes)
    users, colluders, dropouts, bound = 60, 6, 6, 0.05
    chosen = choose_degree(users, colluders, dropouts, bound)
    assert chosen is not None
    degree, threshold = chosen
    generator, failures, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        graph = random_regular(users, degree)
        bad = set(generator.choice(users, colluders, replace=False).tolist())
        gone = set(generator.choice(users, dropouts, replace=False).tolist())
        failures += any(
            len(bad.intersection(graph[u])) >= threshold
            or len(set(neighbourhood(graph, u)) - gone) < threshold
            for u in range(users)
        )
    assert failures / trials <= bound


def test_a_degree_too_small_would_fail_often() -> None:
    """The negative control of the test above."""
    graph = random_regular(60, 4)
    generator = np.random.default_rng(1)
    failures = 0
    for _ in range(100):
        gone = set(generator.choice(60, 6, replace=False).tolist())
        failures += any(len(set(neighbourhood(graph, u)) - gone) < 4 for u in range(60))
    assert failures > 50


def test_half_colluding_leaves_no_sparse_graph() -> None:
    assert choose_degree(50, 25, 15) is None
