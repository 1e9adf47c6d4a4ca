"""What is asked of the operating system: to wait for the disk, and to lock a file."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from basecagg.errors import StoreInUse


def lock(descriptor: int) -> None:
    """Lock an open file until it is closed or the process ends; `OSError` when somebody else has."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync(descriptor: int) -> None:
    """Wait until everything written to the file is on the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # its fsync does not wait for the disk
    else:
        os.fdatasync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names of new files in the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Whether somebody else has locked the file. If nobody had, we do now, until it is closed."""
    try:
        lock(descriptor)
    except OSError:
        return True
    return False


class FileLock:
    """A file that one process at a time has open, so that no machine runs twice."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock(self._descriptor)
        except OSError as error:
            self.close()
            raise StoreInUse(
                f"{path.parent} is in use by another process ({error.strerror}): one at a time"
            ) from None

    def close(self) -> None:
        """Give it back."""
        os.close(self._descriptor)
