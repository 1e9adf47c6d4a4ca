"""How much an old update counts: s(τ), and its integer form s̄(τ) that everyone computes alike.

The server weighs masked updates and the holders weigh shares of masks; the sum opens only if all of
them use the *identical* integer. So s(τ) is evaluated in decimal arithmetic (correctly rounded on
every platform, unlike the C library's `pow`, and in a context of our own, whatever the caller's is),
and the coin of the stochastic rounding is a hash that all parties know.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import Literal, get_args

from basecagg.errors import ParameterError

Kind = Literal["constant", "polynomial", "hinge"]
Rounding = Literal["stochastic", "nearest"]

# 60 digits while computing, 40 places kept of the result: 11·(1/11) comes out as 1 again.
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

    def __post_init__(self) -> None:
        """Refuse a function that is unknown, or that would grow with τ."""
        _require_known("kind", self.kind, get_args(Kind))
        for name, value in (("a", self.a), ("b", self.b)):
            if not 0 <= value < float("inf"):
                raise ParameterError(
                    f"{self.kind}: {name} = {value} must be a finite number ≥ 0,"
                    " else s(τ) would grow with τ",
                    rule="s(τ) does not increase",
                )

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
    return StalenessFunction("polynomial", float(alpha))


def hinge(a: float = 10.0, b: float = 4.0) -> StalenessFunction:
    """s(τ) = 1 up to τ = b, then 1/(a·(τ − b) + 1) (the hinge of FedAsync)."""
    return StalenessFunction("hinge", float(a), float(b))


@lru_cache(maxsize=4096)
def exact_value(function: StalenessFunction, staleness: int) -> Decimal:
    """s(τ) to 60 digits, the same on every machine."""
    if staleness < 0:
        raise ParameterError(
            f"staleness τ = {staleness} is negative: an update cannot be newer than the model",
            rule="τ ≥ 0",
        )
    a, excess = Decimal(function.a), _EXACT.subtract(Decimal(staleness), Decimal(function.b))
    value = Decimal(1)
    if function.kind == "polynomial":
        value = _EXACT.exp(_EXACT.multiply(_EXACT.minus(a), _EXACT.ln(Decimal(staleness + 1))))
    elif function.kind == "hinge" and excess > 0:
        value = _EXACT.divide(value, _EXACT.fma(a, excess, value))
    return value


def expected_weight(function: StalenessFunction, staleness: int, levels: int) -> Decimal:
    """c_g·s(τ) to 40 places: the mean of `quantized_weight`, the same on every machine."""
    if levels < 1:
        raise ParameterError(f"levels c_g = {levels} must be at least 1", rule="c_g ≥ 1")
    scaled = _EXACT.multiply(exact_value(function, staleness), Decimal(levels))
    return scaled.quantize(_KEPT, context=_EXACT)


@lru_cache(maxsize=4096)
def quantized_weight(
    function: StalenessFunction,
    staleness: int,
    levels: int,
    coin: bytes,
    rounding: Rounding = "stochastic",
) -> int:
    """s̄(τ) = c_g·Q_{c_g}(s(τ)), Eq. (quantized_stale_function), as an integer in 0…c_g.

    Differs from the paper: the coin of the stochastic rounding is not private but a hash of `coin`
    (epoch and mask name) and τ, so that the server and the holders, who never talk to each other,
    arrive at the same integer. "nearest" needs no coin; a half goes up.
    """
    _require_known("rounding", rounding, get_args(Rounding))
    expected = expected_weight(function, staleness, levels)
    whole = int(expected)
    fraction = _EXACT.subtract(expected, Decimal(whole))
    if rounding == "nearest":
        return whole + (fraction >= Decimal("0.5"))
    return whole + (_toss(coin, staleness) < _EXACT.multiply(fraction, Decimal(_COIN_RANGE)))


def _toss(coin: bytes, staleness: int) -> int:
    """A number uniform on 0…2²⁵⁶−1 that everyone who knows the coin's name computes alike."""
    tag = len(coin).to_bytes(8, "little") + coin + staleness.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(_COIN_DOMAIN + tag).digest(), "little")


def _require_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ParameterError(f"{name} = {value!r} must be one of {known}", rule=f"{name} is known")
