"""The server's store: one table of any SQL database; SQLite unless another is named.

One process at a time may write to a namespace: see `basecagg.storage.lease`. The records of an epoch have an
anchor on the server's machine, so that a server restored from an older copy knows that it is one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from basecagg.errors import StorageError
from basecagg.extras import require
from basecagg.protocol.effects import Write
from basecagg.storage import lease, sqlite
from basecagg.storage.anchor import Anchor, Mark
from basecagg.storage.batch import Batch
from basecagg.storage.lease import Execute, Lease

SCHEMA_VERSION = 4
_REMEDY = {
    True: "let the older basecagg end its epoch, then start the next one with a fresh database",
    False: "upgrade basecagg",
}
_MARK, _LINEAGE = "anchor-mark", 16
"""The kind of the record that the anchor is compared with, and the bytes of a lineage in it."""
_METADATA = MetaData()
# Keys are ordered by their bytes everywhere; SQLite does so by itself.
_NAME = Text().with_variant(Text(collation="C"), "postgresql")
_SCHEMA = Table("basecagg_schema", _METADATA, Column("version", Integer, nullable=False))
_RECORDS = Table(
    "basecagg_records",
    _METADATA,
    Column("namespace", _NAME, primary_key=True),
    Column("kind", _NAME, primary_key=True),
    Column("key", _NAME, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
_C = _RECORDS.c
_INSERT: dict[str, Callable[..., Any]] = {
    "sqlite": sqlite_dialect.insert,
    "postgresql": postgresql.insert,
}
_DELETE = delete(_RECORDS).where(
    _C.namespace == bindparam("namespace"),
    _C.kind == bindparam("kind"),
    _C.key == bindparam("key"),
)


def upsert(dialect: str) -> Any:
    """The statement that writes a record whether or not there is one, as the dialect says it."""
    statement = _INSERT[dialect](_RECORDS)
    return statement.on_conflict_do_update(
        index_elements=[_C.namespace, _C.kind, _C.key], set_={"value": statement.excluded.value}
    )


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
        self._engine = _connect(url)
        self._upsert = upsert(self._engine.dialect.name)
        self._lease = Lease(namespace, self._engine.dialect.name)
        self._renewed = 0.0
        try:
            with self._transaction("open") as connection:
                _require_schema(connection)
            lease.acquire_within(wait, self._acquire)
            if anchor_folder is not None:
                self._compare_with(_anchor_of(namespace, anchor_folder))
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The highest number that it was told to remember."""
        return int(self.read("highest", "") or 0)

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        wanted = select(_C.value).where(
            _C.namespace == self.namespace, _C.kind == kind, _C.key == key
        )
        with self._transaction("read") as connection:
            return connection.execute(wanted).scalar()

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        wanted = select(_C.key).where(_C.namespace == self.namespace, _C.kind == kind)
        with self._transaction("read") as connection:
            return list(connection.execute(wanted.order_by(_C.key)).scalars())

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        wanted = select(_C.key, _C.value).where(_C.namespace == self.namespace, _C.kind == kind)
        with self._transaction("read") as connection:
            return [(key, value) for key, value in connection.execute(wanted.order_by(_C.key))]

    def commit(self, writes: Sequence[Write]) -> None:
        """Make the writes durable before returning."""
        batch = Batch.of(writes)
        stored = [
            {"namespace": self.namespace, "kind": w.kind, "key": w.key, "value": w.value}
            for w in batch.stored
        ]
        deleted = [
            {"namespace": self.namespace, "kind": w.kind, "key": w.key} for w in batch.deleted
        ]
        if not batch:
            return
        mark = self._mark_after(batch)
        if mark != self._mark:
            stored.append(self._record_of(mark))
        with self._writing() as connection:
            if stored:
                connection.execute(self._upsert, stored)
            if deleted:
                connection.execute(_DELETE, deleted)
        if mark != self._mark:
            self._mark, self.rolled_back = mark, False
        self._drop_anchor()

    # --- the anchor -------------------------------------------------------------------------------

    def _compare_with(self, anchor: Anchor) -> None:
        """A new store begins a life of its own; else both must tell the same story."""
        stored = self.read(_MARK, "")
        if stored is not None:
            self._mark = Mark(stored[:_LINEAGE], int(stored[_LINEAGE:]))
        elif anchor.mark is None and self._is_empty():
            self._mark = self._begin_life()
            anchor.write(self._mark)
        self.rolled_back = anchor.mark is None or not anchor.mark.precedes(self._mark)
        self._anchor = anchor
        self._drop_anchor()

    def _begin_life(self) -> Mark:
        mark = Mark(os.urandom(_LINEAGE), 0)
        with self._writing() as connection:
            connection.execute(self._upsert, [self._record_of(mark)])
        return mark

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

    def _record_of(self, mark: Mark) -> dict[str, Any]:
        value = mark.lineage + b"%d" % mark.counter
        return {"namespace": self.namespace, "kind": _MARK, "key": "", "value": value}

    def _is_empty(self) -> bool:
        wanted = select(_C.kind).where(_C.namespace == self.namespace).limit(1)
        with self._transaction("read") as connection:
            return connection.execute(wanted).scalar() is None

    # --- its owner --------------------------------------------------------------------------------

    def erase(self) -> None:
        """Delete all records of this namespace, and close. Its anchor stays, for copies that come back."""
        with self._writing() as connection:
            connection.execute(delete(_RECORDS).where(_C.namespace == self.namespace))
        self.close()

    def renew(self) -> None:
        """Give a sign of life if there was none of late; `LeaseLost` if somebody else has taken over."""
        if time.monotonic() - self._renewed > lease.RENEWS:
            with self._writing():
                pass

    def close(self) -> None:
        """Let the next one in, and close all connections."""
        if self._lease.fence:
            with suppress(StorageError), self._transaction("write") as connection:
                self._lease.release(_executing(connection))
        self._engine.dispose()
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def __enter__(self) -> Self:
        """Nothing to do: the store is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        """Show which store, never what is in it, nor a password."""
        return f"ServerStore({self._engine.url!r}, {self.namespace!r})"

    def _acquire(self) -> None:
        with self._transaction("open") as connection:
            self._lease.acquire(_executing(connection))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of the store's owner, and nobody else's."""
        with self._transaction("write") as connection:
            self._lease.check(_executing(connection))
            yield connection
        self._renewed = time.monotonic()

    @contextmanager
    def _transaction(self, action: str) -> Iterator[Connection]:
        self._drop_anchor()  # if that failed after a commit, it comes before anything else
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StorageError(
                f"cannot {action} {self._engine.url!r}: {sqlite.meaning(cause)}"
            ) from None


def _anchor_of(namespace: str, folder: Path) -> Anchor:
    """By the namespace alone: a copy of the database in another place has the same one. The lease locks it."""
    name = hashlib.sha256(b"server\0" + namespace.encode()).hexdigest()[:32]
    return Anchor(folder / f"{name}.anchor", lock=False)


_parsed = lru_cache(text)  # each of them runs with every commit


def _executing(connection: Connection) -> Execute:
    return lambda statement, values: connection.execute(_parsed(statement), values)


def _connect(url: str | URL) -> Engine:
    try:
        backend = make_url(url).get_backend_name()
    except SQLAlchemyError:
        raise StorageError("the store's URL cannot be read: write sqlite:///server.db") from None
    if backend not in _INSERT:
        raise StorageError(f"a server's store is on {' or '.join(_INSERT)}, not on {backend}")
    if backend == "postgresql":
        require("psycopg", extra="postgres", needed_for="a store on PostgreSQL")
    engine = create_engine(url, hide_parameters=True)  # they may be secrets
    if backend == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    if engine.url.database:
        sqlite.make_private(Path(engine.url.database))
    event.listen(engine, "connect", lambda connection, _: sqlite.configure(connection))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def _require_schema(connection: Connection) -> None:
    _SCHEMA.create(connection, checkfirst=True)
    version = connection.execute(select(_SCHEMA.c.version)).scalar()
    if version is None:
        connection.execute(insert(_SCHEMA).values(version=SCHEMA_VERSION))
        _RECORDS.create(connection)
        connection.execute(text(lease.TABLE))
    elif version != SCHEMA_VERSION:
        raise StorageError(
            f"{connection.engine.url!r} has schema version {version}, this program knows"
            f" {SCHEMA_VERSION}: {_REMEDY[version < SCHEMA_VERSION]}"
        )
