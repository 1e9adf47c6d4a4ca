"""Cohorts: the remedy against sums that overlap a little differently each time.

Contributors are put into fixed groups whose size divides K, and a buffer takes whole groups only. If the
members of a group always weigh the same (trained from one version, and s̄ rounded to nearest or s constant),
every sum is a combination of group sums: over any number of rounds at most one equation per group is learned,
and nothing smaller than a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from basecagg.planning.transcript import EpochLine


@dataclass(frozen=True)
class Cohorts:
    """One way to divide the contributors."""

    size: int
    groups: tuple[tuple[str, ...], ...]
    left_over: tuple[str, ...]
    """Contributors that wait until enough of them are there for one more group."""
    most_rank: int
    """The rank over all rounds could not have been larger than this."""
    suggested: bool


def suggest_cohorts(names: Sequence[str], epoch: EpochLine, *, sums: int) -> tuple[Cohorts, ...]:
    """All sizes that divide K and can fill a buffer; `names` in the order of how often they upload.

    Suggested is the smallest size that leaves two honest members besides T colluding ones, as K itself must.
    Neighbours in activity share a group, so that none waits long for its slowest member.
    """
    buffer_size = epoch.buffer_size
    sizes = [
        size
        for size in range(2, buffer_size + 1)
        if buffer_size % size == 0 and len(names) // size >= buffer_size // size
    ]
    enough = [size for size in sizes if size >= epoch.max_colluders + 2] or sizes[-1:]
    return tuple(_divide(names, size, sums, size == enough[0]) for size in sizes)


def _divide(names: Sequence[str], size: int, sums: int, suggested: bool) -> Cohorts:
    whole = len(names) // size * size
    groups = tuple(tuple(names[start : start + size]) for start in range(0, whole, size))
    return Cohorts(size, groups, tuple(names[whole:]), min(sums, len(groups)), suggested)
