"""Cox regression stratified by centre: partial likelihoods of centres add up, and so do their derivatives.

So Newton's steps by sums come to the same coefficients as all rows in one place. Ties by Efron (1977). But a
patient is in the terms of everybody who was at risk with it: the partial likelihood is no sum over patients,
nobody can say how much one of them changes, and no noise makes it private. `hazard` has the model for that.
Nor is it additive within a centre, so a centre approves each model before it answers: see `makers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from basecagg.statistics.newton import NewtonStep, newton, packed, unpacked
from basecagg.statistics.statistic import Marks, Rows, Statistic, Vector, ascending, column, maker
from basecagg.statistics.tables import within


class Covariate(NamedTuple):
    """A column of numbers that may matter, and between what they are."""

    name: str
    low: float
    high: float

    @property
    def half(self) -> float:
        """How far a value is from the middle, at most."""
        return (self.high - self.low) / 2


def fit_cox(
    ask: Callable[[Statistic[NewtonStep]], NewtonStep],
    covariates: Sequence[Covariate],
    *,
    most: int,
    time: str = "time",
    event: str = "event",
    steps: int = 25,
) -> NewtonStep:
    """The stratified fit, by as many sums as it takes (about five); a step that loses likelihood is halved."""
    return newton(
        lambda at: ask(cox_step(covariates, at, most=most, time=time, event=event)),
        np.zeros(len(covariates)),
        steps,
    )


@maker
def cox_step(
    covariates: Sequence[Covariate],
    coefficients: Vector,
    *,
    most: int,
    time: str = "time",
    event: str = "event",
) -> Statistic[NewtonStep]:
    """Log likelihood, gradient and information at some coefficients, of centres with `most` records at most.

    A centre answers only for a model that it approved: `Desk.approve` takes a step of it, at any coefficients.
    """
    coefficients = np.asarray(coefficients, np.float64)
    for each in covariates:
        ascending((each.low, each.high), f"the ends of {each.name}")

    def of_rows(rows: Rows) -> Vector:
        x = centred(rows, covariates)
        at, happened = column(rows, time), column(rows, event) > 0
        return packed(*_partial_likelihood(x, at, happened, coefficients))

    return Statistic(
        name="Cox, a Newton step",
        of_rows=of_rows,
        bounds=_bounds(covariates, coefficients, most),
        of_sum=lambda total: NewtonStep(coefficients, *unpacked(total, len(covariates))),
    )


def centred(rows: Rows, covariates: Sequence[Covariate]) -> Vector:
    """Covariates around the middles of their ranges: Cox's coefficients do not change by that."""
    columns = [
        within(column(rows, each.name), each.name, each.low, each.high) - (each.low + each.half)
        for each in covariates
    ]
    return np.stack(columns, axis=1)


def _bounds(covariates: Sequence[Covariate], coefficients: Vector, most: int) -> Vector:
    """Of one event each: it is as far from a mean as two values are, and ln(n·e^(range of xβ)) likely."""
    half = np.array([each.half for each in covariates])
    likelihood = math.log(most) + 2 * float(np.abs(coefficients) @ half) + 1
    return most * packed(likelihood, 2 * half, np.outer(half, half))


def _partial_likelihood(
    x: Vector, at: Vector, happened: Marks, coefficients: Vector
) -> tuple[float, Vector, Vector]:
    """One centre's log partial likelihood, its gradient, and minus its second derivatives."""
    size = len(coefficients)
    likelihood, gradient, information = 0.0, np.zeros(size), np.zeros((size, size))
    linear = x @ coefficients
    for moment in np.unique(at[happened]):
        dying, at_risk = happened & (at == moment), at >= moment
        # Divided by the largest at risk, no weight overflows, and one of them is 1: they never add up to 0.
        top = linear[at_risk].max()
        weight = np.exp(np.minimum(linear - top, 0.0))
        risk, dead = (_moments(weight[who], x[who]) for who in (at_risk, dying))
        deaths = int(dying.sum())
        likelihood += float(linear[dying].sum())
        gradient += x[dying].sum(axis=0)
        for tied in range(deaths):
            total, first, second = (r - tied / deaths * d for r, d in zip(risk, dead, strict=True))
            average = first / total
            likelihood -= math.log(total) + top
            gradient -= average
            information += second / total - np.outer(average, average)
    return likelihood, gradient, information


def _moments(weight: Vector, x: Vector) -> tuple[Vector, Vector, Vector]:
    return weight.sum(), weight @ x, (weight[:, None] * x).T @ x
