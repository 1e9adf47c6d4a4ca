"""How long a step may be that is computed from an old model: why E must be small when updates are stale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_HALVINGS = 40


def largest_stable_step(weights: Sequence[float]) -> float:
    """The largest η·E·λ for which x ← x − η·E·λ·Σ w(τ)·x(t − τ) / Σ w(τ) does not grow; λ is a curvature.

    2 without delay, the known bound of gradient descent. `weights` are those of τ = 0, 1, ….
    """
    low, high = 0.0, 2.0 * len(weights)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _growth(weights, middle) <= 1 else (low, middle)
    return low


def _growth(weights: Sequence[float], step: float) -> float:
    """The largest factor by which any error is multiplied from version to version."""
    size = len(weights)
    companion = np.eye(size, k=-1)
    companion[0] = -step * np.asarray(weights) / sum(weights)
    companion[0, 0] += 1
    return float(np.abs(np.linalg.eigvals(companion)).max())
