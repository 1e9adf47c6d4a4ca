"""Newton's method by sums: a step needs the likelihood, its gradient and its second derivatives, all sums.

The release is the sum. Every centre derives the next coefficients from it by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from basecagg.errors import DataError
from basecagg.statistics.statistic import Vector

_PRECISE = 1e-12
"""The decrement at which a fit is done: coefficients are within a millionth of a standard error then."""
_CLOSE = 1e-8
"""The decrement below which a step wins less likelihood than rounding takes: it is taken unseen."""
_ROUNDING = 1e-9
"""The relative error of a likelihood."""


@dataclass(frozen=True, eq=False)
class NewtonStep:
    """A likelihood at some coefficients, with its first and second derivatives."""

    coefficients: Vector
    """Where the sum was made."""
    log_likelihood: float
    gradient: Vector
    information: Vector
    """Minus the second derivatives."""

    @property
    def covariance(self) -> Vector:
        """Of the estimate."""
        try:
            inverse: Vector = np.linalg.inv(self.information).astype(np.float64)
        except np.linalg.LinAlgError:
            raise DataError(
                "the information is singular: covariates depend on each other, or never vary"
            ) from None
        return inverse

    @property
    def errors(self) -> Vector:
        """Standard errors of the coefficients."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def step(self) -> Vector:
        """To the coefficients that Newton tries next."""
        way: Vector = self.covariance @ self.gradient
        return way

    @property
    def decrement(self) -> float:
        """About twice the likelihood that is still to be won."""
        return float(self.gradient @ self.step)


def newton(ask: Callable[[Vector], NewtonStep], start: Vector, steps: int) -> NewtonStep:
    """Climb to the largest likelihood; a step that loses some is halved."""
    best, part = ask(start), 1.0
    for _ in range(steps):
        if best.decrement < _PRECISE:
            return best
        there = ask(best.coefficients + part * best.step)
        if best.decrement < _CLOSE:
            if there.decrement >= best.decrement:
                return best  # all that is left is rounding
            best, part = there, 1.0
            continue
        lost = best.log_likelihood - there.log_likelihood
        if lost > _ROUNDING * abs(best.log_likelihood):
            part /= 2
        else:
            best, part = there, 1.0
    raise DataError(
        f"no maximum found in {steps} steps: does a covariate decide alone who has events?"
    )


def packed(likelihood: float, gradient: Vector, information: Vector) -> Vector:
    """The three as one vector: of a symmetric matrix half is enough."""
    upper = information[np.triu_indices(gradient.size)]
    return np.concatenate([[likelihood], gradient, upper])


def unpacked(total: Vector, size: int) -> tuple[float, Vector, Vector]:
    """The three again."""
    return float(total[0]), total[1 : 1 + size], symmetric(total[1 + size :], size)


def symmetric(upper: Vector, size: int) -> Vector:
    """The symmetric matrix from its upper half, row by row."""
    matrix, half = np.zeros((size, size)), np.triu_indices(size)
    matrix[half] = upper
    matrix.T[half] = upper
    return matrix
