"""Checkpoints: the whole state of a run in one file. A crash leaves the old one or the new one, whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from basecagg.errors import DataError, StorageError

_ARRAY, _BIG_INTEGER = 1, 2


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the state durably, replacing what was there."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(msgspec.msgpack.encode(_plain(state), enc_hook=_encode))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"the checkpoint {path} cannot be written: {error.strerror}") from None


def load(path: Path) -> dict[str, Any]:
    """Read a state back."""
    try:
        state = msgspec.msgpack.decode(path.read_bytes(), ext_hook=_decode, strict=False)
    except OSError as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"the checkpoint {path} is damaged: {error}") from None
    if not isinstance(state, dict):
        raise DataError(f"{path} is not a checkpoint")
    return state


def _plain(value: Any) -> Any:
    """Integers beyond 64 bits, as random generators have them, become extensions."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, int) and value.bit_length() > 63:
        return msgspec.msgpack.Ext(_BIG_INTEGER, str(value).encode())
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        header = f"{value.dtype.str}/{','.join(map(str, value.shape))}\n".encode()
        return msgspec.msgpack.Ext(_ARRAY, header + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")


def _decode(code: int, data: memoryview) -> Any:
    content = bytes(data)
    if code == _BIG_INTEGER:
        return int(content)
    header, _, body = content.partition(b"\n")
    dtype, _, shape = header.decode().partition("/")
    sizes = [int(size) for size in shape.split(",") if size]
    return np.frombuffer(body, np.dtype(dtype)).reshape(sizes)
