"""Who is with whom in a bucket: everybody once, by version, by a coin that nobody chooses."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.protocol.buckets import agreements, partition
from basecagg.protocol.messages import MaskName

BEFORE = bytes(range(32))


def members(*versions):
    return [(version, MaskName(f"user-{i}", bytes(16))) for i, version in enumerate(versions)]


def buckets(who, before=BEFORE, size=2):
    """By names, whatever the order in which they are given."""
    cut = partition(who, before, size)
    return [frozenset(who[place][1].contributor for place in bucket) for bucket in cut]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 6))
def test_everybody_is_in_one_bucket(versions, size):
    cut = partition(members(*versions), BEFORE, size)
    assert sorted(place for bucket in cut for place in bucket) == list(range(len(versions)))
    assert all(len(bucket) == size for bucket in cut[:-1])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(2, 5))
def test_a_bucket_has_one_version_where_all_come_in_multiples_of_b(multiples, size):
    versions = [base for base, times in enumerate(multiples) for _ in range(times * size)]
    who = members(*versions)
    for bucket in partition(who, BEFORE, size):
        assert len({who[place][0] for place in bucket}) == 1


def test_the_order_of_arrival_does_not_matter():
    who = members(3, 3, 3, 3, 4, 4, 4, 4)
    assert buckets(who) == buckets(who[::-1])


def test_another_past_or_another_member_is_another_coin():
    who = members(*[7] * 20)
    other = [*who[:-1], (7, MaskName("user-x", bytes(16)))]
    assert buckets(who) != buckets(who, before=bytes(32))
    paired = {pair for bucket in buckets(who) for pair in combinations(sorted(bucket), 2)}
    again = {pair for bucket in buckets(other) for pair in combinations(sorted(bucket), 2)}
    assert len(paired & again) < 6


def test_over_many_coins_everybody_meets_everybody():
    met = Counter[tuple[str, ...]]()
    who = members(*[0] * 10)
    for coin in range(900):
        for bucket in buckets(who, before=coin.to_bytes(32, "big")):
            met[tuple(sorted(bucket))] += 1
    assert len(met) == 45
    assert all(60 <= times <= 145 for times in met.values())  # 100 are expected, σ is 9.4


def test_agreement_is_the_middle_of_what_the_others_say():
    means = [
        np.array([1.0, 0.0]),
        np.array([2.0, 0.0]),
        np.array([3.0, 1.0]),
        np.array([-1.0, 5.0]),
    ]
    assert agreements(means) == [pytest.approx(2.0), pytest.approx(2.0), 3.0, pytest.approx(-1.0)]
