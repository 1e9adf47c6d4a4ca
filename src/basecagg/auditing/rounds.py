"""What all rounds together give away: of updates that barely change, and of each contributor's privacy budget.

If updates barely change from round to round, there is one unknown per contributor and every opened sum is one
equation. This is an assumption about the learning, not a fact about the transcript: it bounds what a patient
server can work out with overlapping sums.

The remedy is cohorts: contributors are put into fixed groups whose size divides K, and a buffer takes whole
groups only. If the members of a group always weigh the same (trained from one version, and s̄ rounded to nearest
or s constant), every sum is a combination of group sums: over any number of rounds at most one equation per
group is learned, and nothing smaller than a group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from basecagg.auditing.knowledge import row_space
from basecagg.auditing.transcript import EpochLine, Transcript
from basecagg.maths.accounting import Cost, epsilon_after, total
from basecagg.maths.primes import PAPER_MODULUS


@dataclass(frozen=True)
class Rounds:
    """The system of all learned sums, solved."""

    equations: int
    """Sums that are known at least in part, and exposed updates."""
    contributors: int
    """Contributors that are in at least one of them."""
    rank: int
    determined: tuple[str, ...]
    """Contributors whose update follows from the sums."""
    smallest: tuple[str, ...]
    """The fewest contributors found whose weighted sum follows. There may be sums of fewer."""


def over_all_rounds(learned: Sequence[Mapping[str, int]]) -> Rounds:
    """Solve for one update per contributor. Each learned sum is given as weights by contributor.

    The sums are equations between integers; they are solved modulo the prime 2³² − 5, which differs from the
    rationals only if that prime happens to divide a minor of the weights.
    """
    names = sorted({name for weights in learned for name in weights})
    rows = [[weights.get(name, 0) % PAPER_MODULUS for name in names] for weights in learned]
    system = np.unique(np.array(rows, np.uint64).reshape(len(rows), len(names)), axis=0)
    solved = row_space(system, PAPER_MODULUS).rows
    # Short combinations hide from one order of the unknowns and show in another; single ones never hide.
    mirrored = row_space(system[:, ::-1], PAPER_MODULUS).rows[:, ::-1]
    known = [tuple(names[i] for i in np.flatnonzero(row)) for row in (*solved, *mirrored)]
    return Rounds(
        equations=len(learned),
        contributors=len(names),
        rank=len(solved),
        determined=tuple(sorted({one[0] for one in known if len(one) == 1})),
        smallest=min(known, key=lambda combination: (len(combination), combination), default=()),
    )


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
    k = epoch.buffer_size
    sizes = [size for size in range(2, k + 1) if k % size == 0 and len(names) // size >= k // size]
    enough = [size for size in sizes if size >= epoch.max_colluders + 2] or sizes[-1:]
    found = []
    for size in sizes:
        whole = len(names) // size * size
        groups = tuple(tuple(names[start : start + size]) for start in range(0, whole, size))
        most_rank = min(sums, len(groups))
        found.append(Cohorts(size, groups, tuple(names[whole:]), most_rank, size == enough[0]))
    return tuple(found)


@dataclass(frozen=True)
class UploadCosts:
    """What one contributor has spent of its privacy."""

    contributor: str
    uploads: int
    spent: float
    """Σρ, or for records the sum of divergences at one order."""
    epsilon: float
    """ε at the δ of the epoch."""


def spending(transcript: Transcript) -> tuple[UploadCosts, ...]:
    """The account of every contributor, the largest first; nothing where there is no noise.

    Tickets count, not openings: what was burned, refused or never summed has left the device. Contributors keep
    the same account themselves, over all their epochs; a transcript knows of one.
    """
    mechanism = transcript.epoch.mechanism
    if mechanism is None:
        return ()
    costs = defaultdict[str, Counter[Cost]](Counter)
    for updates in transcript.uploads.values():
        for line in updates.values():
            costs[line.contributor][mechanism.costs(line.staleness)] += 1
    order, delta = mechanism.order, mechanism.conversion_delta
    accounts = []
    for contributor, uploads in costs.items():
        spent = total(uploads, order)
        epsilon = epsilon_after(spent, delta, order)
        accounts.append(UploadCosts(contributor, uploads.total(), spent, epsilon))
    return tuple(sorted(accounts, key=lambda each: (-each.spent, each.contributor)))
