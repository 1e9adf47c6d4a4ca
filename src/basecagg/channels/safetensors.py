"""Exported models as safetensors: which types of tensors there are, and the proof of where they come from."""

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError

_DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32"}
_ALIGNMENT = 8
_PEDIGREE, _ORDER = "basecagg.pedigree", "basecagg.order"
"""What the metadata say: a frame in base 64, and which tensors in which order are the vector, as JSON."""
_MOST_HEADER = 100 * 2**20
"""Bytes, as the format's own readers have it."""
Tensors = Mapping[str, npt.NDArray[Any]]


def proof(pedigree: bytes, order: Sequence[str]) -> dict[str, str]:
    """The metadata that lead from the tensors in this order back to the operator's key."""
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

    vector: npt.NDArray[np.float32]
    pedigree: bytes
    others: tuple[str, ...]
    """Tensors that are not of the vector, such as counters."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_exported(data: bytes) -> Exported:
    """The vector in safetensors that carry a `proof`, with its pedigree; `DataError` for anything else."""
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
