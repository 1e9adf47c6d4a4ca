"""The model as others read it: from a user's own builder to a vector, to safetensors, to a state_dict."""

from __future__ import annotations

import base64
import importlib
import io
import json
import math
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.service.training import Vector

_DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32"}
_ALIGNMENT = 8
_PEDIGREE, _ORDER = "basecagg.pedigree", "basecagg.order"
"""What the metadata say: a frame in base 64, and which tensors in which order are the vector, as JSON."""
_MOST_HEADER = 100 * 2**20
"""Bytes, as the format's own readers have it."""
Tensors = Mapping[str, npt.NDArray[Any]]


class FirstModel(NamedTuple):
    """A model, and where it has running statistics; of a bare vector nobody knows."""

    vector: Vector
    averaged: tuple[tuple[int, int], ...] = ()


def initial_model(source: str) -> FirstModel:
    """The first model: a .npy file with a vector, or module:function that makes a vector or a torch module."""
    if source.endswith(".npy"):
        return FirstModel(_flat(_load(source)))
    made = _call(source)
    if isinstance(made, np.ndarray):
        return FirstModel(_flat(made))
    flat = _flat_model(made)
    behind = ((flat.num_weights, flat.size),) if flat.num_weights < flat.size else ()
    return FirstModel(flat.vector(), behind)


def export(
    vector: Vector, path: Path, builder: str | None = None, pedigree: bytes | None = None
) -> bool:
    """Write .safetensors or .pt (a state_dict). Without a builder there is one tensor, 'model'.

    Safetensors carry the pedigree, a frame, and `read_exported` finds it and the vector in them. Whether it was
    written is returned: a variance below zero is exported as zero, and that is another vector.
    """
    if path.suffix not in (".safetensors", ".pt"):
        raise DataError(f"{path} ends neither in .safetensors nor in .pt")
    made = _Named({"model": vector}, ("model",)) if builder is None else _named(vector, builder)
    proven = path.suffix == ".safetensors" and pedigree is not None and made.is_of(vector)
    metadata = _metadata(pedigree, made.order) if proven and pedigree else {}
    fresh = path.with_name(path.name + ".new")
    if path.suffix == ".pt":
        _write_state_dict(fresh, made.tensors)
    else:
        fresh.write_bytes(safetensors(made.tensors, metadata))
    fresh.replace(path)
    return proven


class _Named(NamedTuple):
    tensors: Tensors
    order: Sequence[str]
    """Those that make the vector."""

    def is_of(self, vector: Vector) -> bool:
        """Whether they are this vector to the bit."""
        return b"".join(self.tensors[name].tobytes() for name in self.order) == vector.tobytes()


def _metadata(pedigree: bytes, order: Sequence[str]) -> dict[str, str]:
    return {_PEDIGREE: base64.b64encode(pedigree).decode(), _ORDER: json.dumps(order)}


def safetensors(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors format: the length of a JSON header, the header, then the numbers one after another."""
    header, blobs, at = dict[str, object](), list[bytes](), 0
    if metadata:
        header["__metadata__"] = dict(metadata)
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in _DTYPES:
            raise DataError(f"the tensor {name} is {tensor.dtype}, which is not exported")
        blob = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": _DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([struct.pack("<Q", len(text)), text, *blobs])


class Exported(NamedTuple):
    """What an exported file holds."""

    vector: Vector
    pedigree: bytes
    others: tuple[str, ...]
    """Tensors that are not of the vector, such as counters."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_exported(data: bytes) -> Exported:
    """The vector in safetensors that `export` wrote, with its pedigree; `DataError` for anything else."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MOST_HEADER):
        raise DataError("it is cut, or not in the safetensors format")
    try:
        raw = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        entries = {name: msgspec.json.decode(each, type=_Entry) for name, each in raw.items()}
        order = msgspec.json.decode(metadata.get(_ORDER, "[]"), type=list[str])
        pedigree = base64.b64decode(metadata.get(_PEDIGREE, ""), validate=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"its header is not of the safetensors format: {error}") from None
    if not order or not pedigree:
        raise DataError("it carries no chain proof: `basecagg operator export` writes one")
    vector = np.frombuffer(_gathered(memoryview(data)[8 + size :], entries, order), "<f4")
    return Exported(vector, pedigree, tuple(name for name in entries if name not in order))


def _gathered(body: memoryview, entries: Mapping[str, _Entry], order: Sequence[str]) -> bytes:
    """The numbers of these tensors, one after another."""
    if len(set(order)) != len(order):
        raise DataError("a tensor is named twice in the order of the vector")
    pieces = []
    for name in order:
        entry = entries.get(name)
        if entry is None or entry.dtype != "F32":
            raise DataError(f"the tensor {name} is missing, or not of float32")
        start, stop = entry.data_offsets
        if not 0 <= start <= stop <= len(body) or stop - start != 4 * math.prod(entry.shape):
            raise DataError(f"the tensor {name} does not lie within the file")
        pieces.append(body[start:stop])
    return b"".join(pieces)


def _write_state_dict(path: Path, tensors: Tensors) -> None:
    torch = _torch()
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(t)) for name, t in tensors.items()}, buffer)
    path.write_bytes(buffer.getvalue())


def _named(vector: Vector, builder: str) -> _Named:
    made = _call(builder)
    if isinstance(made, np.ndarray):
        raise DataError(f"{builder} makes a vector, which has no names: leave --model out")
    flat = _flat_model(made)
    flat.load(vector.astype(np.float32))
    tensors = {name: t.detach().numpy() for name, t in flat.module.state_dict().items()}
    return _Named(tensors, flat.names)


def _flat_model(module: Any) -> Any:
    from basecagg.learning.flat_parameters import FlatModel

    _torch()
    return FlatModel(module)


def _torch() -> Any:
    from basecagg.extras import require

    return require("torch", extra="learn", needed_for="torch models")


def _call(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon:
        raise DataError(f"'{place}' is neither a .npy file nor module:function")
    sys.path.append(os.getcwd())  # last: it may hold anybody's files
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(f"there is no {place}, here or among what is installed: {error}") from None
    finally:
        sys.path.pop()
    return function()


def _load(path: str) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path} is not a .npy file with numbers: {error}") from None
    return array


def _flat(array: npt.NDArray[Any]) -> Vector:
    vector = np.asarray(array, np.float32).reshape(-1)
    if not vector.size or not np.isfinite(vector).all():
        raise DataError("the initial model is empty, or holds NaN or ±Inf")
    return vector
