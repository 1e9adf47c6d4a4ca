"""Tail probabilities of the distributions that tests compare with: normal, χ², Student's t and F.

By the continued fractions of the incomplete gamma and beta functions (Numerical Recipes, chapter 6), so that no
centre needs SciPy. They are exact to about 1e-12.
"""

from __future__ import annotations

import math

_STEPS = 100_000
_EPSILON = 1e-16
_TINY = 1e-300


def normal_tail(z: float) -> float:
    """P(|Z| ≥ |z|)."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_squared_tail(value: float, freedom: float) -> float:
    """P(χ² ≥ value)."""
    return _upper_gamma(freedom / 2, value / 2) if value > 0 else 1.0


def student_tail(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|)."""
    return f_tail(t * t, 1, freedom)


def f_tail(value: float, above: float, below: float) -> float:
    """P(F ≥ value) with so many degrees of freedom above and below the line."""
    ratio = above * value / below
    if value < 1:  # the tail is large, and 1 / (1 + ratio) would be rounded
        return 1 - _beta(above / 2, below / 2, ratio / (1 + ratio))
    return _beta(below / 2, above / 2, 1 / (1 + ratio))


def _upper_gamma(a: float, x: float) -> float:
    """Q(a, x), the regularised upper incomplete gamma function."""
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, _STEPS):
            term *= x / (a + n)
            total += term
            if term < total * _EPSILON:
                break
        return 1 - total * scale
    b = x + 1 - a
    d = 1 / b
    c, fraction = 1 / _TINY, d
    for n in range(1, _STEPS):
        b += 2
        c, d, fraction, change = _next(-n * (n - a), b, c, d, fraction)
        if abs(change - 1) < _EPSILON:
            break
    return scale * fraction


def _beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), the regularised incomplete beta function."""
    if not 0 < x < 1:
        return math.nan if math.isnan(x) else min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    outside = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    scale = math.exp(outside + a * math.log(x) + b * math.log1p(-x)) / a
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    c, fraction = 1.0, d
    for n in range(1, _STEPS):
        even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n))
        c, d, fraction, _ = _next(even, 1.0, c, d, fraction)
        odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1))
        c, d, fraction, change = _next(odd, 1.0, c, d, fraction)
        if abs(change - 1) < _EPSILON:
            break
    return scale * fraction


def _next(
    above: float, beside: float, c: float, d: float, fraction: float
) -> tuple[float, float, float, float]:
    """One more term of a continued fraction, by Lentz (1976)."""
    d = 1 / _not_zero(beside + above * d)
    c = _not_zero(beside + above / c)
    return c, d, fraction * c * d, c * d


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
