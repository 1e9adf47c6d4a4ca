"""Linear, logistic and Poisson regression by Newton's steps: each is one sum over records.

Everybody can derive the next coefficients from the released sum. Inside, covariates are between −1 and 1, so
that bounds are narrow; coefficients of the result are in the covariates' own units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from basecagg.errors import DataError, ParameterError
from basecagg.statistics.cox import Covariate, centred
from basecagg.statistics.distributions import normal_tail, student_tail
from basecagg.statistics.newton import NewtonStep, newton, packed, unpacked
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, column, maker
from basecagg.statistics.tables import within

Family: TypeAlias = Literal["linear", "logistic", "poisson"]
_MOST_EXPONENT = 30.0
"""Of a Poisson mean: nobody counts e³⁰ events of one record."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A fitted regression; the first coefficient is the intercept."""

    names: tuple[str, ...]
    coefficients: Vector
    covariance: Vector
    freedom: float
    """Of the residuals, for a linear regression; ∞ for the others, whose tests are normal."""

    @property
    def errors(self) -> Vector:
        """Standard errors."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def p(self) -> Vector:
        """That a coefficient is 0: by Student's t, or by the normal distribution."""
        values = self.coefficients / self.errors
        exact = math.isfinite(self.freedom)
        tails = [student_tail(z, self.freedom) if exact else normal_tail(z) for z in values]
        return np.array(tails)


def fit_regression(
    ask: Callable[[Statistic[NewtonStep]], NewtonStep],
    family: Family,
    outcome: Covariate,
    covariates: Sequence[Covariate],
    *,
    most: int,
    steps: int = 40,
) -> Regression:
    """The fit of all rows, by as many sums as it takes: about five, and two of a linear regression."""
    start = np.zeros(1 + len(covariates))
    return as_regression(
        newton(
            lambda at: ask(regression_step(family, outcome, covariates, at, most=most)),
            start,
            steps,
        ),
        family,
        outcome,
        covariates,
    )


def as_regression(
    last: NewtonStep, family: Family, outcome: Covariate, covariates: Sequence[Covariate]
) -> Regression:
    """From the last step's scale to the covariates' own units."""
    scale, freedom, spread = np.eye(1 + len(covariates)), math.inf, 1.0
    for index, each in enumerate(covariates, 1):
        scale[index, index] = 1 / each.half
        scale[0, index] = -(each.low + each.half) / each.half
    coefficients, covariance = scale @ last.coefficients, scale @ last.covariance @ scale.T
    if family == "linear":
        records = float(last.information[0, 0])
        freedom = records - len(coefficients)
        spread = -2 * last.log_likelihood / freedom * outcome.half**2
        coefficients = outcome.half * coefficients
        coefficients[0] += outcome.low + outcome.half
    names = ("intercept", *(each.name for each in covariates))
    return Regression(names, coefficients, spread * covariance, freedom)


@maker
def regression_step(
    family: Family,
    outcome: Covariate,
    covariates: Sequence[Covariate],
    coefficients: Vector,
    *,
    most: int,
) -> Statistic[NewtonStep]:
    """Log likelihood, gradient and information at some coefficients: an intercept, and one for each covariate.

    A record that lacks a value, or has one outside its range, is left out.
    """
    known = tuple(Covariate(*each) for each in covariates)
    value, at = Covariate(*outcome), np.asarray(coefficients, np.float64)
    for each in (value, *known):
        ascending((each.low, each.high), f"the ends of {each.name}")
    if family not in _TERMS:
        raise ParameterError(
            f"{family!r} is no regression: {', '.join(_TERMS)}", rule="a known family"
        )
    if at.shape != (1 + len(known),) or not np.isfinite(at).all():
        raise ParameterError(
            f"coefficients of this model are {1 + len(known)} finite numbers",
            rule="coefficients are finite",
        )
    terms, reach = _TERMS[family], float(np.abs(at).sum())

    def of_rows(rows: Rows) -> Vector:
        x = design(rows, known)
        y = within(column(rows, value.name), value.name, value.low, value.high)
        if family == "linear":
            y = (y - (value.low + value.half)) / value.half
        elif family == "logistic" and not np.isin(y, (0, 1)).all():
            raise DataError(f"column {value.name!r} has values that are neither 0 nor 1")
        likelihood, residual, weight = terms(y, x @ at)
        information = (weight[:, None] * x).T @ x
        return packed(float(likelihood.sum()), residual @ x, information)

    size = 1 + len(known)
    likelihood, residual, weight = _bounds(family, reach, max(abs(value.low), abs(value.high)))
    bounds = packed(likelihood, np.full(size, residual), np.full((size, size), weight))
    return Statistic(
        name=f"{family} regression, a Newton step",
        of_rows=of_rows,
        bounds=most * bounds,
        of_sum=lambda total: NewtonStep(at, *unpacked(total, size)),
        by_record=True,
    )


def design(rows: Rows, covariates: Sequence[Covariate]) -> Vector:
    """A row for each record: 1, and its covariates between −1 and 1."""
    if not covariates:
        count = len(next(iter(rows.values())))
        return np.ones((count, 1))
    halves = np.array([each.half for each in covariates])
    x = np.clip(centred(rows, covariates) / halves, -1.0, 1.0)
    return np.hstack([np.ones((len(x), 1)), x])


_Terms: TypeAlias = tuple[Vector, Vector, Vector]
"""Of every record: its log likelihood, what its gradient is a multiple of, and its information."""


def _linear(y: Vector, eta: Vector) -> _Terms:
    residual = y - eta
    return -0.5 * residual**2, residual, np.ones_like(y)


def _logistic(y: Vector, eta: Vector) -> _Terms:
    mean = np.exp(-np.logaddexp(0.0, -eta))
    return -np.logaddexp(0.0, np.where(y > 0, -eta, eta)), y - mean, mean * (1 - mean)


def _poisson(y: Vector, eta: Vector) -> _Terms:
    mean = np.exp(np.minimum(eta, _MOST_EXPONENT))
    return y * eta - mean, y - mean, mean


_TERMS: dict[str, Callable[[Vector, Vector], _Terms]] = {
    "linear": _linear,
    "logistic": _logistic,
    "poisson": _poisson,
}


def _bounds(family: str, reach: float, largest: float) -> tuple[float, float, float]:
    """Of one record's three terms, if |η| ≤ reach."""
    if family == "linear":
        return 0.5 * (1 + reach) ** 2, 1 + reach, 1.0
    if family == "logistic":
        return 1 + reach, 1.0, 0.25
    mean = math.exp(min(reach, _MOST_EXPONENT))
    return largest * reach + mean, largest + mean, mean
