"""Buckets: a version made of several sums, so that one attacker spoils one of them and not the model.

K = g·b members are cut into g buckets of b. Nobody chooses who is with whom: members are sorted by the
version they trained from, and shuffled within it by a coin that follows from what was certified before and from
all their names. A server that chooses which K of the waiting updates meet chooses among coins, not a partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from basecagg.maths.robust_means import Reals
from basecagg.protocol.messages import MaskName

_DOMAIN = b"basecagg/buckets/v1/"


@dataclass(frozen=True)
class Bucket:
    """One of the sums that a version was made of."""

    members: tuple[MaskName, ...]
    base_version: int
    """The version that its first member trained from. Where updates are masked all its members did."""
    agreement: float
    """The median of the inner products of its mean with the means of the other buckets."""
    distance: float
    """How far its mean is from the robust mean of all buckets."""


def partition(members: Sequence[tuple[int, MaskName]], before: bytes, size: int) -> list[list[int]]:
    """Which members, by their places, are in which bucket of b = `size`.

    members: the version that each trained from, and its name.
    before: the digest of what was certified last, which the server cannot choose any more.
    """
    coin = _coin(before, [name.key for _, name in members])

    def order(place: int) -> tuple[int, bytes]:
        base, name = members[place]
        return base, hashlib.sha256(coin + name.key.encode()).digest()

    places = sorted(range(len(members)), key=order)
    return [places[at : at + size] for at in range(0, len(places), size)]


def _coin(before: bytes, keys: Sequence[str]) -> bytes:
    names = "".join(f"{len(key)}/{key}" for key in sorted(keys)).encode()
    return hashlib.sha256(_DOMAIN + before + names).digest()


def agreements(means: Sequence[Reals]) -> list[float]:
    """Of each bucket: the median of the inner products with the others. It is no part of a release."""
    products = dict[tuple[int, int], float]()
    for (i, one), (j, other) in combinations(enumerate(means), 2):
        # Not by BLAS, whose threads get in each other's way.
        products[i, j] = products[j, i] = float((one * other).sum())
    places = range(len(means))
    return [median(products[i, j] for j in places if j != i) for i in places]
