"""What uploads cost in privacy: ρ of each, and the (ε, δ) that a sum of them comes to.

A sum is *concentrated* differential privacy (Bun and Steinke 2016): ρ adds up over uploads, also when later
ones depend on what earlier ones gave. It becomes (ε, δ) by Rényi divergences at the fixed orders `ORDERS`, as
in dp-accounting. Only what is proved for the *discrete* Gaussian is used. K-L-S is Kairouz, Liu and Steinke
(2021), C-K-S Canonne, Kamath and Steinke (2020), M-T-Z Mironov, Talwar and Zhang (2019).

Neighbours: one unit's contribution becomes zero, and it still uploads noise. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *(float(order) for order in range(11, 257)),
    *(2.0**x for x in range(9, 21)),
)
"""α of a sum without sampling. Fixed, so that everybody comes to the same ε."""
_TERMS = 1000
INTEGER_ORDERS = tuple(range(2, 257))
"""α where records are sampled: for these M-T-Z's formula holds for the discrete Gaussian as well."""


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
    return epsilon_at([rho * order for order in ORDERS], delta, ORDERS)


def epsilon_at(divergences: Sequence[float], delta: float, orders: Sequence[float]) -> float:
    """The least ε that any order gives (C-K-S, Prop. 12; as in dp-accounting)."""
    pairs = zip(divergences, orders, strict=True)
    return max(0.0, min(_epsilon(divergence, order, delta) for divergence, order in pairs))


def _epsilon(divergence: float, order: float, delta: float) -> float:
    if delta * delta + math.expm1(-divergence) > 0:
        return 0.0  # the distance itself is below δ
    return divergence + _excess(order, delta)


def _excess(order: float, delta: float) -> float:
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@lru_cache(maxsize=256)
def rho_within(epsilon: float, delta: float) -> float:
    """The largest ρ, or a little less, that is within (ε, δ): every order says how much it allows."""
    rho = max(0.0, *((epsilon - _excess(order, delta)) / order for order in ORDERS))
    while epsilon_of(rho, delta) > epsilon:  # by a rounding error
        rho *= 1 - 1e-15
    return rho


def sampled_divergences(rate: float, ratio: float, uses: int) -> list[float]:
    """Rényi divergences at the integer orders of `uses` sums over records, each taken with probability `rate`.

    `ratio` is σ/Δ̃, the noise against the length of one record. M-T-Z, Section 3.3: at an integer order the
    divergence is a sum of moments of the unsampled mechanism, which for the discrete Gaussian are at most those
    of the continuous one (C-K-S, Prop. 5).
    """
    return [uses * _sampled(rate, ratio, order) for order in INTEGER_ORDERS]


def _sampled(rate: float, ratio: float, order: int) -> float:
    if rate == 0:
        return 0.0
    if rate == 1:
        return order / (2 * ratio * ratio)
    logs = [
        math.log(math.comb(order, k))
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
        + k * (k - 1) / (2 * ratio * ratio)
        for k in range(order + 1)
    ]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(each - top) for each in logs))) / (order - 1)
