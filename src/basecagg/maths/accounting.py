"""What uploads cost in privacy: ρ of each, and the (ε, δ) that a sum of them comes to.

A sum is *concentrated* differential privacy (Bun and Steinke 2016): ρ adds up over uploads, also when later
ones depend on what earlier ones gave. It becomes (ε, δ) by Rényi divergences at the fixed orders `ORDERS`, as
in dp-accounting. Only what is proved for the *discrete* Gaussian is used. K-L-S is Kairouz, Liu and Steinke
(2021), C-K-S Canonne, Kamath and Steinke (2020), M-T-Z Mironov, Talwar and Zhang (2019).

Neighbours: one unit's contribution becomes zero, and its uploads still have noise. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(order) for order in range(11, 257)),
    *(2.0**x for x in range(9, 21)),
)
"""α of a sum without sampling. Fixed, so that everybody comes to the same ε."""
_TERMS = 1000
INTEGER_ORDERS = tuple(range(2, 257))
"""α where records are sampled: for these M-T-Z's formula holds for the discrete Gaussian as well."""


class Cost(NamedTuple):
    """What one upload costs the units that are in it."""

    rho: float
    """ρ, for a unit that is in it for sure."""
    rate: float = 1.0
    """With which probability a unit is in it."""


def uneven(variance: int, honest: int) -> float:
    """τ of K-L-S, Theorem 1: how far a sum of `honest` discrete Gaussians of σ_i² is from being one itself."""
    terms = [
        math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, min(honest, _TERMS))
    ]
    # They fall: the last one bounds all that are left out.
    return 10 * math.fsum((*terms, max(0, honest - _TERMS) * terms[-1] if terms else 0.0))


@lru_cache(maxsize=4096)
def cost_of_upload(squared_bound: int, variance: int, honest: int, size: int) -> float:
    """ρ = ½·(C̃(s)/σ + τ√d)², K-L-S Theorem 1, of an upload no longer than C̃(s); σ² = (K − T_c)·σ_i²."""
    length = math.sqrt(squared_bound / (honest * variance))
    return (length + uneven(variance, honest) * math.sqrt(size)) ** 2 / 2


def epsilon_of(rho: float, delta: float) -> float:
    """ε at δ of uploads whose ρ add up to this; ρ·α bounds the divergence of every order α."""
    return min(_epsilon(rho * order, order, delta) for order in ORDERS)


def _epsilon(divergence: float, order: float, delta: float) -> float:
    """ε by one order (C-K-S, Prop. 12; as in dp-accounting)."""
    if delta * delta + math.expm1(-divergence) > 0:
        return 0.0  # the distance itself is below δ
    return max(0.0, divergence + _excess(order, delta))


def _excess(order: float, delta: float) -> float:
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@lru_cache(maxsize=256)
def rho_within(epsilon: float, delta: float) -> float:
    """The largest ρ, or a little less, that is within (ε, δ): every order says how much it allows."""
    rho = max(0.0, *((epsilon - _excess(order, delta)) / order for order in ORDERS))
    while epsilon_of(rho, delta) > epsilon:  # by a rounding error
        rho *= 1 - 1e-15
    return rho


# --- records that are sampled ----------------------------------------------------------------


def sampled_epsilon(cost: Cost, uses: int, delta: float) -> tuple[float, int]:
    """ε at δ of `uses` uploads of sampled records, and the order that gives it."""
    pairs = ((_epsilon(uses * divergence(cost, a), a, delta), a) for a in INTEGER_ORDERS)
    return min(pairs)


def affords(cost: Cost, uses: int, epsilon: float, delta: float) -> bool:
    """Whether `uses` uploads are within (ε, δ): `sampled_epsilon` without the orders that cannot help."""
    for order in INTEGER_ORDERS:
        room = epsilon - _excess(order, delta)
        spent = uses * divergence(cost, order) if room > 0 else 0.0
        if 0 < spent <= room:
            return True
        if spent > epsilon:  # and at all larger orders
            return False
    return False


@lru_cache(maxsize=4096)
def divergence(cost: Cost, order: int) -> float:
    """The Rényi divergence at an integer order of an upload in which a record is with probability `rate`.

    M-T-Z, Section 3.3: it is a sum of moments of the mechanism without sampling, exp(k(k−1)ρ) at most (K-L-S,
    Theorem 1, for every order k). The other way round it is not larger (M-T-Z, Theorem 5: noise is symmetric).
    """
    rho, rate = cost
    if rate in (0, 1):
        return rate * order * rho
    inside, outside = math.log(rate), math.log1p(-rate)
    logs = [
        choices + k * inside + (order - k) * outside + k * (k - 1) * rho
        for k, choices in enumerate(_log_choices(order))
    ]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(each - top) for each in logs))) / (order - 1)


@lru_cache(maxsize=len(INTEGER_ORDERS))
def _log_choices(order: int) -> list[float]:
    return [math.log(math.comb(order, k)) for k in range(order + 1)]


# --- what a ledger adds up -------------------------------------------------------------------


def total(uploads: Mapping[Cost, int], order: int | None) -> float:
    """Σρ of uploads, or the sum of their divergences at an order.

    What later uploads cost may depend on earlier sums. Σρ is still right then, and so is the sum at an order
    that was fixed before; the best order afterwards would not be (Feldman and Zrnic 2021).
    """
    if order is None:
        return math.fsum(cost.rho * count for cost, count in uploads.items())
    return math.fsum(divergence(cost, order) * count for cost, count in uploads.items())


def epsilon_after(spent: float, delta: float, order: int | None) -> float:
    """ε at δ of uploads whose `total` this is."""
    return epsilon_of(spent, delta) if order is None else _epsilon(spent, order, delta)


def within(epsilon: float, delta: float, order: int | None) -> float:
    """The largest `total` that is within (ε, δ)."""
    return rho_within(epsilon, delta) if order is None else epsilon - _excess(order, delta)
