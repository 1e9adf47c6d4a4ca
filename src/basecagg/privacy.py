"""Differential privacy as a federation agrees on it, and what that means for its sums.

A sum holds exactly K uploads, and every upload brings its share of the noise: none can be lost with a dropout.
The formulas are in `maths.norm_bounds` and `maths.accounting`; docs/explanation/privacy.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from basecagg.maths.accounting import (
    Cost,
    cost_of_upload,
    epsilon_of,
    sampled_epsilon,
    total,
    within,
)
from basecagg.maths.norm_bounds import (
    noise_reach,
    share_variance,
    squared_bound,
    squared_change,
    squared_sum_bound,
)
from basecagg.maths.staleness import StalenessFunction, constant
from basecagg.options import BudgetOptions, Unit, check

LEAST_DEVIATION, MOST_DEVIATION = 3, 2**13
"""σ_i in steps: below, a sum of discrete Gaussians is none; above, its table becomes too large."""
DISTANCE = 2.0**-127
"""η: the statistical distance between one draw of the noise and the discrete Gaussian, at most."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What the operator promises and every contributor keeps by itself; without noise, a bound on lengths."""

    clip_norm: float
    """C: contributors clip what a unit adds to an update to C in the 2-norm, before they weigh it."""
    noise: float = 0.0
    """z: the noise in a sum has a standard deviation of z times what one unit can change; 0 for none."""
    epsilon: float | None = None
    """ε of all that a contributor ever uploads, for each unit in it; None without noise."""
    delta: float = BudgetOptions.delta
    """δ that goes with ε."""
    max_uses: int = BudgetOptions.max_uses
    """k_max: fresh uploads of one contributor that ε covers."""
    unit: Unit = BudgetOptions.unit
    """Whose contribution is hidden: all that a user uploads, or what one record of its data adds to that.
    (Neighbours: it becomes zero, and the noise stays.)"""
    sampling_rate: float = BudgetOptions.sampling_rate
    """With which probability each record is in an upload, unseen and on its own; 1 for users."""
    max_records: int = 1
    """M: an upload is clipped to M·C, with so many records in it at most; 1 for users."""

    def __post_init__(self) -> None:
        """Refuse what is not even a number; the rules are with the other parameters."""
        check(self, " of the privacy")
        for name in ("clip_norm", "noise", "delta", "epsilon", "sampling_rate"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))

    @property
    def longest(self) -> float:
        """M·C: to which a whole update is clipped. That brings no two updates further apart."""
        return self.max_records * self.clip_norm


@dataclass(frozen=True)
class Mechanism:
    """A `Privacy` in sums of K updates of d numbers."""

    privacy: Privacy
    members: int
    """K"""
    silent: int
    """T_c: contributors that add no noise, or that tell the server theirs."""
    size: int
    """d"""
    levels: int
    """c_l"""
    staleness: StalenessFunction = field(default_factory=constant)
    """s(τ̂): a contributor multiplies an update that it made τ̂ versions ago by 2^−t of its tier t."""
    errors: int = 0
    """σ² of the error of a mask from a key, beside the noise. Bounds include it, the accounting does not."""

    @property
    def honest(self) -> int:
        """K − T_c: shares of the noise that count."""
        return self.members - self.silent

    def squared_bound(self, staleness: int) -> int:
        """C̃², in steps: no upload that was weighed by its age τ̂ is longer before its noise."""
        if self.privacy.unit == "user":
            return squared_bound(*self._lengths(staleness))
        return squared_change(*self._lengths(staleness, self.privacy.max_records))

    def squared_change(self, staleness: int) -> int:
        """Δ̃², in steps: what one unit can change in such an upload. All of it, if it is the user."""
        if self.privacy.unit == "user":
            return self.squared_bound(staleness)
        return squared_change(*self._lengths(staleness))

    def _lengths(self, staleness: int, records: int = 1) -> tuple[int, float, Decimal, int]:
        weight = Decimal(self.weight(staleness))
        return self.levels * records, self.privacy.clip_norm, weight, self.size

    @property
    def variance(self) -> int:
        """σ_i²: of one contributor's noise, in steps."""
        noise = self.privacy.noise
        return share_variance(noise, self.squared_change(0), self.honest) if noise else 0

    @property
    def deviation(self) -> float:
        """σ_i, in steps."""
        return float(Decimal(self.variance).sqrt())

    def longest_update(self, staleness: int) -> Decimal:
        """n = c_l·C·2^−t, in steps."""
        return self.levels * Decimal(self.privacy.clip_norm) * Decimal(self.weight(staleness))

    def weight(self, staleness: int) -> float:
        """2^−t, by which a contributor weighs at the age τ̂."""
        return 2.0 ** -self.staleness.tier(staleness)

    @property
    def largest_element(self) -> int:
        """⌈c_l·M·C⌉ + 1: no element of a rounded update is larger, whatever its norm was computed to be."""
        longest = self.privacy.max_records * Fraction(self.privacy.clip_norm)
        return math.ceil(self.levels * longest) + 1

    @property
    def largest_sum(self) -> int:
        """K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)): no honest sum is larger in any element, but for 2⁻⁴⁰."""
        reach = noise_reach(self.variance, self.members, self.size) if self.variance else 0
        return self.members * self.largest_element + reach

    def squared_sum_bound(self, stalenesses: Iterable[int]) -> int:
        """No honest sum of members that were weighed by these τ̂ is longer, but for 2⁻⁴⁰."""
        variance = self.variance + self.errors
        return squared_sum_bound(map(self.squared_bound, stalenesses), variance, self.size)

    # --- what it costs ------------------------------------------------------------------------

    def cost(self, staleness: int) -> float:
        """ρ of one upload. It falls with its weight, but not as its square: what rounding adds stays."""
        change = self.squared_change(staleness)
        return cost_of_upload(change, self.variance, self.honest, self.size)

    def costs(self, staleness: int) -> Cost:
        """The same for a unit that is in the upload by chance, as sampled records are."""
        return Cost(self.cost(staleness), self.privacy.sampling_rate)

    @property
    def order(self) -> int | None:
        """α at which uploads of records add up: the best for k_max fresh ones. Users need none: ρ has all."""
        return self._of_records[1] if self.privacy.unit == "record" else None

    @property
    def _of_records(self) -> tuple[float, int]:
        return sampled_epsilon(self.costs(0), self.privacy.max_uses, self.conversion_delta)

    @property
    def conversion_delta(self) -> float:
        """δ less (1 + e^ε)·k_max·K·d·η, which pays for a table that is cut and rounded."""
        assert self.privacy.epsilon is not None
        draws = self.privacy.max_uses * self.members * self.size
        # In logarithms: e^ε may be beyond any float.
        spent = self.privacy.epsilon + math.log(2 * draws * DISTANCE)
        return self.privacy.delta - (math.exp(spent) if spent < 0 else 1.0)

    @property
    def epsilon(self) -> float:
        """ε of k_max fresh uploads."""
        if self.privacy.unit == "record":
            return self._of_records[0]
        return epsilon_of(self.privacy.max_uses * self.cost(0), self.conversion_delta)

    @property
    def uses_within(self) -> int:
        """Fresh uploads that (ε, δ) covers."""
        return int(self.budget / total({self.costs(0): 1}, self.order) * (1 + 1e-12))

    @property
    def budget(self) -> float:
        """What a contributor may spend in all: ρ_max, or the divergence at its order."""
        return self.budget_at(self.order)

    def budget_at(self, order: int | None) -> float:
        """The same by another order, for a ledger that was begun with it."""
        assert self.privacy.epsilon is not None
        return within(self.privacy.epsilon, self.conversion_delta, order)
