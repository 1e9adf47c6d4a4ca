"""A connection to the server's database, SQLite or PostgreSQL, by the database's own driver.

A statement is written once: with `:named` values, and with words in capitals for the SQL fragments in which the
two dialects differ.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from basecagg.errors import StorageError
from basecagg.extras import require
from basecagg.storage import disk
from basecagg.storage.failures import explain

_FRAGMENTS = {
    "sqlite": {
        "KEYTEXT": "TEXT",
        "BYTES": "BLOB",
        "NOW": "((julianday('now') - 2440587.5) * 86400.0)",
        "LOCK": "",
        "FROZEN_ENDED": "0",
        "FOUND_TABLE": "(SELECT name FROM sqlite_master WHERE name = :name)",
    },
    "postgresql": {
        "KEYTEXT": 'TEXT COLLATE "C"',
        "BYTES": "BYTEA",
        "NOW": "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)",
        "LOCK": "FOR UPDATE SKIP LOCKED",
        "FROZEN_ENDED": "(SELECT count(pg_terminate_backend(pid)) FROM pg_locks JOIN pg_stat_activity"
        " USING (pid) WHERE locktype = 'transactionid' AND transactionid = basecagg_lease.xmax"
        " AND mode = 'ExclusiveLock' AND wait_event_type = 'Client' AND usename = current_user"
        " AND extract(epoch FROM clock_timestamp() - state_change) > :expires)",
        "FOUND_TABLE": "CAST(to_regclass(:name) AS TEXT)",
    },
}
"""SQL fragments per dialect.

KEYTEXT sorts by bytes. NOW is in seconds, by the database's own clock. LOCK locks a row, or skips it if another
session has it locked. FROZEN_ENDED ends the sessions that have a lease locked and have sent nothing for too
long, and counts them. FOUND_TABLE is null if there is no such table.
"""
SERVER_FILE = 2**14, 2**26, ("cache_size = -32768",)
"""Bytes of a page and of the log, KiB of the cache: shipments come by the megabyte, and many are over before
they need leave log and cache."""
_POSTGRES = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # A process that is stopped while it tries to take the lease has the row locked: its owner must not wait for
    # it long. An owner that is stopped while it writes is ended by its successor: see `basecagg.storage.lease`.
    "options": "-c idle_in_transaction_session_timeout=5000",
}
"""How long PostgreSQL and its library believe in a dead connection, unless the URL says otherwise."""
_PASSWORD = re.compile(r"^([^:]+://[^:/]*):[^@]*@")


class Database:
    """One connection, made when it is first needed and again after a failure. For one thread at a time.

    Example: `Database("sqlite:///server.db")`, `Database("postgresql://user@host/name")`.
    """

    def __init__(self, url: str) -> None:
        """Look at the address; nothing is sent yet."""
        scheme, _, place = url.partition("://")
        self._url = url
        self._dialect = scheme.partition("+")[0]  # people also write postgresql+psycopg
        self._connection: Any = None
        if not place:
            raise StorageError("the store's URL cannot be read: write sqlite:///server.db")
        if self._dialect not in _FRAGMENTS:
            known = " or ".join(_FRAGMENTS)
            raise StorageError(f"a server's store is on {known}, not on {self._dialect}")
        self._driver: ModuleType = sqlite3
        if self._dialect == "postgresql":
            what = "a store on PostgreSQL"
            self._driver = require("psycopg", extra="postgres", needed_for=what)

    @contextmanager
    def transaction(self, action: str) -> Iterator[None]:
        """Carry out everything in the block, or nothing. A failure is explained, and ends the connection."""
        try:
            if self._connection is None:
                self._connect()
            if self._dialect == "sqlite":
                self.execute("BEGIN")  # psycopg begins by itself
            yield
            self._connection.commit()
        except BaseException as error:
            self.close()
            if isinstance(error, self._driver.Error):
                raise explain(f"cannot {action} {self!r}", error) from None
            raise

    def execute(self, statement: str, values: Mapping[str, Any] | None = None) -> Any:
        """Run a statement in the present transaction, and return the driver's cursor."""
        cursor = self._connection.cursor()
        cursor.execute(_translated(statement, self._dialect), values or {})
        return cursor

    def execute_many(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each row."""
        if rows:
            cursor = self._connection.cursor()
            cursor.executemany(_translated(statement, self._dialect), rows)

    def has_table(self, name: str) -> bool:
        """Whether there is a table of this name."""
        return self.execute("SELECT FOUND_TABLE", {"name": name}).fetchone()[0] is not None

    def close(self) -> None:
        """End the connection, and undo what is not committed. The next transaction makes a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._driver.Error):
                connection.rollback()  # SQLite would keep the transaction for as long as a cursor lives
            connection.close()

    def __repr__(self) -> str:
        """Show which database, never its password."""
        return _PASSWORD.sub(r"\1:***@", self._url)

    def _connect(self) -> None:
        address = self._url.partition("://")[2]
        if self._dialect == "sqlite":
            path = Path(address.removeprefix("/"))
            disk.make_private(path)
            # The thread of the machine uses what the main thread opened.
            self._connection = sqlite3.connect(path, check_same_thread=False)
            disk.configure_sqlite(self._connection, *SERVER_FILE)
        else:
            wishes = self._driver.conninfo.conninfo_to_dict(f"postgresql://{address}")
            self._connection = self._driver.connect(**(_POSTGRES | wishes))


@cache
def _translated(statement: str, dialect: str) -> str:
    """The statement as the driver takes it. To write one takes longer than to run it, and there are few."""
    for word, fragment in _FRAGMENTS[dialect].items():
        statement = statement.replace(word, fragment)
    return statement if dialect == "sqlite" else re.sub(r":(\w+)", r"%(\1)s", statement)
