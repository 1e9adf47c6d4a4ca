"""Which failures of disk and database pass by themselves: one row for each."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from basecagg.errors import PassingFault
from basecagg.storage.failures import explain

psycopg = pytest.importorskip("psycopg")


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("words of SQLite")
    error.sqlite_errorcode = code
    return error


PASSING = [
    sqlite_error(sqlite3.SQLITE_FULL),
    sqlite_error(sqlite3.SQLITE_IOERR_WRITE),
    sqlite_error(sqlite3.SQLITE_READONLY),
    sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT),
    sqlite_error(sqlite3.SQLITE_CANTOPEN),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.EIO, "Input/output error"),
    psycopg.OperationalError("connection refused"),
    psycopg.errors.ConnectionTimeout("connection timeout expired"),
    psycopg.InterfaceError("the connection is closed"),
    psycopg.errors.AdminShutdown("terminating connection"),
    psycopg.errors.CannotConnectNow("starting up"),
    psycopg.errors.DiskFull("no space"),
    psycopg.errors.ReadOnlySqlTransaction("a replica"),
    psycopg.errors.DeadlockDetected("deadlock"),
    psycopg.errors.IdleInTransactionSessionTimeout("slept"),
]
LASTING = [
    sqlite_error(sqlite3.SQLITE_CORRUPT),
    sqlite_error(sqlite3.SQLITE_NOTADB),
    sqlite_error(sqlite3.SQLITE_CONSTRAINT),
    sqlite3.ProgrammingError("closed"),
    OSError(errno.EACCES, "Permission denied"),
    psycopg.errors.UndefinedTable("no such table"),
    psycopg.errors.InsufficientPrivilege("not yours"),
    psycopg.errors.DataCorrupted("torn page"),
    ValueError("a bug"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_these_pass(error: Exception) -> None:
    explained = explain("cannot write the store", error)
    assert isinstance(explained, PassingFault)
    assert str(explained) == f"cannot write the store: {explained.reason}"


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_these_do_not(error: Exception) -> None:
    assert not isinstance(explain("cannot write the store", error), PassingFault)


def test_what_was_written_is_not_repeated() -> None:
    """A driver's message may quote the statement's values."""
    for error in (*PASSING, *LASTING):
        if not isinstance(error, sqlite3.Error | OSError):
            assert str(error) not in str(explain("cannot write", error))
