"""BatchNorm's running means and variances inside the vector x: how far they move, and how they are read.

SGD moves a weight a little in one local training, but a running mean or variance moves all the way to what
the user sees. The server subtracts *differences*: versions whose members all began with one old model subtract
the same way again and again, up to 1 + τ_max times before anybody begins with what it led to. A variance then
falls far below zero, comes back as far above, and the swings grow. So each user sends the (1 + τ_max)-th part
of the change, and all of them together go the way once. docs/explanation/batchnorm.md has the measurements.

Both rules live with those who train and evaluate. The protocol knows neither: to its server x is a vector.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

MEAN, VARIANCE = "running_mean", "running_var"
"""How PyTorch calls them, at the end of a path of names."""

Numbers: TypeAlias = npt.NDArray[np.floating[Any]]


def is_statistic(path: str) -> bool:
    """Whether an array of this name is a running mean or variance."""
    return _last(path) in (MEAN, VARIANCE)


def is_variance(path: str) -> bool:
    """Whether an array of this name is a running variance."""
    return _last(path) == VARIANCE


def damped(change: Numbers, max_staleness: int) -> Numbers:
    """What a user sends of a statistic's change when sums take updates up to τ_max versions old."""
    return change / (1 + max_staleness)


def below_zero(variances: Numbers) -> int:
    """How many are no variances: noise and rounding may still push one below zero."""
    return int(np.count_nonzero(variances < 0))


def readable(variances: Numbers) -> Numbers:
    """The variances as a model can use them: below zero is zero. x itself keeps what it has."""
    return np.maximum(variances, variances.dtype.type(0))


def _last(path: str) -> str:
    return path.rpartition(".")[2]
