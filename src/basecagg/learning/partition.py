"""Who owns which examples. Every example has exactly one owner, and every user at least one example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from basecagg.errors import DataError, ParameterError

Kind = Literal["iid", "dirichlet", "shards"]
PARTITIONS: tuple[Kind, ...] = get_args(Kind)

Indices = NDArray[np.int64]
Labels = NDArray[Any]
"""One whole number for each example. "iid" takes any targets, for it counts them only."""


def partition(
    kind: Kind,
    labels: Labels,
    num_users: int,
    generator: np.random.Generator,
    *,
    alpha: float = 0.5,
    shards_per_user: int = 2,
) -> list[Indices]:
    """Deal the examples out: one sorted array of indices per user.

    `alpha` is for "dirichlet" alone, `shards_per_user` for "shards" alone.
    """
    if kind not in PARTITIONS:
        raise DataError(f"no partition is called {kind!r}; there are {', '.join(PARTITIONS)}")
    each = shards_per_user if kind == "shards" else 1
    if each < 1:
        raise ParameterError(f"shards_per_user = {each} is below 1", rule="shards_per_user ≥ 1")
    if num_users < 1 or num_users * each > len(labels):
        raise DataError(
            f"{len(labels)} examples cannot be dealt to {num_users} users, at least {each} to each:"
            f" take 1…{len(labels) // each} users"
        )
    if kind != "iid":
        _require_labels(labels, f"partition {kind!r} deals examples out by label", "use 'iid'")
    if kind == "shards":
        owners = _in_shards(labels, num_users, generator, shards_per_user)
    elif kind == "dirichlet":
        owners = _by_dirichlet(labels, num_users, generator, alpha)
    else:  # shuffled and cut into equal parts, as in the paper; sizes differ by one at most
        owners = generator.permutation(len(labels)) % num_users
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owners, minlength=num_users))[:-1])


def _by_dirichlet(
    labels: Labels, num_users: int, generator: np.random.Generator, alpha: float
) -> Indices:
    """Each class is split among the users in proportions drawn from Dirichlet(α); a small α is uneven.

    A user that the draw leaves with nothing gets one example of the user that has most. Drawing again until
    nobody is empty would take for ever when α is small and users are many.
    """
    if not 0 < alpha < float("inf"):
        raise ParameterError(f"alpha = {alpha} must be a positive, finite number", rule="α > 0")
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(generator.dirichlet(np.full(num_users, alpha)))[:-1] * len(members)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)) + 0.5)
    sizes = np.bincount(owners, minlength=num_users)
    for user in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owners[generator.choice(np.flatnonzero(owners == richest))] = user
        sizes[richest] -= 1
        sizes[user] += 1
    return owners


def _in_shards(
    labels: Labels, num_users: int, generator: np.random.Generator, shards_per_user: int
) -> Indices:
    """Sorted by label, cut into equal shards; each user gets `shards_per_user` at random (McMahan et al.)."""
    count = num_users * shards_per_user
    shuffled = generator.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_shard = generator.permutation(count) % num_users
    owners = np.empty(len(labels), np.int64)
    owners[by_label] = owner_of_shard[np.arange(len(labels)) * count // len(labels)]
    return owners


def label_counts(labels: Labels, parts: Sequence[Indices], num_classes: int) -> NDArray[np.int64]:
    """How many examples of each class (column) each user (row) has: the picture of a partition."""
    _require_labels(labels, "examples are counted by label", "leave the picture out")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"labels {labels.min()}…{labels.max()} are not all in 0…{num_classes - 1}: see num_classes"
        )
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def _require_labels(labels: Labels, purpose: str, otherwise: str) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise DataError(
            f"{purpose}: it needs one whole number for each example, and these targets are {labels.dtype} of"
            f" shape {labels.shape}. Make such labels of them, or {otherwise}"
        )
