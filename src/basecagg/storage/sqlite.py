"""SQLite as both durable stores use it: safe on disk when a commit returns, private, and bounded."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from basecagg.storage.faults import explain

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
        raise explain(f"{path} cannot be opened as a store", error) from None
