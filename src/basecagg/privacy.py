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
from basecagg.maths.accounting import cost_of_upload, epsilon_of, rho_within
from basecagg.maths.norm_bounds import (
    noise_reach,
    share_variance,
    squared_bound,
    squared_sum_bound,
)
from basecagg.maths.staleness import StalenessFunction, constant, exact_value, forms

Unit = Literal["user"]
LEAST_DEVIATION, MOST_DEVIATION = 3, 2**13
"""σ_i in steps: below, a sum of discrete Gaussians is none; above, its table becomes too large."""
DISTANCE = 2.0**-127
"""η: the statistical distance between one draw of the noise and the discrete Gaussian, at most."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What the operator promises and every contributor keeps by itself. Without noise lengths are bounded."""

    clip_norm: float
    """C: contributors clip every update to ‖Δ‖ ≤ C in the 2-norm, before they weigh it."""
    noise: float = 0.0
    """z: the noise in a sum has a standard deviation of z times what one update can change; 0 for none."""
    epsilon: float | None = None
    """ε of all that a contributor ever uploads; None without noise."""
    delta: float = 1e-6
    """δ that goes with ε."""
    max_uses: int = 1
    """k_max: fresh uploads of one contributor that ε covers."""
    staleness: StalenessFunction = field(default_factory=constant)
    """s(τ̂): by what a contributor multiplies an update that it made τ̂ versions ago."""
    unit: Unit = "user"
    """Whose contribution is hidden: all that a user uploads. (Neighbours: it becomes zero, plus noise.)"""

    def __post_init__(self) -> None:
        """Refuse what is not even a number; the rules are with the other parameters."""
        for name in ("clip_norm", "noise", "delta", "epsilon"):
            value = getattr(self, name)
            _require(
                _is_number(value) or (name, value) == ("epsilon", None), name, value, "a number"
            )
            if value is not None:
                object.__setattr__(self, name, float(value))
        whole = isinstance(self.max_uses, int) and not isinstance(self.max_uses, bool)
        _require(whole, "max_uses", self.max_uses, "a whole number")
        known = isinstance(self.staleness, StalenessFunction)
        _require(known, "staleness", self.staleness, f"a StalenessFunction: {forms()}")
        _require(self.unit == "user", "unit", self.unit, "'user'")


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
        """⌈c_l·C⌉ + 1: no element of a rounded update is larger, whatever its norm was computed to be."""
        return math.ceil(self.levels * Fraction(self.privacy.clip_norm)) + 1

    @property
    def largest_sum(self) -> int:
        """K·(⌈c_l·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)): no honest sum is larger in any element, but for 2⁻⁴⁰."""
        reach = noise_reach(self.variance, self.members, self.size) if self.variance else 0
        return self.members * self.largest_element + reach

    def squared_sum_bound(self, stalenesses: Iterable[int]) -> int:
        """No honest sum of members that were weighed by these τ̂ is longer, but for 2⁻⁴⁰."""
        return squared_sum_bound(map(self.squared_bound, stalenesses), self.variance, self.size)

    # --- what it costs ------------------------------------------------------------------------

    def cost(self, staleness: int) -> float:
        """ρ of one upload. It falls with s(τ̂), but not as s²: what rounding adds stays."""
        bound = self.squared_bound(staleness)
        return cost_of_upload(bound, self.variance, self.honest, self.size)

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
        return epsilon_of(self.privacy.max_uses * self.cost(0), self.conversion_delta)

    @property
    def uses_within(self) -> int:
        """Fresh uploads that (ε, δ) covers."""
        return int(self.budget / self.cost(0) * (1 + 1e-12))

    @property
    def budget(self) -> float:
        """ρ_max: what a contributor may spend in all."""
        assert self.privacy.epsilon is not None
        return rho_within(self.privacy.epsilon, self.conversion_delta)


@lru_cache(maxsize=4096)
def _squared_bound(mechanism: Mechanism, staleness: int) -> int:
    privacy = mechanism.privacy
    weight = exact_value(privacy.staleness, staleness)
    return squared_bound(mechanism.levels, privacy.clip_norm, weight, mechanism.size)


@lru_cache(maxsize=256)
def _variance(mechanism: Mechanism) -> int:
    noise = mechanism.privacy.noise
    return share_variance(noise, mechanism.squared_bound(0), mechanism.honest) if noise else 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        rule = f"{name} of the privacy is {wanted}"
        raise ParameterError(f"{name} = {value!r} of the privacy must be {wanted}", rule=rule)
