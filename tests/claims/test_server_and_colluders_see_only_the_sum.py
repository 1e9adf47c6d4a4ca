"""The server and T holders who pool all they see learn the weighted sum, and nothing else.

Shown by counting, in fields small enough to go through everything: for all updates of two members
and all their masks and noise. What is seen are the masked updates, the colluders' shares of both
masks, and the answers of all holders. Updates with the same weighted sum must give every sight
equally often. The same count notices what breaks this: a point that is 0, a mask used twice, one
answer with other weights, one colluder too many.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField


@dataclass(frozen=True)
class Setting:
    """Who may see what. The defaults are the protocol's."""

    q: int
    colluders: tuple[int, ...]
    max_colluders: int = 1
    num_holders: int = 4
    recovery_threshold: int = 3
    weights: tuple[int, int] = (1, 2)
    points: tuple[int, ...] | None = None  # other points than the code's
    mask_reused: bool = False
    conflicting: tuple[tuple[int, tuple[int, int]], ...] = ()  # holders who answer twice, and how

    @property
    def submasks(self):
        return self.recovery_threshold - self.max_colluders


def all_vectors(q, length):
    """Every vector of F_q, one in each column."""
    return np.indices((q,) * length, np.uint32).reshape(length, -1)


def shares_of_all_masks(s):
    """Each holder's share of every mask with every noise: a row for each holder."""
    rows = all_vectors(s.q, s.recovery_threshold)
    if s.points:
        powers = [[x**u for u in range(s.recovery_threshold)] for x in s.points]
        return (np.array(powers) @ rows % s.q).astype(np.uint32)
    code = MaskCode(s.num_holders, s.recovery_threshold, s.max_colluders, s.q)
    return code.encode(rows[: s.submasks].reshape(-1), rows[s.submasks :])


def digits(q, rows):
    """One number for each column: its elements are the digits."""
    number = np.zeros(rows[0].shape, np.int32)
    for row in rows:
        number = number * q + row.astype(np.int32)
    return number


def seen_of_masks(s):
    """What colluders and answers show, for each pair of masks (with their noise)."""
    shares, field = shares_of_all_masks(s), PrimeField(s.q)
    number = shares.shape[1]
    first = np.repeat(shares, number, axis=1)
    second = first if s.mask_reused else np.tile(shares, number)
    seen = [member[holder] for holder in s.colluders for member in (first, second)]
    asked = [(holder, s.weights) for holder in range(s.num_holders)] + list(s.conflicting)
    seen += [field.weighted_sum([first[h], second[h]], weights) for h, weights in asked]
    return digits(s.q, seen).reshape(number, number)


def masked(s, update):
    """The masked update for every mask (with its noise), as one number."""
    masks = all_vectors(s.q, s.recovery_threshold)[: s.submasks]
    return digits(s.q, (masks + np.array(update, np.uint32)[:, None]) % s.q)


def distributions(s):
    """For each weighted sum, how often anything is seen: a sorted list for all updates with that sum."""
    of_masks, updates = seen_of_masks(s), all_vectors(s.q, s.submasks).T
    room = s.q ** (len(s.colluders) * 2 + s.num_holders + len(s.conflicting))
    assert room * s.q ** (2 * s.submasks) < 2**31  # every sight has a number of its own
    alone = [masked(s, update) for update in updates]
    by_sum = defaultdict(list)
    for i, first in enumerate(updates):
        for j, second in enumerate(updates):
            total = tuple((s.weights[0] * first + s.weights[1] * second) % s.q)
            of_second = alone[j][:, None] if s.mask_reused else alone[j][None, :]
            sights = (alone[i][:, None] * s.q**s.submasks + of_second) * room + of_masks
            by_sum[total].append(np.sort(sights, axis=None))
            if len(by_sum[total]) > 1 and not np.array_equal(by_sum[total][0], by_sum[total][-1]):
                return None
            del by_sum[total][1:]
    return {total: lists[0] for total, lists in by_sum.items()}


def only_the_sum_is_seen(s):
    """Whether updates with the same weighted sum cannot be told apart."""
    return distributions(s) is not None


@pytest.mark.parametrize("colluder", range(4))
def test_one_colluder_in_f_5(colluder):
    assert only_the_sum_is_seen(Setting(5, (colluder,)))


@pytest.mark.parametrize("weights", [(1, 1), (4, 3)])
def test_other_weights(weights):
    assert only_the_sum_is_seen(Setting(5, (2,), weights=weights))


def test_one_colluder_in_f_7():
    assert only_the_sum_is_seen(Setting(7, (0,)))


@pytest.mark.parametrize("q", [5, 7])
@pytest.mark.parametrize("colluders", list(combinations(range(4), 2)))
def test_two_colluders(q, colluders):
    assert only_the_sum_is_seen(Setting(q, colluders, max_colluders=2))


def test_the_sum_itself_is_seen():
    found = distributions(Setting(5, (1,)))
    assert len({sights.tobytes() for sights in found.values()}) == 5**2


SAFE = Setting(5, (0,))
BROKEN = {
    "a point that is 0": replace(SAFE, points=(0, 1, 2, 3)),
    "a mask used twice": replace(SAFE, mask_reused=True),
    "one answer with other weights": replace(SAFE, conflicting=((2, (1, 1)),)),
    "a colluder too many": replace(SAFE, colluders=(0, 1)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_count_notices(name):
    assert not only_the_sum_is_seen(BROKEN[name])


def test_the_count_accepts_the_controls_without_their_fault():
    assert only_the_sum_is_seen(replace(SAFE, points=(4, 1, 2, 3)))
    assert only_the_sum_is_seen(replace(SAFE, conflicting=((2, SAFE.weights),)))
