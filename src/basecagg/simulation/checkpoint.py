"""Checkpoints: the whole state of a run in one file. A crash leaves the old one or the new one, whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from basecagg.errors import DataError, StorageError

_ARRAY, _BIG_INTEGER = 1, 2
_DIGEST = hashlib.sha256().digest_size


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the state durably, replacing what was there."""
    content = msgspec.msgpack.encode(_plain(state), enc_hook=_encode)
    replace_file(path, hashlib.sha256(content).digest() + content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole and durably, or leave what was there."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def load(path: Path) -> dict[str, Any]:
    """Read a state back."""
    try:
        saved = path.read_bytes()
    except OSError as error:
        raise DataError(f"the checkpoint {path} cannot be read: {error.strerror}") from None
    digest, content = saved[:_DIGEST], saved[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        raise DataError(f"the checkpoint {path} is damaged; delete it to start this run afresh")
    state = msgspec.msgpack.decode(content, ext_hook=_decode, strict=False)
    assert isinstance(state, dict)
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
