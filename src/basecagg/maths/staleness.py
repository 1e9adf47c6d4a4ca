"""How much an old update counts: s(τ), and its integer form s̄(τ) that everyone computes alike.

The server weighs masked updates and the holders weigh shares of masks; the sum opens only if all of them use
the *identical* integer. So s(τ) is evaluated in decimal arithmetic (correctly rounded on every platform,
unlike the C library's `pow`), and the coin of the stochastic rounding is a hash that all parties know.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import Literal

from basecagg.errors import ParameterError

Kind = Literal["constant", "polynomial", "hinge"]
Rounding = Literal["stochastic", "nearest"]

# 60 digits while computing, 40 kept: exact values such as 2⁻¹ come out exact again.
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_KEPT = Decimal(1).scaleb(-40)
_COIN_DOMAIN = b"basecagg/staleness-coin/v1"
_COIN_RANGE = 1 << 256


@dataclass(frozen=True)
class StalenessFunction:
    """s(τ) with s(0) = 1, not increasing. Made by `constant`, `polynomial` or `hinge`."""

    kind: Kind
    a: float = 0.0
    b: float = 0.0

    def __call__(self, staleness: int) -> float:
        """s(τ) as a float, for people and plots."""
        return float(exact_value(self, staleness))

    def __str__(self) -> str:
        """A short name for tables."""
        text = {"constant": "1", "polynomial": f"(1+τ)^-{self.a:g}"}
        return text.get(self.kind, f"1 if τ ≤ {self.b:g} else 1/({self.a:g}·(τ-{self.b:g})+1)")


def constant() -> StalenessFunction:
    """s(τ) = 1: no compensation."""
    return StalenessFunction("constant")


def polynomial(alpha: float = 1.0) -> StalenessFunction:
    """s(τ) = (1 + τ)^-α, the paper's choice with α = 1."""
    _require_nonnegative(alpha=alpha)
    return StalenessFunction("polynomial", float(alpha))


def hinge(a: float = 10.0, b: float = 4.0) -> StalenessFunction:
    """s(τ) = 1 up to τ = b, then 1/(a·(τ − b) + 1) (the hinge of FedAsync)."""
    _require_nonnegative(a=a, b=b)
    return StalenessFunction("hinge", float(a), float(b))


def _require_nonnegative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise ParameterError(
                f"{name} = {value} must be a finite number ≥ 0, else s(τ) would grow with τ",
                rule="s(τ) does not increase",
            )


@lru_cache(maxsize=4096)
def exact_value(function: StalenessFunction, staleness: int) -> Decimal:
    """s(τ) to 40 decimal places, the same on every machine."""
    if staleness < 0:
        raise ParameterError(
            f"staleness τ = {staleness} is negative: an update cannot be newer than the model",
            rule="τ ≥ 0",
        )
    a, b, tau = Decimal(function.a), Decimal(function.b), Decimal(staleness)
    if function.kind == "polynomial":
        value = _EXACT.exp(_EXACT.multiply(-a, _EXACT.ln(tau + 1)))
    elif function.kind == "hinge" and tau > b:
        value = _EXACT.divide(Decimal(1), _EXACT.add(_EXACT.multiply(a, tau - b), Decimal(1)))
    else:
        value = Decimal(1)
    return value.quantize(_KEPT, context=_EXACT)


def quantized_weight(
    function: StalenessFunction,
    staleness: int,
    levels: int,
    coin: bytes,
    rounding: Rounding = "stochastic",
) -> int:
    """s̄(τ) = c_g·Q_{c_g}(s(τ)), Eq. (quantized_stale_function), as an integer in 0…c_g.

    Differs from the paper: the stochastic rounding's coin is not private but a hash of `coin` (epoch and mask
    name) and τ, so that server and holders, who never talk to each other, arrive at the same integer.
    """
    scaled = _EXACT.multiply(exact_value(function, staleness), Decimal(levels))
    whole = int(scaled)
    fraction = scaled - whole
    if rounding == "nearest":
        return whole + (fraction >= Decimal("0.5"))
    return whole + (_toss(coin, staleness) < _EXACT.multiply(fraction, Decimal(_COIN_RANGE)))


def _toss(coin: bytes, staleness: int) -> int:
    """A number uniform on 0…2²⁵⁶−1 that everyone who knows the coin's name computes alike."""
    tag = len(coin).to_bytes(8, "little") + coin + staleness.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(_COIN_DOMAIN + tag).digest(), "little")
