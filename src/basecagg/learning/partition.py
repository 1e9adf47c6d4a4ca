"""Who owns which examples. Every example has exactly one owner, and every user at least one example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from basecagg.errors import DataError, ParameterError

Kind = Literal["iid", "dirichlet", "shards"]
PARTITIONS: tuple[Kind, ...] = get_args(Kind)

Indices = NDArray[np.int64]
Labels = NDArray[np.integer]


def partition(
    kind: Kind,
    labels: Labels,
    num_holders: int,
    generator: np.random.Generator,
    *,
    alpha: float = 0.5,
    shards_per_user: int = 2,
) -> list[Indices]:
    """Deal the examples out: one sorted array of indices per user.

    `alpha` is for "dirichlet" alone, `shards_per_user` for "shards" alone.
    """
    if kind == "iid":
        return iid(labels, num_holders, generator)
    if kind == "dirichlet":
        return dirichlet(labels, num_holders, generator, alpha=alpha)
    if kind == "shards":
        return shards(labels, num_holders, generator, shards_per_user=shards_per_user)
    raise DataError(f"no partition is called {kind!r}; there are {', '.join(PARTITIONS)}")


def iid(labels: Labels, num_holders: int, generator: np.random.Generator) -> list[Indices]:
    """Shuffled and cut into equal parts, as in the paper; sizes differ by one at most."""
    _require_enough(len(labels), num_holders)
    return _by_owner(generator.permutation(len(labels)) % num_holders, num_holders)


def dirichlet(
    labels: Labels, num_holders: int, generator: np.random.Generator, *, alpha: float
) -> list[Indices]:
    """Each class is split among the users in proportions drawn from Dirichlet(α); a small α is uneven.

    A user that the draw leaves with nothing gets one example of whoever then has most. Drawing again until
    nobody is empty would take for ever when α is small and users are many.
    """
    _require_enough(len(labels), num_holders)
    if not 0 < alpha < float("inf"):
        raise ParameterError(f"alpha = {alpha} must be a positive, finite number", rule="α > 0")
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(generator.dirichlet(np.full(num_holders, alpha)))[:-1] * len(members)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)) + 0.5)
    _give_everyone_one(owners, num_holders, generator)
    return _by_owner(owners, num_holders)


def shards(
    labels: Labels, num_holders: int, generator: np.random.Generator, *, shards_per_user: int
) -> list[Indices]:
    """Sorted by label, cut into equal shards; each user gets `shards_per_user` at random (McMahan et al.)."""
    if shards_per_user < 1:
        raise ParameterError(
            f"shards_per_user = {shards_per_user} must be at least 1", rule="shards_per_user ≥ 1"
        )
    _require_enough(len(labels), num_holders, shards_per_user)
    count = num_holders * shards_per_user
    shuffled = generator.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_shard = generator.permutation(count) % num_holders
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = owner_of_shard[np.arange(len(labels)) * count // len(labels)]
    return _by_owner(owners, num_holders)


def label_counts(labels: Labels, parts: Sequence[Indices], num_classes: int) -> NDArray[np.int64]:
    """How many examples of each class (column) each user (row) has: the picture of a partition."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def _by_owner(owners: NDArray[np.int64], num_holders: int) -> list[Indices]:
    """Turn "owner of each example" into "examples of each owner", sorted."""
    order = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners, minlength=num_holders)
    return np.split(order, np.cumsum(sizes)[:-1])


def _give_everyone_one(
    owners: NDArray[np.int64], num_holders: int, generator: np.random.Generator
) -> None:
    sizes = np.bincount(owners, minlength=num_holders)
    for user in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owners[generator.choice(np.flatnonzero(owners == richest))] = user
        sizes[richest] -= 1
        sizes[user] += 1


def _require_enough(num_examples: int, num_holders: int, each: int = 1) -> None:
    if num_holders < 1 or num_holders * each > num_examples:
        raise DataError(
            f"{num_examples} examples cannot be dealt to {num_holders} users, at least {each} to each:"
            f" take 1…{num_examples // each} users"
        )
