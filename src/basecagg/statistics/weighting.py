"""Means weighted by propensity: what the outcome would be if everybody were treated, and if nobody were.

A record's propensity e(x) is its chance of being treated, by a logistic regression that was fitted before
(`fit_regression`). Treated records weigh 1/e, the others 1/(1 − e).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from basecagg.errors import DataError, ParameterError
from basecagg.statistics.cox import Covariate
from basecagg.statistics.newton import newton
from basecagg.statistics.regression import design, regression_step
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, column, maker
from basecagg.statistics.tables import within


@dataclass(frozen=True, eq=False)
class WeightedMeans:
    """The mean outcome as if nobody, and as if everybody, were treated."""

    means: Vector
    errors: Vector
    """Standard errors, with the propensities taken as known."""

    @property
    def difference(self) -> float:
        """The average effect of the treatment."""
        return float(self.means[1] - self.means[0])

    @property
    def error(self) -> float:
        """The standard error of the difference."""
        return math.hypot(*self.errors)


def fit_weighted_means(
    ask: Callable[[Statistic[Any]], Any],
    outcome: Covariate,
    treatment: str,
    covariates: Sequence[Covariate],
    *,
    most: int,
    least: float = 0.01,
) -> WeightedMeans:
    """First the propensities, by a logistic regression; then the means."""
    treated = Covariate(treatment, 0, 1)
    last = newton(
        lambda at: ask(regression_step("logistic", treated, covariates, at, most=most)),
        np.zeros(1 + len(covariates)),
        40,
    )
    means: WeightedMeans = ask(
        weighted_means(outcome, treatment, covariates, last.coefficients, most=most, least=least)
    )
    return means


@maker
def weighted_means(
    outcome: Covariate,
    treatment: str,
    covariates: Sequence[Covariate],
    coefficients: Vector,
    *,
    most: int,
    least: float,
) -> Statistic[WeightedMeans]:
    """Means by propensities of these coefficients; a propensity is clipped to `least` and 1 − `least`."""
    known, value = tuple(Covariate(*each) for each in covariates), Covariate(*outcome)
    at = np.asarray(coefficients, np.float64)
    for each in (value, *known):
        ascending((each.low, each.high), f"the ends of {each.name}")
    if not 0 < least < 0.5 or at.shape != (1 + len(known),) or not np.isfinite(at).all():
        raise ParameterError(
            f"{1 + len(known)} finite coefficients, and a least propensity between 0 and 0.5",
            rule="0 < least < 0.5",
        )

    def of_rows(rows: Rows) -> Vector:
        treated = column(rows, treatment)
        if not np.isin(treated, (0, 1)).all():
            raise DataError(f"column {treatment!r} has values that are neither 0 nor 1")
        y = within(column(rows, value.name), value.name, value.low, value.high)
        y = np.clip((y - (value.low + value.half)) / value.half, -1, 1)
        chance = np.exp(-np.logaddexp(0.0, -(design(rows, known) @ at)))
        chance = np.clip(chance, least, 1 - least)
        sums = list[Any]()
        for weight in ((1 - treated) / (1 - chance), treated / chance):
            squared = weight * weight
            sums += [weight.sum(), weight @ y, squared.sum(), squared @ y, squared @ (y * y)]
        return np.array(sums, np.float64)

    def of_sum(total: Vector) -> WeightedMeans:
        means, errors = np.empty(2), np.empty(2)
        for arm, (w, wy, ww, wwy, wwyy) in enumerate(total.reshape(2, 5)):
            mean = wy / w if w > 0 else math.nan
            spread = max(0.0, wwyy - 2 * mean * wwy + mean * mean * ww) if w > 0 else math.nan
            means[arm] = value.low + value.half + value.half * mean
            errors[arm] = value.half * math.sqrt(spread) / w if w > 0 else math.nan
        return WeightedMeans(means, errors)

    one = np.array([1 / least, 1 / least, *[1 / least**2] * 3])
    return Statistic(
        name=f"{value.name} by {treatment}, weighted by propensity",
        of_rows=of_rows,
        bounds=most * np.tile(one, 2),
        of_sum=of_sum,
        by_record=True,
    )
