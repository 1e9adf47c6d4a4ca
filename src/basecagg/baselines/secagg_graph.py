"""Who masks with whom: everybody (SecAgg), or neighbours in a random graph, as sparse as is safe (SecAgg+).

SecAgg+ (Bell et al. 2020): users sit on a circle in random order and every one is joined to the k/2 nearest on
each side, the Harary graph on a random permutation. It stays connected when few are removed, and adversaries
cannot choose their seats.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import TypeAlias

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.randomness import system_entropy

Graph: TypeAlias = tuple[tuple[int, ...], ...]
"""The neighbours of every user, in order, without the user itself."""


def complete(num_holders: int) -> Graph:
    """Everybody with everybody."""
    everyone = range(num_holders)
    return tuple(tuple(other for other in everyone if other != user) for user in everyone)


def random_regular(num_holders: int, degree: int) -> Graph:
    """Every user with k = `degree` others (k even): a Harary graph on a random permutation."""
    if not (2 <= degree < num_holders and degree % 2 == 0):
        raise ParameterError(
            f"degree k = {degree} must be even and between 2 and N − 1 = {num_holders - 1}",
            rule="k is even, 2 ≤ k < N",
        )
    seats = np.argsort(np.frombuffer(system_entropy(8 * num_holders), "<u8"), kind="stable")
    neighbours: list[tuple[int, ...]] = [()] * num_holders
    offsets = [offset for step in range(1, degree // 2 + 1) for offset in (-step, step)]
    for seat, user in enumerate(seats):
        around = {int(seats[(seat + offset) % num_holders]) for offset in offsets}
        neighbours[user] = tuple(sorted(around))
    return tuple(neighbours)


def neighbourhood(graph: Graph, user: int) -> tuple[int, ...]:
    """The user and its neighbours, in order: those who hold shares of its secrets."""
    return tuple(sorted((*graph[user], user)))


@lru_cache(maxsize=256)
def choose_degree(
    num_holders: int, colluders: int, dropouts: int, failure: float = 2.0**-30
) -> tuple[int, int] | None:
    """The least even k, with its threshold t, that keeps T colluders out and survives D dropouts.

    Colluders and dropouts fall at random among a user's k neighbours. Up to `failure` over all N users, fewer
    than t of the neighbours collude, at least t of the neighbours answer, and no run of k/2 seats holds only
    colluders and dropouts, so that the others stay connected (Bell et al. 2020, §3.3; exact tails in place of
    their bounds). None if no k < N − 1 does: then only the complete graph gives the guarantee.
    """
    others = num_holders - 1
    for degree in range(2, others, 2):
        cut = _tail(others, min(others, colluders + dropouts), degree // 2, degree // 2)
        for threshold in range(2, degree + 1):
            curious = _tail(others, colluders, degree, threshold)
            deserted = _tail(others, dropouts, degree, degree - threshold + 1)
            if num_holders * (curious + deserted + cut) <= failure:
                return degree, threshold
    return None


@lru_cache(maxsize=1 << 16)
def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """P[at least `least` of `drawn` users are marked], drawn without replacement: hypergeometric."""
    ways = sum(
        comb(marked, hits) * comb(population - marked, drawn - hits)
        for hits in range(max(least, 0), min(marked, drawn) + 1)
    )
    return ways / comb(population, drawn)
