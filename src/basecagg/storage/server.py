"""The server's store: one table of SQLite, or of PostgreSQL if that is named.

SQLAlchemy keeps the connections and writes the statements, once; the driver itself runs them, for a busy server
has no time for anything between.

One process at a time may write to a namespace: see `basecagg.storage.lease`. The records of an epoch have an
anchor on the server's machine, so that a server restored from an older copy knows that it is one.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self, TypeAlias

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine.interfaces import DBAPICursor, Dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from basecagg.errors import StorageError
from basecagg.extras import require
from basecagg.protocol.effects import Write
from basecagg.storage import lease, sqlite
from basecagg.storage.anchor import Anchor, Mark
from basecagg.storage.batch import Batch
from basecagg.storage.faults import explain
from basecagg.storage.lease import Execute, Lease

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]
SCHEMA_VERSION = 5
_OLDER = 4
"""Of 0.1.0. Its letters and shipments are stored otherwise, its people and models are not."""
OLDER_SCHEMA = "older-schema"
"""The kind of a record that every namespace of an older database gets."""
_REMEDY = {
    True: "let the older basecagg end its epoch, then start the next one with a fresh database",
    False: "upgrade basecagg",
}
_MARK, _LINEAGE = "anchor-mark", 16
"""The kind of the record that the anchor is compared with, and the bytes of a lineage in it."""
_POSTGRES = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # One that is stopped while it tries to take the lease has locked it: it must not keep its owner waiting.
    # An owner that is stopped while it writes is ended by whoever takes over: see `basecagg.storage.lease`.
    "options": "-c idle_in_transaction_session_timeout=5000",
}
"""How long PostgreSQL and its library believe in a dead line, unless the URL says otherwise."""
_WORDS = {
    "sqlite": {
        "KEYTEXT": "TEXT",
        "BYTES": "BLOB",
        "NOW": "((julianday('now') - 2440587.5) * 86400.0)",
        "LOCK": "",
        "FROZEN_ENDED": "0",
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
    },
}
"""What words in capitals mean: keys ordered by their bytes, seconds by its own clock, a row if nobody has it
locked, and how many sessions were ended that had, and whose next word the database awaited for too long."""
_VERSION = "SELECT version FROM basecagg_schema"
_PRESENT = {"version": SCHEMA_VERSION}
# With a row's number in SQLite: a large value in a table without one takes three times as long.
_RECORDS = (
    "CREATE TABLE basecagg_records (namespace KEYTEXT NOT NULL, kind KEYTEXT NOT NULL,"
    " key KEYTEXT NOT NULL, value BYTES NOT NULL, PRIMARY KEY (namespace, kind, key))"
)
_TABLES = ("CREATE TABLE basecagg_schema (version INTEGER NOT NULL)", _RECORDS, lease.TABLE)
_READ = "SELECT value FROM basecagg_records WHERE namespace = :namespace AND kind = :kind AND key = :key"
_KEYS = (
    "SELECT key FROM basecagg_records WHERE namespace = :namespace AND kind = :kind ORDER BY key"
)
_SCAN = (
    "SELECT key, value FROM basecagg_records"
    " WHERE namespace = :namespace AND kind = :kind ORDER BY key"
)
_FIRST = "SELECT min(kind) FROM basecagg_records WHERE namespace = :namespace"
_NAMESPACES = "SELECT DISTINCT namespace FROM basecagg_records"
_MARKS = (  # by the few namespaces that were ever leased, for nobody should read through all records
    "SELECT r.namespace, r.value FROM basecagg_lease l JOIN basecagg_records r"
    " ON r.namespace = l.namespace AND r.kind = :kind AND r.key = :key"
)
_STORE = (
    "INSERT INTO basecagg_records VALUES (:namespace, :kind, :key, :value)"
    " ON CONFLICT (namespace, kind, key) DO UPDATE SET value = excluded.value"
)
_DELETE = (
    "DELETE FROM basecagg_records WHERE namespace = :namespace AND kind = :kind AND key = :key"
)
_REPLACE = (
    "UPDATE basecagg_records SET key = :key, value = :value"
    " WHERE namespace = :namespace AND kind = :kind AND key = :old AND NOT EXISTS (SELECT 1"
    " FROM basecagg_records WHERE namespace = :namespace AND kind = :kind AND key = :key)"
)
_BULK = 2**16
"""Bytes of a value that is worth a statement of its own."""
_ERASE = "DELETE FROM basecagg_records WHERE namespace = :namespace"
_COPY = (
    "ALTER TABLE basecagg_records RENAME TO basecagg_older",
    _RECORDS,
    "INSERT INTO basecagg_records SELECT * FROM basecagg_older",
    "DROP TABLE basecagg_older",
)
_SQLITE_PRAGMAS = (
    "wal_autocheckpoint = 4096",
    "journal_size_limit = 67108864",
    "cache_size = -32768",
)
"""Pages, bytes, KiB: shipments come by the megabyte, and many are over before they need leave log and cache."""


class ServerStore:
    """The records of one server. Several may share a database: each has a namespace of its own.

    While one is open, a second one of the same namespace is refused with `StoreInUse`, here or elsewhere.
    After a `StorageError` the machine in memory may be ahead of its records: rebuild it from the store.
    """

    def __init__(
        self,
        url: str | URL,
        namespace: str = "server",
        *,
        wait: float = 0.0,
        anchor_folder: Path | None = None,
    ) -> None:
        """Connect, and create the tables if there are none. `url` is SQLAlchemy's: sqlite:///server.db.

        `wait` is how many seconds somebody else may still take to let go of it, or to be given up for dead.
        Without a folder for its anchor an older copy is not noticed.
        """
        self.namespace = namespace
        self.rolled_back = False
        """Whether this turned out to be an older copy of the store; until the next irreversible commit."""
        self._anchor: Anchor | None = None
        self._mark = Mark(b"", 0)
        self._engine = connect(url)
        self._lease = Lease(namespace)
        self._renewed = 0.0
        try:
            with self._transaction("open") as connection:
                _require_schema(connection)
            lease.acquire_within(wait, self._acquire)
            if anchor_folder is not None:
                self._compare_with(anchor_of(namespace, anchor_folder))
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The highest number that it was told to remember."""
        return int(self.read("highest", "") or 0)

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        rows = self._fetch(_READ, kind=kind, key=key)
        return bytes(rows[0][0]) if rows else None

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return [key for (key,) in self._fetch(_KEYS, kind=kind)]

    def namespaces(self, prefix: str) -> list[str]:
        """All machines with records in this database whose names begin like this."""
        return sorted(name for (name,) in self._fetch(_NAMESPACES) if name.startswith(prefix))

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return [(key, bytes(value)) for key, value in self._fetch(_SCAN, kind=kind)]

    def _fetch(self, statement: str, **values: str) -> list[Any]:
        with self._transaction("read") as connection:
            ours = {"namespace": self.namespace, **values}
            return list(_execute(connection, statement, ours).fetchall())

    def commit(self, writes: Sequence[Write]) -> None:
        """Make the writes durable before returning."""
        batch = Batch.of(writes)
        if not batch:
            return
        stored = [self._row(write.kind, write.key, write.value) for write in batch.stored]
        deleted = [self._row(write.kind, write.key) for write in batch.deleted]
        mark = self._mark_after(batch)
        if mark != self._mark:
            stored.append(self._row(_MARK, "", _packed(mark)))
        with self._writing() as connection:
            stored, deleted = _put_in_place(connection, stored, deleted)
            _execute_many(connection, _DELETE, deleted)
            _execute_many(connection, _STORE, stored)
        if mark != self._mark:
            self._mark, self.rolled_back = mark, False
        self._drop_anchor()

    # --- the anchor -------------------------------------------------------------------------------

    def _compare_with(self, anchor: Anchor) -> None:
        """A new store begins a life of its own; else both must tell the same story."""
        stored = self.read(_MARK, "")
        if stored is not None:
            self._mark = _parse_mark(stored)
        elif anchor.mark is None and self._fetch(_FIRST)[0][0] is None:
            self._mark = Mark(os.urandom(_LINEAGE), 0)
            with self._writing() as connection:
                _execute(connection, _STORE, self._row(_MARK, "", _packed(self._mark)))
            anchor.write(self._mark)
        self.rolled_back = anchor.mark is None or not anchor.mark.precedes(self._mark)
        self._anchor = anchor
        self._drop_anchor()

    def _mark_after(self, batch: Batch) -> Mark:
        """Counts what must not be undone. An older copy that goes on makes every other copy an old one."""
        if self._anchor is None or not batch.irreversible:
            return self._mark
        if not self.rolled_back:
            return Mark(self._mark.lineage, self._mark.counter + 1)
        known = (self._mark, self._anchor.mark or self._mark)
        return Mark(os.urandom(_LINEAGE), max(mark.counter for mark in known) + 1)

    def _drop_anchor(self) -> None:
        """Note the mark outside the store. While that fails nothing is read, so nothing can be sent."""
        if self._anchor is None or self.rolled_back or self._anchor.mark == self._mark:
            return
        self._anchor.write(self._mark)

    def _row(self, kind: str, key: str, value: bytes = b"") -> Row:
        return {"namespace": self.namespace, "kind": kind, "key": key, "value": value}

    # --- its owner --------------------------------------------------------------------------------

    def erase(self) -> None:
        """Delete all records of this namespace, and close. Its anchor stays, for copies that come back."""
        with self._writing() as connection:
            _execute(connection, _ERASE, {"namespace": self.namespace})
        self.close()

    def renew(self, after: float = lease.RENEWS) -> None:
        """Give a sign of life if there was none for so long; `LeaseLost` if somebody else has taken over."""
        if time.monotonic() - self._renewed >= after:
            with self._writing():
                pass

    def close(self) -> None:
        """Let the next one in, and close all connections."""
        if self._lease.fence:
            with suppress(StorageError), self._transaction("write") as connection:
                self._lease.release(executing(connection))
        self._engine.dispose()
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Show which store, never what is in it, nor a password."""
        return f"ServerStore({self._engine.url!r}, {self.namespace!r})"

    def _acquire(self) -> None:
        with self._transaction("open") as connection:
            self._lease.acquire(executing(connection))
            if connection.execute(text(_VERSION)).scalar() == _OLDER:
                _fence_out_others(connection, self.namespace)
                _migrate(connection)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of the store's owner, and nobody else's."""
        with self._transaction("write") as connection:
            self._lease.check(executing(connection))
            yield connection
        self._renewed = time.monotonic()

    @contextmanager
    def _transaction(self, action: str) -> Iterator[Connection]:
        self._drop_anchor()  # if that failed after a commit, it comes before anything else
        with transaction(self._engine, action) as connection:
            yield connection


@contextmanager
def transaction(engine: Engine, action: str) -> Iterator[Connection]:
    """All or nothing. What the database says instead is explained, and the next one connects anew."""
    try:
        with engine.begin() as connection:
            yield connection
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        engine.dispose()
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise explain(f"cannot {action} {engine.url!r}", cause) from None


def _packed(mark: Mark) -> bytes:
    return mark.lineage + b"%d" % mark.counter


def _parse_mark(stored: bytes) -> Mark:
    return Mark(stored[:_LINEAGE], int(stored[_LINEAGE:]))


def marks(connection: Connection) -> dict[str, Mark]:
    """How far each namespace with an anchor has come."""
    found = _execute(connection, _MARKS, {"kind": _MARK, "key": ""}).fetchall()
    return {namespace: _parse_mark(bytes(value)) for namespace, value in found}


def anchor_of(namespace: str, folder: Path) -> Anchor:
    """By the namespace alone: a copy of the database in another place has the same one. The lease locks it."""
    name = hashlib.sha256(b"server\0" + namespace.encode()).hexdigest()[:32]
    return Anchor(folder / f"{name}.anchor", lock=False)


@lru_cache(maxsize=64)
def _spoken(statement: str, dialect: Dialect) -> str:
    """A statement as its driver takes it. There are few, and to write one takes longer than to run it."""
    for word, meaning in _WORDS[dialect.name].items():
        statement = statement.replace(word, meaning)
    return str(text(statement).compile(dialect=dialect))


def _execute(
    connection: Connection, statement: str, values: Mapping[str, Any] | None = None
) -> DBAPICursor:
    cursor = connection.connection.cursor()
    cursor.execute(_spoken(statement, connection.dialect), values or {})
    return cursor


def _execute_many(connection: Connection, statement: str, rows: Rows) -> None:
    if rows:
        cursor = connection.connection.cursor()
        cursor.executemany(_spoken(statement, connection.dialect), rows)


def _put_in_place(connection: Connection, stored: Rows, deleted: Rows) -> tuple[Rows, Rows]:
    """Write new bulk over old of its kind, and return what is still to be stored and deleted.

    SQLite then writes the pages of a value of the same size once. Deleted by itself they are filled with zeros,
    which are written too, and the new value goes elsewhere.
    """
    left, places = list[Row](), defaultdict[str, list[Row]](list)
    for row in deleted:
        places[row["kind"]].append(row)
    for row in stored:
        old = places[row["kind"]][-1:] if len(row["value"]) >= _BULK else []
        if old and _execute(connection, _REPLACE, row | {"old": old[0]["key"]}).rowcount:
            places[row["kind"]].pop()
        else:
            left.append(row)
    return left, [row for rows in places.values() for row in rows]


def executing(connection: Connection) -> Execute:
    """How a lease says its statements on this connection."""
    return partial(_execute, connection)


def connect(url: str | URL) -> Engine:
    """The database at an address; nothing is sent yet."""
    try:
        backend = make_url(url).get_backend_name()
    except SQLAlchemyError:
        raise StorageError("the store's URL cannot be read: write sqlite:///server.db") from None
    if backend not in _WORDS:
        raise StorageError(f"a server's store is on {' or '.join(_WORDS)}, not on {backend}")
    if backend == "postgresql":
        require("psycopg", extra="postgres", needed_for="a store on PostgreSQL")
    style: Any = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    given = make_url(url).query if backend == "postgresql" else _POSTGRES
    patience = {name: value for name, value in _POSTGRES.items() if name not in given}
    engine = create_engine(
        url,
        paramstyle=style,
        hide_parameters=True,  # what is written may be secret, so it is never shown
        pool_reset_on_return=None,  # `transaction` ends what it began
        connect_args=patience,
    )
    if backend == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    if engine.url.database:
        sqlite.make_private(Path(engine.url.database))
    event.listen(engine, "connect", lambda connection, _: configure(connection))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def configure(connection: sqlite3.Connection) -> None:
    """Set up a new connection to SQLite for a server, which stores by the megabyte."""
    sqlite.configure(connection)
    for pragma in _SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _require_schema(connection: Connection) -> None:
    """Create what is missing. What is there is left alone: it may be another's, who is alive."""
    if not inspect(connection).has_table("basecagg_schema"):
        for statement in _TABLES:
            _execute(connection, statement)
        _execute(connection, "INSERT INTO basecagg_schema VALUES (:version)", _PRESENT)
        return
    version = connection.execute(text(_VERSION)).scalar() or 0
    if version not in (_OLDER, SCHEMA_VERSION):
        raise StorageError(
            f"{connection.engine.url!r} has schema version {version}, this program knows"
            f" {SCHEMA_VERSION}: {_REMEDY[version < SCHEMA_VERSION]}"
        )


def _fence_out_others(connection: Connection, ours: str) -> None:
    """`StoreInUse` while anybody has anything of this database; whoever had writes nothing any more."""
    execute = executing(connection)
    for (name,) in execute("SELECT namespace FROM basecagg_lease", {}).fetchall():
        if name != ours:
            other = Lease(name)
            other.acquire(execute)
            other.release(execute)


def _migrate(connection: Connection) -> None:
    """All records stay. Their owners have to see which of them still mean something: `OLDER_SCHEMA` says so."""
    for statement in _COPY if connection.dialect.name == "sqlite" else ():
        _execute(connection, statement)
    note = {"kind": OLDER_SCHEMA, "key": "", "value": b"%d" % _OLDER}
    owners = _execute(connection, _NAMESPACES).fetchall()
    _execute_many(connection, _STORE, [{"namespace": owner, **note} for (owner,) in owners])
    _execute(connection, "UPDATE basecagg_schema SET version = :version", _PRESENT)
