"""Files on disk: for their owner only, replaced as a whole, locked; SQLite set up as carefully."""

import fcntl
import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

from basecagg.errors import DataError, StoreInUse
from basecagg.storage.failures import explain

PRAGMAS: tuple[str, ...] = (
    "busy_timeout = 5000",
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",  # macOS: a plain fsync does not reach the disk
    "secure_delete = ON",  # a deleted share is overwritten with zeros
)
_OWNER_ONLY = 0o600


def configure_sqlite(
    connection: sqlite3.Connection, page_bytes: int, log_bytes: int, more: tuple[str, ...] = ()
) -> None:
    """Set up a new connection: a commit is on the disk when it returns, and what is deleted is gone.

    page_bytes: of a new file; one that is there keeps the pages that it has.
    log_bytes: when the log is that long, what is in it moves to the file.
    """
    connection.isolation_level = None  # we begin transactions ourselves
    log = f"wal_autocheckpoint = {log_bytes // page_bytes}", f"journal_size_limit = {log_bytes}"
    for pragma in (f"page_size = {page_bytes}", *PRAGMAS, *log, *more):
        connection.execute(f"PRAGMA {pragma}")


def make_private(path: Path) -> None:
    """Create the file if need be, for its owner only. SQLite gives its side files the same mode.

    A file that is there is not opened: closing it would give up the locks that SQLite holds on it for another
    connection of this process (POSIX). Another process that closes the database would then take it for unused
    and remove its log, into which this process goes on writing.
    """
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
        path.chmod(_OWNER_ONLY)
    except OSError as error:
        raise explain(f"{path} cannot be opened as a store", error) from None


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


def write_private(path: Path, data: bytes) -> None:
    """Replace the file, readable by its owner only, and wait until it is on the disk."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, data, _OWNER_ONLY)
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
        sync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def read_file(path: Path, what: str) -> bytes:
    """The file's content; a missing one is explained."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} cannot be read from {path}: {error.strerror}") from None


def lock(descriptor: int) -> None:
    """Lock an open file until it is closed or the process ends; `OSError` if another process has it locked."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(descriptor: int) -> bool:
    """Whether another process has the file locked. If none had, we lock it now, until it is closed."""
    try:
        lock(descriptor)
    except OSError:
        return True
    return False


class FileLock:
    """A file that one process at a time has open, so that no machine runs twice."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
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
