"""How much an old update counts: s(τ), and its integer form s̄(τ) that everyone computes alike.

The server weighs masked updates and the holders weigh shares of masks; the sum opens only if all of
them use the *identical* integer. So s(τ) is evaluated in decimal arithmetic (correctly rounded on
every platform, unlike the C library's `pow`, and in a context of our own, whatever the caller's is),
and the coin of the stochastic rounding is a hash that all parties know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Literal, get_args

from basecagg.errors import ParameterError

Rounding = Literal["stochastic", "nearest"]

# 60 digits while computing, 40 places kept of the result: 11·(1/11) comes out as 1 again.
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_KEPT = Decimal(1).scaleb(-40)
MOST_TIERS = 32
"""Weights of 2⁻³² and less are one tier. Parameters with such weights are refused."""
_COIN_DOMAIN = b"basecagg/staleness-coin/v1"
_COIN_RANGE = 1 << 256


@dataclass(frozen=True)
class Shape:
    """A form that s(τ) may have. Its values begin with s(0) = 1 and do not increase."""

    value: Callable[[int, Decimal, Decimal], Decimal]
    """s(τ) from τ, a and b. It is called with 60 digits of precision, whatever the caller's context is."""
    text: str
    """The formula, for tables, with {a:g} and {b:g} for its numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """a and b, or a, or neither: by their symbols, each with its usual value."""


SHAPES: dict[str, Shape] = {
    "constant": Shape(lambda tau, a, b: Decimal(1), "1"),
    "polynomial": Shape(
        lambda tau, a, b: (-a * Decimal(tau + 1).ln()).exp(), "(1+τ)^-{a:g}", {"α": 1.0}
    ),
    "hinge": Shape(
        lambda tau, a, b: 1 / a.fma(tau - b, Decimal(1)) if tau > b else Decimal(1),
        "1 if τ ≤ {b:g} else 1/({a:g}·(τ-{b:g})+1)",
        {"a": 10.0, "b": 4.0},
    ),
}
"""Every s(τ) there is. What is not here is refused, wherever it is named."""


@dataclass(frozen=True)
class StalenessFunction:
    """s(τ) with s(0) = 1, not increasing. Made by `constant`, `polynomial`, `hinge` or `of_shape`."""

    kind: str
    a: float = 0.0
    b: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a function that is unknown, or that would grow with τ."""
        _require_known("kind", self.kind, tuple(SHAPES))
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

    def tier(self, staleness: int) -> int:
        """t = ⌊log₂ 1/s(τ)⌋: contributors weigh by 2^−t, so that ages of about the same weight weigh alike."""
        return _tier(self, staleness)

    def __str__(self) -> str:
        return SHAPES[self.kind].text.format(a=self.a, b=self.b)


def of_shape(kind: str, *numbers: float) -> StalenessFunction:
    """The function of this shape; numbers that are not given have their usual values."""
    _require_known("kind", kind, tuple(SHAPES))
    usual = tuple(SHAPES[kind].numbers.values())
    if len(numbers) > len(usual):
        raise ParameterError(
            f"{kind} takes {len(usual)} number(s), not {len(numbers)}", rule="numbers of s(τ)"
        )
    return StalenessFunction(kind, *map(float, (*numbers, *usual[len(numbers) :])))


def written(text: str) -> StalenessFunction:
    """The function that is written so: constant, polynomial:1 or hinge:10:4; numbers may be left out."""
    kind, *numbers = text.split(":")
    try:
        return of_shape(kind, *map(float, numbers))
    except ValueError as error:  # of float, or a broken rule
        raise ParameterError(
            f"'{text}' is not {forms()} with numbers ≥ 0", rule="s(τ) is written so"
        ) from error


def constant() -> StalenessFunction:
    """s(τ) = 1: no compensation."""
    return of_shape("constant")


def polynomial(alpha: float = 1.0) -> StalenessFunction:
    """s(τ) = (1 + τ)^-α, the paper's choice with α = 1."""
    return of_shape("polynomial", alpha)


def hinge(a: float = 10.0, b: float = 4.0) -> StalenessFunction:
    """s(τ) = 1 up to τ = b, then 1/(a·(τ − b) + 1) (the hinge of FedAsync)."""
    return of_shape("hinge", a, b)


def forms() -> str:
    """How the functions are written: constant, polynomial:α or hinge:a:b."""
    *others, last = (":".join((kind, *shape.numbers)) for kind, shape in SHAPES.items())
    return f"{', '.join(others)} or {last}"


@lru_cache(maxsize=4096)
def exact_value(function: StalenessFunction, staleness: int) -> Decimal:
    """s(τ) to 60 digits, the same on every machine."""
    if staleness < 0:
        raise ParameterError(
            f"staleness τ = {staleness} is negative: an update cannot be newer than the model",
            rule="τ ≥ 0",
        )
    with localcontext(_EXACT):
        return SHAPES[function.kind].value(staleness, Decimal(function.a), Decimal(function.b))


def expected_weight(function: StalenessFunction, staleness: int, levels: int) -> Decimal:
    """c_g·s(τ) to 40 places: the mean of `quantized_weight`, the same on every machine."""
    if levels < 1:
        raise ParameterError(f"levels c_g = {levels} must be at least 1", rule="c_g ≥ 1")
    scaled = _EXACT.multiply(exact_value(function, staleness), Decimal(levels))
    return scaled.quantize(_KEPT, context=_EXACT)


@lru_cache(maxsize=4096)
def _tier(function: StalenessFunction, staleness: int) -> int:
    # To 40 places: (1 + 1)^-1 has to be one half.
    weight = expected_weight(function, staleness, 1)
    return next((t for t in range(MOST_TIERS) if weight * 2 ** (t + 1) > 1), MOST_TIERS)


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
        raise ParameterError(
            f"{name} = {value!r:.80} must be one of {known}", rule=f"{name} is known"
        )
