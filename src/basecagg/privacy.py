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
from functools import lru_cache
from typing import Literal

from basecagg.errors import ParameterError
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
from basecagg.maths.staleness import StalenessFunction, constant, exact_value, forms

Unit = Literal["user", "record"]
LEAST_DEVIATION, MOST_DEVIATION = 3, 2**13
"""σ_i in steps: below, a sum of discrete Gaussians is none; above, its table becomes too large."""
DISTANCE = 2.0**-127
"""η: the statistical distance between one draw of the noise and the discrete Gaussian, at most."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What the operator promises and every contributor keeps by itself. Without noise lengths are bounded."""

    clip_norm: float
    """C: contributors clip what a unit adds to an update to C in the 2-norm, before they weigh it."""
    noise: float = 0.0
    """z: the noise in a sum has a standard deviation of z times what one unit can change; 0 for none."""
    epsilon: float | None = None
    """ε of all that a contributor ever uploads, for each unit in it; None without noise."""
    delta: float = 1e-6
    """δ that goes with ε."""
    max_uses: int = 1
    """k_max: fresh uploads of one contributor that ε covers."""
    staleness: StalenessFunction = field(default_factory=constant)
    """s(τ̂): by what a contributor multiplies an update that it made τ̂ versions ago."""
    unit: Unit = "user"
    """Whose contribution is hidden: all that a user uploads, or what one record of its data adds to that.
    (Neighbours: it becomes zero, and the noise stays.)"""
    sampling_rate: float = 1.0
    """With which probability each record is in an upload, unseen and on its own; 1 for users."""
    max_records: int = 1
    """M: an upload is clipped to M·C, with so many records in it at most; 1 for users."""

    def __post_init__(self) -> None:
        """Refuse what is not even a number; the rules are with the other parameters."""
        for name in ("clip_norm", "noise", "delta", "epsilon", "sampling_rate"):
            value = getattr(self, name)
            _require(
                _is_number(value) or (name, value) == ("epsilon", None), name, value, "a number"
            )
            if value is not None:
                object.__setattr__(self, name, float(value))
        for name in ("max_uses", "max_records"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            _require(whole, name, value, "a whole number")
        known = isinstance(self.staleness, StalenessFunction)
        _require(known, "staleness", self.staleness, f"a StalenessFunction: {forms()}")
        _require(self.unit in ("user", "record"), "unit", self.unit, "'user' or 'record'")

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

    @property
    def honest(self) -> int:
        """K − T_c: shares of the noise that count."""
        return self.members - self.silent

    def squared_bound(self, staleness: int) -> int:
        """C̃(s)², in steps: no upload that was weighed by s(τ̂) is longer before its noise."""
        return _squared_bound(self, staleness)

    def squared_change(self, staleness: int) -> int:
        """Δ̃(s)², in steps: what one unit can change in such an upload. All of it, if it is the user."""
        return _squared_change(self, staleness)

    @property
    def variance(self) -> int:
        """σ_i²: of one contributor's noise, in steps."""
        return _variance(self)

    @property
    def deviation(self) -> float:
        """σ_i, in steps."""
        return float(Decimal(self.variance).sqrt())

    def longest_update(self, staleness: int) -> Decimal:
        """n = c_l·C·s(τ̂), in steps."""
        weight = exact_value(self.privacy.staleness, staleness)
        return self.levels * Decimal(self.privacy.clip_norm) * weight

    def weight(self, staleness: int) -> float:
        """s(τ̂)"""
        return self.privacy.staleness(staleness)

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
        return squared_sum_bound(map(self.squared_bound, stalenesses), self.variance, self.size)

    # --- what it costs ------------------------------------------------------------------------

    def cost(self, staleness: int) -> float:
        """ρ of one upload. It falls with s(τ̂), but not as s²: what rounding adds stays."""
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


@lru_cache(maxsize=4096)
def _squared_bound(mechanism: Mechanism, staleness: int) -> int:
    privacy = mechanism.privacy
    weight = exact_value(privacy.staleness, staleness)
    if privacy.unit == "user":
        return squared_bound(mechanism.levels, privacy.clip_norm, weight, mechanism.size)
    most = mechanism.levels * privacy.max_records
    return squared_change(most, privacy.clip_norm, weight, mechanism.size)


@lru_cache(maxsize=4096)
def _squared_change(mechanism: Mechanism, staleness: int) -> int:
    privacy = mechanism.privacy
    if privacy.unit == "user":
        return mechanism.squared_bound(staleness)
    weight = exact_value(privacy.staleness, staleness)
    return squared_change(mechanism.levels, privacy.clip_norm, weight, mechanism.size)


@lru_cache(maxsize=256)
def _variance(mechanism: Mechanism) -> int:
    noise = mechanism.privacy.noise
    return share_variance(noise, mechanism.squared_change(0), mechanism.honest) if noise else 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        rule = f"{name} of the privacy is {wanted}"
        raise ParameterError(f"{name} = {value!r} of the privacy must be {wanted}", rule=rule)
