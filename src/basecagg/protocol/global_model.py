"""The global model: its hash and its bytes."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Model: TypeAlias = npt.NDArray[np.floating[Any]]


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
