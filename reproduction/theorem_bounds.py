"""The bound on the ergodic gradient norm: as the paper prints it, and as we can prove it.

docs/explanation/theorem.md derives the second and says where the first goes wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is chosen: x ← x − (η_g/K)·Σ Q_{c_l}(Δ_i), Eq. (global_update_conv), J times."""

    users: int
    """N"""
    buffer_size: int
    """K"""
    local_steps: int = 1
    """E"""
    local_rate: float
    """η_l"""
    global_rate: float = 1.0
    """η_g"""
    max_staleness: int = 0
    """τ_max"""
    update_levels: int = 2**16
    """c_l"""
    versions: int
    """J"""

    @property
    def step(self) -> float:
        """η_g·η_l·E: how far one version moves along a gradient."""
        return self.global_rate * self.local_rate * self.local_steps


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the assumptions say of a problem; squares where the paper has squares."""

    smoothness: float
    """L: ‖∇F_i(a) − ∇F_i(b)‖ ≤ L·‖a − b‖."""
    local_variance: float
    """σ_l²: of a user's stochastic gradient."""
    global_variance: float
    """σ_g²: of the users' gradients around their mean."""
    gradient_bound: float
    """G: ‖∇F_i‖² at most."""
    gap: float
    """F* = F(x⁰) − F(x*)."""
    size: int
    """d"""


def rounding_variance(size: int, levels: int) -> float:
    """d/(4c²): the most that stochastic rounding adds, Eq. (lem1_ineq1) over all elements."""
    return size / (4.0 * levels**2)


def printed_bound(s: Setting, c: Constants) -> float:
    """Eq. (conv_rate) with J for its T, and everything else as printed."""
    local = c.local_variance + rounding_variance(c.size, s.update_levels)
    everything = c.gradient_bound + c.global_variance + local
    start = 2 * c.gap / (s.step * s.buffer_size * s.versions)
    noise = c.smoothness * s.global_rate * s.local_rate * local / 2
    drift = s.global_rate * s.buffer_size * s.max_staleness
    return (
        start + noise + 3 * (c.smoothness * s.local_steps * s.local_rate * drift) ** 2 * everything
    )


def printed_condition(s: Setting, c: Constants) -> bool:
    """η_l·η_g·K·E ≤ 1/L"""
    return s.step * s.buffer_size * c.smoothness <= 1 + _ROUNDING


def corrected_bound(s: Setting, c: Constants) -> float:
    """Start, noise and drift, for η_g·η_l·E ≤ 1/L. Differs from the paper: see docs/explanation/theorem.md."""
    return start_term(s, c) + noise_term(s, c) + drift_term(s, c)


def corrected_condition(s: Setting, c: Constants) -> bool:
    """η_g·η_l·E ≤ 1/L"""
    return s.step * c.smoothness <= 1 + _ROUNDING


def start_term(s: Setting, c: Constants) -> float:
    """2F*/(η_g·η_l·E·J): the way from the first model. A mean of K updates is no K times as long as one."""
    return 2 * c.gap / (s.step * s.versions)


def noise_term(s: Setting, c: Constants) -> float:
    """L·η_g/(η_l·E·K) times the variance of one update: of its gradients, its rounding, its user's data."""
    growth = (1 + s.local_rate * c.smoothness) ** (2 * (s.local_steps - 1))
    gradients = growth * s.local_steps * s.local_rate**2 * c.local_variance
    rounding = rounding_variance(c.size, s.update_levels)
    walk = s.local_rate * (s.local_steps - 1) * math.sqrt(c.gradient_bound + c.local_variance)
    distance = math.sqrt(c.global_variance) + c.smoothness * walk
    chosen = s.users / max(1, s.users - 1) * (s.local_rate * s.local_steps * distance) ** 2
    scale = c.smoothness * s.global_rate / (s.local_rate * s.local_steps * s.buffer_size)
    return scale * (gradients + rounding + chosen)


def drift_term(s: Setting, c: Constants) -> float:
    """L² times the squared distance from the model to where its gradients were taken."""
    old = s.global_rate * s.max_staleness * math.sqrt(_largest_update(s, c))
    walk = s.local_rate * (s.local_steps - 1) * math.sqrt(c.gradient_bound + c.local_variance)
    return (c.smoothness * (old + walk)) ** 2


def _largest_update(s: Setting, c: Constants) -> float:
    """E‖Q(Δ)‖² ≤ η_l²·E²·(G + σ_l²) + d/(4c_l²)."""
    trained = (s.local_rate * s.local_steps) ** 2 * (c.gradient_bound + c.local_variance)
    return trained + rounding_variance(c.size, s.update_levels)


_ROUNDING = 1e-9
"""Room for the rounding of a product that should be 1."""
