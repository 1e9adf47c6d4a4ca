"""Who owns which examples. Every example has exactly one owner, and every user at least one example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from basecagg.errors import DataError, ParameterError

Indices = NDArray[np.int64]
Labels = NDArray[Any]
"""One whole number for each example. "iid" takes any targets, for it counts them only."""


class Deal(NamedTuple):
    """What a partition has to do with."""

    labels: Labels
    """The target of each example."""
    num_users: int
    generator: np.random.Generator
    """Draw from this one alone, so that a run can be repeated."""
    owners: Sequence[Any] | None = None
    """Whose each example is, if the data set says it."""
    alpha: float = 0.5
    """For "dirichlet" alone."""
    shards_per_user: int = 2
    """For "shards" alone."""


Partition: TypeAlias = Callable[[Deal], Indices]
"""The user of each example, 0…num_users − 1."""


def partition(
    kind: str,
    labels: Labels,
    num_users: int,
    generator: np.random.Generator,
    *,
    owners: Sequence[Any] | None = None,
    alpha: float = 0.5,
    shards_per_user: int = 2,
) -> list[Indices]:
    """Deal the examples out: one sorted array of indices per user.

    `owners` is for "owners" alone, `alpha` for "dirichlet", `shards_per_user` for "shards".
    """
    if kind not in PARTITIONS:
        raise DataError(f"no partition is called {kind!r}; there are {', '.join(PARTITIONS)}")
    deal = Deal(labels, num_users, generator, owners, alpha, shards_per_user)
    _require_enough(deal, 1)
    users = np.asarray(PARTITIONS[kind](deal))
    if users.shape != (len(labels),) or users.dtype.kind not in "iu":
        raise DataError(f"partition {kind!r} must give one user for each of {len(labels)} examples")
    if users.min() < 0 or users.max() >= num_users:
        raise DataError(
            f"partition {kind!r} gives examples to users {users.min()}…{users.max()}, and there are only"
            f" 0…{num_users - 1}"
        )
    sizes = np.bincount(users, minlength=num_users)
    if not sizes.all():
        raise DataError(f"partition {kind!r} gives user {int(np.argmin(sizes))} no example")
    return np.split(np.argsort(users, kind="stable"), np.cumsum(sizes)[:-1])


def _require_enough(deal: Deal, each: int) -> None:
    examples = len(deal.labels)
    if deal.num_users < 1 or deal.num_users * each > examples:
        raise DataError(
            f"{examples} examples cannot be dealt to {deal.num_users} users, at least {each} to each:"
            f" take 1…{examples // each} users"
        )


def _evenly(deal: Deal) -> Indices:
    """Shuffled and cut into equal parts, as in the paper; sizes differ by one at most."""
    return deal.generator.permutation(len(deal.labels)) % deal.num_users


def _by_dirichlet(deal: Deal) -> Indices:
    """Each class is split among the users in proportions drawn from Dirichlet(α); a small α is uneven.

    A user that the draw leaves with nothing gets one example of the user that has most. Drawing again until
    nobody is empty would take for ever when α is small and users are many.
    """
    labels, num_users, generator = deal.labels, deal.num_users, deal.generator
    _require_labels(labels, "partition 'dirichlet' deals examples out by label", "use 'iid'")
    if not 0 < deal.alpha < float("inf"):
        raise ParameterError(
            f"alpha = {deal.alpha} must be a positive, finite number", rule="α > 0"
        )
    users = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(generator.dirichlet(np.full(num_users, deal.alpha)))[:-1] * len(members)
        users[members] = np.searchsorted(cuts, np.arange(len(members)) + 0.5)
    sizes = np.bincount(users, minlength=num_users)
    for user in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        users[generator.choice(np.flatnonzero(users == richest))] = user
        sizes[richest] -= 1
        sizes[user] += 1
    return users


def _in_shards(deal: Deal) -> Indices:
    """Sorted by label, cut into equal shards; each user gets `shards_per_user` at random (McMahan et al.)."""
    labels, each = deal.labels, deal.shards_per_user
    if each < 1:
        raise ParameterError(f"shards_per_user = {each} is below 1", rule="shards_per_user ≥ 1")
    _require_enough(deal, each)
    _require_labels(labels, "partition 'shards' deals examples out by label", "use 'iid'")
    count = deal.num_users * each
    shuffled = deal.generator.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    user_of_shard = deal.generator.permutation(count) % deal.num_users
    users = np.empty(len(labels), np.int64)
    users[by_label] = user_of_shard[np.arange(len(labels)) * count // len(labels)]
    return users


def _by_owner(deal: Deal) -> Indices:
    """As the data set says; users come in the order of their owners' names."""
    if deal.owners is None:
        raise DataError(
            "partition 'owners' needs a data set that says whose each example is: Dataset(owners=…)"
        )
    names, users = np.unique(np.asarray(deal.owners), return_inverse=True)
    if len(names) != deal.num_users:
        raise DataError(f"the data set has {len(names)} owners: take users = {len(names)}")
    return users


PARTITIONS: dict[str, Partition] = {
    "iid": _evenly,
    "dirichlet": _by_dirichlet,
    "shards": _in_shards,
    "owners": _by_owner,
}
"""Every partition there is."""


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
