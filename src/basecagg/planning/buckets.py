"""How many buckets a version needs so that a share of attackers among the contributors cannot move the model.

Whether a contributor attacks is a coin of its own here, so a bucket of b is dirty with 1 − (1 − p)^b, and the
number of dirty buckets is binomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from basecagg.errors import ParameterError
from basecagg.parameters import ProtocolParameters

USUAL_CROWD = 5
"""b, where m and T_c + 2 are less: the crowd that hides a member."""
_SPOILED = 0.05
"""Of the versions at most this part may have more dirty buckets than a robust mean withstands."""
_MOST_BUCKETS = 99


@dataclass(frozen=True)
class Buckets:
    """What withstands a share of attackers."""

    attackers: float
    """p"""
    size: int
    """b"""
    count: int
    """g"""

    @property
    def members(self) -> int:
        """K = g·b"""
        return self.size * self.count

    @property
    def withstands(self) -> int:
        """Dirty buckets that the usual robust mean withstands: fewer than half of them."""
        return (self.count - 1) // 2

    @property
    def dirty(self) -> float:
        """The part of the buckets that has an attacker in it."""
        return _dirty(self.attackers, self.size)

    @property
    def spoiled(self) -> float:
        """The part of the versions that has more dirty buckets than that."""
        return _spoiled(self.attackers, self.size, self.count)

    @property
    def most_attackers(self) -> float:
        """The largest share, in steps of a thousandth, for which these would still do."""
        shares = (step / 1000 for step in range(1, 1000))
        return max((p for p in shares if _suffices(p, self.size, self.count)), default=0.0)

    @property
    def noise_factor(self) -> float:
        """√g: how much larger the noise in the mean is, which comes from b members of a sum instead of K."""
        return math.sqrt(self.count)


def choose_buckets(parameters: ProtocolParameters, attackers: float) -> Buckets:
    """The fewest buckets that will do, of the smallest crowd that is allowed."""
    p = parameters
    size = max(USUAL_CROWD, p.least_per_version, p.max_colluding_contributors + 2)
    for count in range(3, _MOST_BUCKETS + 1):
        if _suffices(attackers, size, count):
            return Buckets(attackers, size, count)
    shares = [step / 1000 for step in range(1, 1000)]
    most = max(share for share in shares if _suffices(share, size, _MOST_BUCKETS))
    raise ParameterError(
        f"with {attackers:.3g} of the contributors attacking, {_dirty(attackers, size):.0%} of all buckets of"
        f" b = {size} have an attacker in them, and no robust mean withstands that. Possible instead: a share"
        f" of {most:.3g}, or a smaller crowd (m or T_c)",
        rule="fewer than half of the buckets are dirty",
    )


def _dirty(attackers: float, size: int) -> float:
    return float(1 - (1 - attackers) ** size)


def _spoiled(attackers: float, size: int, count: int) -> float:
    dirty = _dirty(attackers, size)
    many = range((count - 1) // 2 + 1, count + 1)
    return math.fsum(math.comb(count, n) * dirty**n * (1 - dirty) ** (count - n) for n in many)


def _suffices(attackers: float, size: int, count: int) -> bool:
    return _spoiled(attackers, size, count) <= _SPOILED
