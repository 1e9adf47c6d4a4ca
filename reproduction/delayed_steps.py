"""How long a step may be that is computed from old models: why E must be small when updates are stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

_HALVINGS, _ROUGHLY = 40, 16
"""Of an interval: what can be computed is exact, a simulation is not."""
_PATHS, _VERSIONS, _SETTLED = 32, 1000, 200
"""Of a simulation: side by side, how long, and how long before the growth is measured."""
_RESCALED = 10
"""Versions after which a path is scaled back: far fewer than take it out of float64's range."""


@lru_cache
def largest_stable_step(weights: tuple[float, ...], buffer_size: int) -> float:
    """The largest η·E·λ for which errors do not grow when K updates of random age meet; λ is a curvature.

    x ← x − η·E·λ·Σ w(τ_i)·x(t − τ_i) / Σ w(τ_i) over i = 1…K, each τ_i uniform on the ages that have a weight.
    Simulated: the weights of K drawn ages do not add up to their mean, and that costs much of what weighing
    by age gains. `weights` are those of τ = 0, 1, …, none of them 0.
    """
    growth = partial(_simulated_growth, weights, buffer_size)
    return _largest(growth, len(weights), _ROUGHLY)


def largest_stable_step_on_average(weights: Sequence[float]) -> float:
    """The same for K → ∞, where every age has its share: 2 without delay, the bound of gradient descent."""
    return _largest(partial(_growth, weights), len(weights), _HALVINGS)


def _largest(growth: Callable[[float], float], ages: int, halvings: int) -> float:
    """The step at which growth turns positive."""
    low, high = 0.0, 2.0 * ages
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if growth(middle) <= 0 else (low, middle)
    return low


def _growth(weights: Sequence[float], step: float) -> float:
    """The largest factor by which any error is multiplied from version to version, less 1."""
    size = len(weights)
    companion = np.eye(size, k=-1)
    companion[0] = -step * np.asarray(weights) / sum(weights)
    companion[0, 0] += 1
    return float(np.abs(np.linalg.eigvals(companion)).max()) - 1


def _simulated_growth(weights: Sequence[float], buffer_size: int, step: float) -> float:
    """The mean logarithm of an error's growth in a version; the same draws for every step."""
    rng = np.random.default_rng(0)
    by_age, paths = np.asarray(weights, dtype=float), np.arange(_PATHS)
    past = rng.standard_normal((len(weights), _PATHS))
    total = np.zeros(_PATHS)
    for version in range(1, _VERSIONS + 1):
        ages = rng.integers(0, len(weights), (buffer_size, _PATHS))
        past = _stepped(past, step * _mean(past[ages, paths], by_age[ages]))
        if version % _RESCALED == 0:
            size = np.abs(past).max(axis=0)
            past /= size
            total += np.log(size) if version > _SETTLED else 0.0
    return float(total.mean()) / (_VERSIONS - _SETTLED)


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = (weights * values).sum(axis=0) / weights.sum(axis=0)
    return mean


def _stepped(past: NDArray[np.float64], step: NDArray[np.float64]) -> NDArray[np.float64]:
    """The newest first."""
    return np.concatenate([(past[0] - step)[None], past[:-1]])
