from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.errors import DataError, ParameterError
from basecagg.learning import PARTITIONS, label_counts, partition

OF_LABELS = [kind for kind in PARTITIONS if kind != "owners"]
labels_of = st.lists(st.integers(0, 9), min_size=1, max_size=200).map(np.array)


@given(
    labels=labels_of,
    data=st.data(),
    kind=st.sampled_from(OF_LABELS),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
)
def test_every_example_has_one_owner_and_every_user_an_example(
    labels: np.ndarray, data: st.DataObject, kind: str, alpha: float, seed: int
) -> None:
    each = data.draw(st.integers(1, min(3, len(labels)))) if kind == "shards" else 1
    users = data.draw(st.integers(1, len(labels) // each))
    parts = partition(
        kind, labels, users, np.random.default_rng(seed), alpha=alpha, shards_per_user=each
    )
    assert len(parts) == users
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("kind", OF_LABELS)
def test_a_partition_depends_on_its_generator_alone(kind: str) -> None:
    labels = np.arange(200) % 10

    def deal(seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        return [part.tolist() for part in partition(kind, labels, 20, rng)]

    assert deal(1) == deal(1)
    assert deal(1) != deal(2)


@pytest.mark.parametrize("kind", OF_LABELS)
def test_more_users_than_examples_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match="10 examples cannot be dealt to 11 users"):
        partition(kind, np.zeros(10, int), 11, np.random.default_rng(0), shards_per_user=1)
    with pytest.raises(DataError, match="0 users"):
        partition(kind, np.zeros(10, int), 0, np.random.default_rng(0))


def test_two_shards_each_need_two_examples_each() -> None:
    with pytest.raises(DataError, match=r"at least 2 to each: take 1…5 users"):
        partition("shards", np.zeros(10, int), 6, np.random.default_rng(0), shards_per_user=2)


def test_bad_options_are_refused() -> None:
    labels, rng = np.zeros(10, int), np.random.default_rng(0)
    with pytest.raises(DataError, match=r"'zipf'.*iid, dirichlet, shards"):
        partition("zipf", labels, 2, rng)
    for alpha in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ParameterError, match="alpha"):
            partition("dirichlet", labels, 2, rng, alpha=alpha)
    with pytest.raises(ParameterError, match="shards_per_user"):
        partition("shards", labels, 2, rng, shards_per_user=0)


def test_iid_parts_are_of_equal_size() -> None:
    sizes = [len(p) for p in partition("iid", np.zeros(103, int), 10, np.random.default_rng(0))]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_shards_give_each_user_few_labels() -> None:
    labels = np.repeat(np.arange(10), 100)
    counts = label_counts(labels, partition("shards", labels, 50, np.random.default_rng(0)), 10)
    assert (counts.sum(axis=1) == 20).all()
    assert ((counts > 0).sum(axis=1) <= 2).all()


def test_shards_are_dealt_at_random() -> None:
    """Not only which examples of a label a user gets, but which labels."""
    labels = np.repeat(np.arange(10), 100)
    first_users_labels = set()
    for seed in range(20):
        mine = partition("shards", labels, 50, np.random.default_rng(seed))[0]
        first_users_labels.add(tuple(np.unique(labels[mine])))
    assert len(first_users_labels) > 10


def test_dirichlet_grows_from_one_label_per_user_to_iid_with_alpha() -> None:
    labels = np.repeat(np.arange(10), 1000)

    def mean_largest_share(alpha: float) -> float:
        parts = partition("dirichlet", labels, 10, np.random.default_rng(0), alpha=alpha)
        counts = label_counts(labels, parts, 10)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [mean_largest_share(alpha) for alpha in (0.01, 0.3, 3.0, 1000.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7
    assert shares[-1] < 0.12


def test_dirichlet_splits_a_class_in_the_drawn_proportions() -> None:
    """With one class the sizes are the draw itself, rounded."""
    parts = partition("dirichlet", np.zeros(10_000, int), 5, np.random.default_rng(1), alpha=1.0)
    twin = np.random.default_rng(1)
    twin.permutation(10_000)
    drawn = twin.dirichlet(np.ones(5)) * 10_000
    assert np.abs(np.array([len(part) for part in parts]) - drawn).max() <= 1


def test_label_counts() -> None:
    labels = np.array([0, 2, 2, 1])
    counts = label_counts(labels, [np.array([0, 1]), np.array([2, 3])], 4)
    assert counts.tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]


def test_users_have_what_the_data_set_says_is_theirs() -> None:
    labels, rng = np.zeros(5, int), np.random.default_rng(0)
    owners = ["ward-b", "ward-a", "ward-b", "ward-c", "ward-a"]
    parts = partition("owners", labels, 3, rng, owners=owners)
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2], [3]]
    with pytest.raises(DataError, match="has 3 owners: take users = 3"):
        partition("owners", labels, 2, rng, owners=owners)
    with pytest.raises(DataError, match="says whose each example is"):
        partition("owners", labels, 3, rng)


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        ([0, 1], "one user for each of 4 examples"),
        ([0.0, 1.0, 0.0, 1.0], "one user for each of 4 examples"),
        ([0, 1, 2, 1], "users 0…2, and there are only 0…1"),
        ([0, 1, -1, 1], "users -1…1"),
        ([0, 0, 0, 0], "gives user 1 no example"),
    ],
)
def test_a_partition_of_ones_own_is_held_to_the_same(
    users: list[float], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTITIONS, "mine", lambda deal: np.array(users))
    with pytest.raises(DataError, match=reason):
        partition("mine", np.zeros(4, int), 2, np.random.default_rng(0))
