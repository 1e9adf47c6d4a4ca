"""The official files of MNIST and CIFAR-10: fetched once, checked by their hash, and read strictly.

A wrong length is an error, not a guess.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import struct
import tarfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import wrap_file

from basecagg.errors import DataError

Bytes = NDArray[np.uint8]
_TIMEOUT_SECONDS = 30
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_ROW = 1 + 3 * 32 * 32
_IDX_UINT8 = 0x08


# --- fetching -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemoteFile:
    """A file, where it may be fetched, and the hash that tells it is the right one."""

    name: str
    sha256: str
    urls: tuple[str, ...]


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Download into `folder` from the first address that gives the right bytes."""
    reasons = []
    for url in remote.urls:
        try:
            return _fetch_from(url, remote, folder)
        except (OSError, HTTPException, DataError) as error:
            reasons.append(f"{url}: {error}")
    raise DataError(
        f"{remote.name} could not be downloaded ({'; '.join(reasons)}):"
        f" fetch it by other means and put it into {folder}"
    )


def _fetch_from(url: str, remote: RemoteFile, folder: Path) -> Path:
    """Download beside the file's place and move it there when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{remote.name}.{os.getpid()}.part"
    try:
        with (
            urlopen(url, timeout=_TIMEOUT_SECONDS) as answer,  # noqa: S310 (addresses are constants of ours)
            partial.open("w+b") as file,
        ):
            length, console = int(answer.headers.get("Content-Length", 0)), Console(stderr=True)
            with wrap_file(answer, length, description=remote.name, console=console) as body:
                shutil.copyfileobj(body, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != remote.sha256:
            raise DataError(f"its SHA-256 is {digest}, not {remote.sha256}")
        return partial.replace(folder / remote.name)
    finally:
        partial.unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------


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
    if not data or len(data) % _CIFAR_ROW:
        raise _damaged(path, f"{len(data)} bytes are not whole records of {_CIFAR_ROW}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_ROW)
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0]


def _read_plain_or_gz(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
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
