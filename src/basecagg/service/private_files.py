"""Files that are replaced as a whole or not at all; most of them only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path

from basecagg.errors import DataError
from basecagg.storage import disk
from basecagg.storage.failures import explain


def write_private(path: Path, data: bytes) -> None:
    """Replace the file, readable by its owner only, and wait until it is on the disk."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, data, 0o600)
    except OSError as error:
        raise explain(f"{path} cannot be written", error) from None


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace the file, and wait until it is on the disk. No link that somebody laid there is followed."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        disk.sync(file.fileno())
    fresh.replace(path)
    disk.sync_folder(path.parent)


def read_file(path: Path, what: str) -> bytes:
    """The file's content; a missing one is explained."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} cannot be read from {path}: {error.strerror}") from None
