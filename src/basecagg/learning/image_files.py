"""The official formats of MNIST and CIFAR-10, read strictly: a wrong length is an error, not a guess."""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from basecagg.errors import DataError

Bytes = NDArray[np.uint8]

CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32
_IDX_UINT8 = 0x08


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """The array of unsigned bytes in an IDX file, plain or .gz: magic, big-endian sizes, then the bytes."""
    data = _read_plain_or_gz(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, _IDX_UINT8, dimensions)):
        raise _damaged(
            path, f"it does not begin as an IDX file of bytes in {dimensions} dimensions"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != int(np.prod(shape, dtype=object)):
        raise _damaged(path, f"its header announces {shape}, but {len(data) - header} bytes follow")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_cifar(path: Path, *, member: str | None = None) -> tuple[Bytes, Bytes]:
    """Images uint8[n, 3, 32, 32] and labels uint8[n] of one binary batch: a file, or an archive's member."""
    data = _read_plain_or_gz(path) if member is None else _read_member(path, member)
    if not data or len(data) % _CIFAR_RECORD:
        raise _damaged(path, f"{len(data)} bytes are not whole records of {_CIFAR_RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]


def _read_plain_or_gz(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from error


def _read_member(archive: Path, member: str) -> bytes:
    """Read a member in place: nothing is unpacked, so no name in the archive can point elsewhere."""
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile(member)
            if file is None:
                raise KeyError(f"{member} is not a regular file")
            return file.read()
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        raise _damaged(archive, str(error)) from error


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be used: {reason}. Fetch the official file again")
