"""Disk and database failures: which of them pass by themselves, and what to say of each.

The server waits for a passing one (`PassingFault`): nothing in the store is damaged, and the same work is
possible when the disk or the database is back. Any other is a `StorageError`: it needs a person or a restart.
"""

import errno
import sqlite3

from basecagg.errors import PassingFault, StorageError

_PASSING_SQLITE = {
    sqlite3.SQLITE_BUSY: "another process is writing to it",
    sqlite3.SQLITE_LOCKED: "another process is writing to it",
    sqlite3.SQLITE_PROTOCOL: "another process is writing to it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: does its folder exist, and may we write there?",
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_IOERR: "the disk does not work as it should",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_READONLY: "it is read-only",
}
_LASTING_SQLITE = {
    sqlite3.SQLITE_CORRUPT: "it is damaged; set it aside and start anew in the next epoch",
    sqlite3.SQLITE_NOTADB: "it is damaged, or not a database at all",
}
_PASSING_DISK = {
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the disk's quota is used up: make room",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk does not work as it should",
    errno.ESTALE: "the network drive is gone",
    errno.ETIMEDOUT: "the network drive does not answer",
    errno.EMFILE: "too many files are open",
    errno.ENFILE: "too many files are open",
    errno.ENOMEM: "there is no memory left",
}
_PASSING_SQLSTATE = {
    "53100": "the database's disk is full: make room",
    "25006": "the database is read-only",
    "25P03": "the database gave up a transaction that stood still",
    "08": "the database does not answer",
    "40": "another transaction was in the way",
    "53": "the database has too much to do",
    "55P03": "another transaction was in the way",
    "57P": "the database is stopping or starting",
    "58": "the database's disk does not work as it should",
}
"""PostgreSQL's codes, or how they begin; the first that fits counts."""
_UNREACHABLE = {"OperationalError", "InterfaceError"}
"""Python's names for database errors without a code: no database was there to give one."""


def explain(what: str, error: BaseException) -> StorageError:
    """The error to raise instead. It never shows what was being written, which may be a secret."""
    lasting = type(error).__name__
    if isinstance(error, sqlite3.Error):
        code = _primary(error)
        passing, lasting = _PASSING_SQLITE.get(code), _LASTING_SQLITE.get(code, str(error))
    elif isinstance(error, OSError) and error.errno is not None:
        passing, lasting = _PASSING_DISK.get(error.errno), error.strerror or lasting
    else:
        passing = _passing_in_postgres(error)
    return PassingFault(what, passing) if passing else StorageError(f"{what}: {lasting}")


def wrong_schema(what: str, found: int, known: int) -> StorageError:
    """The error for a store that this version of basecagg cannot read. What 0.2.0 wrote it can."""
    if found < known:
        return StorageError(f"{what} is not a store of basecagg 0.2 or later")
    said = f"{what} has schema version {found}, this program knows {known}: upgrade basecagg"
    return StorageError(said)


def _passing_in_postgres(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    if state is None:
        names = {each.__name__ for each in type(error).__mro__}
        return "the database does not answer" if names & _UNREACHABLE else None
    return next((text for code, text in _PASSING_SQLSTATE.items() if state.startswith(code)), None)


def _primary(error: sqlite3.Error) -> int:
    """The code without its details; -1 if the error comes from Python's module, not from SQLite."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code
