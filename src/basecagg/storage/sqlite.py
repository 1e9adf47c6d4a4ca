"""SQLite as both durable stores use it: safe on disk when a commit returns, private, and bounded."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from basecagg.errors import StorageError

# Shares are tens of kilobytes: pages of 16 KiB took 1.6 ms of CPU for a version's ten shares (written, then
# deleted), those of 4 KiB 2.7 ms, and larger ones gained nothing more.
PRAGMAS: tuple[str, ...] = (
    "busy_timeout = 5000",
    "page_size = 16384",
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",  # macOS: a plain fsync does not reach the disk
    "secure_delete = ON",  # a deleted share is overwritten with zeros
    "wal_autocheckpoint = 256",  # pages: 4 MiB
    "journal_size_limit = 4194304",
)
_OWNER_ONLY = 0o600

_MEANING = {
    sqlite3.SQLITE_BUSY: "another process is writing to it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: does its folder exist, and may we write there?",
    sqlite3.SQLITE_CORRUPT: "it is damaged; set it aside and start anew in the next epoch",
    sqlite3.SQLITE_FULL: "the disk is full: make room, then restart",
    sqlite3.SQLITE_IOERR: "the disk does not work as it should",
    sqlite3.SQLITE_NOTADB: "it is damaged, or not a database at all",
    sqlite3.SQLITE_READONLY: "it is read-only",
}


def configure(connection: sqlite3.Connection) -> None:
    """Set up a new connection; transactions are begun by us, not by the module."""
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def make_private(path: Path) -> None:
    """Create the file if need be, for its owner only. SQLite gives its side files the same mode.

    A file that is there is not opened: closing it would give up the locks that SQLite holds on it for another
    connection of this process (POSIX). Whoever closes the database elsewhere would then take it for unused
    and remove its log, into which this process goes on writing.
    """
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
        path.chmod(_OWNER_ONLY)
    except OSError as error:
        raise StorageError(f"{path} cannot be opened as a store: {error.strerror}") from None


def meaning(error: BaseException | None) -> str:
    """What an error of SQLite means. Never what was being written, which may be a secret."""
    code = getattr(error, "sqlite_errorcode", None)
    known = _MEANING.get(code & 0xFF) if code is not None else None
    return known or (str(error) if isinstance(error, sqlite3.Error) else type(error).__name__)
