"""The global model: its hash, and the step from one version to the next."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Model: TypeAlias = npt.NDArray[np.floating[Any]]
_SEGMENT = 1 << 20
"""Elements that are stepped at a time: what float64 takes of a large model."""


def model_hash(version: int, model: Model) -> bytes:
    """What a ticket says an update was trained from: the version and every number of it."""
    header = f"basecagg/model/{version}/{model.dtype.newbyteorder('<').str}/".encode()
    digest = hashlib.sha256(header)
    digest.update(_little_endian(model).data)
    return digest.digest()


def model_bytes(model: Model) -> bytes:
    """The numbers as little-endian bytes."""
    return _little_endian(model).tobytes()


def _little_endian(model: Model) -> Model:
    return np.ascontiguousarray(model).astype(model.dtype.newbyteorder("<"), copy=False)


def global_step(
    model: Model, weighted_sum: npt.NDArray[np.float64], total_weight: float, learning_rate: float
) -> Model:
    """x ← x − η_g·Σ s·Δ / Σ s: Eq. (global_update), in float64, kept in the model's own precision."""
    stepped, rate = np.empty_like(model), learning_rate / total_weight
    for at in range(0, model.size, _SEGMENT):
        here = slice(at, at + _SEGMENT)
        step = weighted_sum[here] * rate
        stepped[here] = np.subtract(model[here], step, out=step)
    return stepped
