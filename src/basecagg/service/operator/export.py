"""The model as others read it: from a user's own builder to a vector, to safetensors, to a state_dict."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.channels.safetensors import Tensors, proof, read_exported, safetensors
from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.service.training import Vector
from basecagg.storage.disk import read_file, replace_file


class FirstModel(NamedTuple):
    """A model, and where it has running statistics; of a bare vector nobody knows."""

    vector: Vector
    averaged: tuple[tuple[int, int], ...] = ()


def initial_model(source: str) -> FirstModel:
    """The first model: from a .npy file, from one that `export` wrote, or by module:function."""
    if source.endswith(".npy"):
        return FirstModel(_flat(_load(source)))
    if source.endswith(".safetensors"):
        return FirstModel(_flat(read_exported(read_file(Path(source), "the model")).vector))
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
    metadata = proof(pedigree, made.order) if proven and pedigree else {}
    is_torch = path.suffix == ".pt"
    replace_file(
        path, _state_dict(made.tensors) if is_torch else safetensors(made.tensors, metadata)
    )
    return proven


def export_adapter(
    vector: Vector, folder: Path, builder: str, pedigree: bytes | None = None
) -> None:
    """Write the adapter of the model alone, as peft loads it. Its tensors carry the pedigree as others do."""
    from basecagg.learning.adapters import adapter_files

    files = adapter_files(
        _flat_model(_made(builder)),
        vector.astype(np.float32),
        lambda order: proof(pedigree, order) if pedigree else {},
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(folder / name, content)


class _Named(NamedTuple):
    tensors: Tensors
    order: Sequence[str]
    """Those that make the vector."""

    def is_of(self, vector: Vector) -> bool:
        """Whether they are this vector to the bit."""
        return b"".join(self.tensors[name].tobytes() for name in self.order) == vector.tobytes()


def _state_dict(tensors: Tensors) -> bytes:
    torch = _torch()
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(np.array(t)) for name, t in tensors.items()}, buffer)
    return buffer.getvalue()


def _named(vector: Vector, builder: str) -> _Named:
    flat = _flat_model(_made(builder))
    flat.load(vector.astype(np.float32))
    tensors = {name: t.detach().numpy() for name, t in flat.module.state_dict().items()}
    return _Named(tensors, flat.names)


def _made(builder: str) -> Any:
    made = _call(builder)
    if isinstance(made, np.ndarray):
        raise DataError(f"{builder} makes a vector, which has no names: leave --model out")
    return made


def _flat_model(module: Any) -> Any:
    from basecagg.learning.flat_parameters import FlatModel

    _torch()
    return FlatModel(module)


def _torch() -> Any:
    return require("torch", extra="learn", needed_for="torch models")


def _call(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon:
        raise DataError(f"'{place}' is neither a .npy or .safetensors file nor module:function")
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
