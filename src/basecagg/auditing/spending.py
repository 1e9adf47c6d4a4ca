"""What every contributor has spent of its privacy, counted again from a transcript.

Tickets count, not openings: what was burned, refused or never summed has left the device. Contributors keep the
same account themselves, over all their epochs; a transcript knows of one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from basecagg.auditing.transcript import Transcript
from basecagg.maths.accounting import Cost, epsilon_after, total


@dataclass(frozen=True)
class UploadCosts:
    """One contributor's account."""

    contributor: str
    uploads: int
    spent: float
    """Σρ, or for records the sum of divergences at one order."""
    epsilon: float
    """ε at the δ of the epoch."""


def spending(transcript: Transcript) -> tuple[UploadCosts, ...]:
    """The account of every contributor, the largest first; nothing where there is no noise."""
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
