"""Hazards in discrete time: who is at risk in an interval has the event in it with logit(h) = α_k + x·β.

The likelihood is a sum over patients, so one of them can be bounded: all intervals of a patient are clipped
together, and noise makes the sum private. With short intervals β is about Cox's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from basecagg.errors import ParameterError
from basecagg.statistics.cox import Covariate, centred
from basecagg.statistics.kaplan_meier import SurvivalCurve, kaplan_meier, last_intervals
from basecagg.statistics.newton import NewtonStep, newton, packed, symmetric, unpacked
from basecagg.statistics.statistic import (
    Marks,
    Rows,
    Statistic,
    Vector,
    ascending,
    maker,
    over_records,
)

_LEAST_SPREAD = 0.01
"""Of the covariates in any direction: noise must not make a matrix impossible."""


@dataclass(frozen=True)
class HazardModel:
    """What is modelled: over intervals that end at `times`, by these covariates, of `most` records a centre."""

    times: tuple[float, ...]
    covariates: tuple[Covariate, ...]
    most: int
    time: str = "time"
    event: str = "event"

    def __post_init__(self) -> None:
        ascending(self.times, "the ends of intervals")
        for each in self.covariates:
            ascending((each.low, each.high), f"the ends of {each.name}")

    @property
    def size(self) -> int:
        """An α for each interval, a β for each covariate."""
        return len(self.times) + len(self.covariates)

    @property
    def start(self) -> Vector:
        """Everything 0."""
        return np.zeros(self.size)

    def coefficients(self, at: Vector) -> Vector:
        """β for a unit of each covariate: inside, half its range is one."""
        return at[len(self.times) :] / self.halves

    @property
    def halves(self) -> Vector:
        """Half the range of each covariate."""
        return np.array([each.half for each in self.covariates])

    def scaled(self, rows: Rows) -> Vector:
        """Covariates between −1 and 1; between neighbouring floats, half a range is rounded too far."""
        return np.clip(centred(rows, self.covariates) / self.halves, -1.0, 1.0)

    def periods(self, rows: Rows) -> tuple[Marks, Marks]:
        """Who is at risk in which interval, and who has the event there: a row for each record."""
        cell, happened = last_intervals(rows, np.array(self.times), self.time, self.event)
        intervals, own = np.arange(len(self.times)), cell[:, None]
        return intervals <= own, (intervals == own) & happened[:, None]


class _Terms(NamedTuple):
    """What every record adds in every interval."""

    x: Vector
    risk: Marks
    event: Marks
    logit: Vector

    @property
    def hazard(self) -> Vector:
        return np.exp(-np.logaddexp(0.0, -self.logit))


def _terms(model: HazardModel, at: Vector, rows: Rows) -> _Terms:
    x, (risk, event) = model.scaled(rows), model.periods(rows)
    alpha, beta = np.split(at, [len(model.times)])
    return _Terms(x, risk, event, alpha + (x @ beta)[:, None])


def _checked(model: HazardModel, at: Vector) -> Vector:
    at = np.asarray(at, np.float64)
    if at.shape != (model.size,) or not np.isfinite(at).all():
        raise ParameterError(
            f"α and β of this model are {model.size} finite numbers", rule="α and β are finite"
        )
    return at


def _gradients(terms: _Terms) -> Vector:
    """One row a record: (y − h) in every interval at risk, and x times their sum."""
    residual = (terms.event - terms.hazard) * terms.risk
    return np.hstack([residual, terms.x * residual.sum(axis=1, keepdims=True)])


# --- without noise ----------------------------------------------------------------------------


def fit_hazard(
    ask: Callable[[Statistic[NewtonStep]], NewtonStep], model: HazardModel, *, steps: int = 25
) -> NewtonStep:
    """The fit of all rows, by Newton's steps; `model.coefficients` gives β."""
    return newton(lambda at: ask(hazard_step(model, at)), model.start, steps)


@maker
def hazard_step(model: HazardModel, at: Vector) -> Statistic[NewtonStep]:
    """Log likelihood, gradient and information at α and β."""
    at = _checked(model, at)

    def of_rows(rows: Rows) -> Vector:
        terms = _terms(model, at, rows)
        x, risk, event, logit = terms
        hazard = terms.hazard
        # ln h and ln (1 − h), which are finite wherever the logit is.
        said = -np.logaddexp(0.0, np.where(event, -logit, logit))[risk].sum()
        spread = hazard * (1 - hazard) * risk
        crossed = spread.T @ x
        by_record = spread.sum(axis=1)
        information = np.block(
            [[np.diag(spread.sum(axis=0)), crossed], [crossed.T, (by_record[:, None] * x).T @ x]]
        )
        return packed(said, _gradients(terms).sum(axis=0), information)

    # |x| ≤ 1, and |ln h| ≤ 1 + |α_k + x·β| in each interval.
    intervals = len(model.times)
    most = model.most * intervals
    likelihood = 1 + float(np.abs(at[:intervals]).max() + np.abs(at[intervals:]).sum())
    size = model.size
    bounds = most * packed(likelihood, np.ones(size), np.ones((size, size)))
    return Statistic(
        name="hazard, a Newton step",
        of_rows=of_rows,
        bounds=bounds,
        of_sum=lambda total: NewtonStep(at, *unpacked(total, size)),
        by_record=True,
    )


# --- with noise -------------------------------------------------------------------------------


def fit_hazard_privately(
    ask: Callable[[Statistic[Any]], Any],
    model: HazardModel,
    *,
    clip: float = 2.0,
    steps: int = 6,
) -> tuple[SurvivalCurve, Vector]:
    """The survival curve, and α and β, by 2 + `steps` noisy sums.

    The information that steps need is put together from the curve's counts and the covariates' moments, so that
    each step releases a gradient only. Later steps are shorter: that averages their noise.
    """
    curve = ask(kaplan_meier(model.times, most=model.most, time=model.time, event=model.event))
    inverse = np.linalg.inv(_information(curve, *ask(moments(model))))
    at = np.concatenate([_logits(curve), np.zeros(len(model.covariates))])
    for number in range(steps):
        way = inverse @ ask(hazard_gradient(model, at, clip=clip))
        at = at + np.clip(way / max(1, number), -1, 1)
    return curve, at


@maker
def hazard_gradient(model: HazardModel, at: Vector, *, clip: float) -> Statistic[Vector]:
    """The gradient at α and β, each patient's part of it clipped to a length of `clip`."""
    at = _checked(model, at)
    return over_records(
        "hazard, a gradient",
        lambda rows: _gradients(_terms(model, at, rows)),
        model.size,
        lambda total: total,
        clip=clip,
        most=model.most,
    )


@maker
def moments(model: HazardModel) -> Statistic[tuple[Vector, Vector]]:
    """Means of the covariates, and of their products: what their spread follows from."""
    size = len(model.covariates)
    upper = np.triu_indices(size)

    def of_records(rows: Rows) -> Vector:
        x = model.scaled(rows)
        products = (x[:, :, None] * x[:, None, :])[:, upper[0], upper[1]]
        return np.hstack([np.ones((len(x), 1)), x, products])

    def of_sum(total: Vector) -> tuple[Vector, Vector]:
        means = total / max(1.0, float(total[0]))
        return means[1 : 1 + size], symmetric(means[1 + size :], size)

    numbers = 1 + size + len(upper[0])
    longest = math.sqrt(numbers)  # every number is at most 1
    return over_records(
        "moments of the covariates", of_records, numbers, of_sum, clip=longest, most=model.most
    )


def _information(curve: SurvivalCurve, average: Vector, products: Vector) -> Vector:
    """About what it is at β = 0, if covariates are alike in all intervals."""
    hazard = curve.hazard
    weight = np.maximum(curve.at_risk * hazard * (1 - hazard), 1.0)
    spread, directions = np.linalg.eigh(products - np.outer(average, average))
    spread = directions @ np.diag(np.maximum(spread, _LEAST_SPREAD)) @ directions.T
    crossed = np.outer(weight, average)
    inner = weight.sum() * (spread + np.outer(average, average))
    return np.block([[np.diag(weight), crossed], [crossed.T, inner]])


def _logits(curve: SurvivalCurve) -> Vector:
    least = 1 / np.maximum(curve.at_risk, 2.0)
    hazard = np.clip(curve.hazard, least, 1 - least)
    return np.log(hazard / (1 - hazard))
