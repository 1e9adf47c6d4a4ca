"""The server's store: one table of SQLite, or of PostgreSQL if that is named.

One process at a time may write to a namespace: see `basecagg.storage.lease`. What is stored of an epoch has an
anchor on the server's machine, so that a server restored from an older copy knows that it is one.
"""

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeAlias

from basecagg.errors import StorageError
from basecagg.protocol.effects import Write
from basecagg.storage import lease
from basecagg.storage.anchor import LINEAGE_BYTES, Anchor, Mark, next_mark
from basecagg.storage.batch import Batch
from basecagg.storage.database import Database
from basecagg.storage.failures import wrong_schema
from basecagg.storage.lease import Lease

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]
SCHEMA_VERSION = 5
_MARK = "anchor-mark"
"""The kind under which the mark is stored that the anchor is compared with."""
# With a row's number in SQLite: a large value in a table without one takes three times as long.
_TABLES = (
    "CREATE TABLE basecagg_schema (version INTEGER NOT NULL)",
    "CREATE TABLE basecagg_records (namespace KEYTEXT NOT NULL, kind KEYTEXT NOT NULL,"
    " key KEYTEXT NOT NULL, value BYTES NOT NULL, PRIMARY KEY (namespace, kind, key))",
    lease.TABLE,
)
_KIND = "FROM basecagg_records WHERE namespace = :namespace AND kind = :kind"
_READ = f"SELECT value {_KIND} AND key = :key"
_KEYS = f"SELECT key {_KIND} ORDER BY key"
_SCAN = f"SELECT key, value {_KIND} ORDER BY key"
_FIRST = "SELECT min(kind) FROM basecagg_records WHERE namespace = :namespace"
_NAMESPACES = "SELECT DISTINCT namespace FROM basecagg_records"
_MARKS = (  # looked up for the few namespaces that were ever leased: a scan would read every row
    "SELECT r.namespace, r.value FROM basecagg_lease l JOIN basecagg_records r"
    " ON r.namespace = l.namespace AND r.kind = :kind AND r.key = :key"
)
_STORE = (
    "INSERT INTO basecagg_records VALUES (:namespace, :kind, :key, :value)"
    " ON CONFLICT (namespace, kind, key) DO UPDATE SET value = excluded.value"
)
_DELETE = f"DELETE {_KIND} AND key = :key"
_REPLACE = (
    "UPDATE basecagg_records SET key = :key, value = :value"
    " WHERE namespace = :namespace AND kind = :kind AND key = :old"
    " AND NOT EXISTS (SELECT 1 FROM basecagg_records"
    " WHERE namespace = :namespace AND kind = :kind AND key = :key)"
)
_BULK = 2**16
"""Bytes of a value that is worth a statement of its own."""
_ERASE = "DELETE FROM basecagg_records WHERE namespace = :namespace"


class ServerStore:
    """What one server stores. Several may share a database: each has a namespace of its own.

    While one is open, a second one of the same namespace is refused with `StoreInUse`, here or elsewhere.
    After a `StorageError` the machine in memory may be ahead of its store: build it again from the store.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "server",
        *,
        wait: float = 0.0,
        anchor_folder: Path | None = None,
    ) -> None:
        """Connect, and create the tables if there are none. For `url` see `Database`.

        `wait` is how many seconds another process may still take to let go of the namespace, or to be given up
        for dead. Without `anchor_folder` an older copy is not noticed.
        """
        self.namespace = namespace
        self.rolled_back = False
        """Whether this turned out to be an older copy of the store; until the next irreversible commit."""
        self._anchor: Anchor | None = None
        self._mark = Mark(b"", 0)
        self._database = Database(url)
        self._lease = Lease(namespace)
        self._renewed = 0.0
        try:
            with self._transaction("open"):
                _require_schema(self._database)
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
        """All namespaces in this database whose names begin with `prefix`."""
        return sorted(name for (name,) in self._fetch(_NAMESPACES) if name.startswith(prefix))

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return [(key, bytes(value)) for key, value in self._fetch(_SCAN, kind=kind)]

    def _fetch(self, statement: str, **values: str) -> list[Any]:
        with self._transaction("read"):
            ours = {"namespace": self.namespace, **values}
            return list(self._database.execute(statement, ours).fetchall())

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
        with self._writing():
            stored, deleted = _put_in_place(self._database, stored, deleted)
            self._database.execute_many(_DELETE, deleted)
            self._database.execute_many(_STORE, stored)
        if mark != self._mark:
            self._mark, self.rolled_back = mark, False
        self._drop_anchor()

    # --- the anchor -------------------------------------------------------------------------------

    def _compare_with(self, anchor: Anchor) -> None:
        """A new store begins a life of its own; in any other its mark and the anchor's must agree."""
        stored = self.read(_MARK, "")
        if stored is not None:
            self._mark = _parse_mark(stored)
        elif anchor.mark is None and self._fetch(_FIRST)[0][0] is None:
            self._mark = Mark(os.urandom(LINEAGE_BYTES), 0)
            with self._writing():
                self._database.execute(_STORE, self._row(_MARK, "", _packed(self._mark)))
            anchor.write(self._mark)
        self.rolled_back = anchor.mark is None or not anchor.mark.precedes(self._mark)
        self._anchor = anchor
        self._drop_anchor()

    def _mark_after(self, batch: Batch) -> Mark:
        """Count what must not be undone."""
        if self._anchor is None or not batch.irreversible:
            return self._mark
        return next_mark(self._mark, self._anchor.mark, rolled_back=self.rolled_back)

    def _drop_anchor(self) -> None:
        """Note the mark outside the store. While that fails nothing is read, so nothing can be sent."""
        if self._anchor is None or self.rolled_back or self._anchor.mark == self._mark:
            return
        self._anchor.write(self._mark)

    def _row(self, kind: str, key: str, value: bytes = b"") -> Row:
        return {"namespace": self.namespace, "kind": kind, "key": key, "value": value}

    # --- its owner --------------------------------------------------------------------------------

    def erase(self) -> None:
        """Delete all that this namespace stores, and close. Its anchor stays, for copies that come back."""
        with self._writing():
            self._database.execute(_ERASE, {"namespace": self.namespace})
        self.close()

    def renew(self, after: float = lease.RENEWS) -> None:
        """Give a sign of life if there was none for `after` seconds; `LeaseLost` if another has taken over."""
        if time.monotonic() - self._renewed >= after:
            with self._writing():
                pass

    def close(self) -> None:
        """Give the lease back, and end the connection."""
        if self._lease.fence:
            with suppress(StorageError), self._transaction("write"):
                self._lease.release(self._database.execute)
        self._database.close()
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Show which store, never what is in it, nor a password."""
        return f"ServerStore({self._database!r}, {self.namespace!r})"

    def _acquire(self) -> None:
        with self._transaction("open"):
            self._lease.acquire(self._database.execute)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that only the store's owner can make."""
        with self._transaction("write"):
            self._lease.check(self._database.execute)
            yield
        self._renewed = time.monotonic()

    @contextmanager
    def _transaction(self, action: str) -> Iterator[None]:
        self._drop_anchor()  # if that failed after a commit, it comes before anything else
        with self._database.transaction(action):
            yield


def _packed(mark: Mark) -> bytes:
    return mark.lineage + b"%d" % mark.counter


def _parse_mark(stored: bytes) -> Mark:
    return Mark(stored[:LINEAGE_BYTES], int(stored[LINEAGE_BYTES:]))


def marks(database: Database) -> dict[str, Mark]:
    """The marks of all namespaces that have an anchor."""
    found = database.execute(_MARKS, {"kind": _MARK, "key": ""}).fetchall()
    return {namespace: _parse_mark(bytes(value)) for namespace, value in found}


def anchor_of(namespace: str, folder: Path) -> Anchor:
    """Named after the namespace alone, so that a copy of the database has the same one. The lease locks it."""
    name = hashlib.sha256(b"server\0" + namespace.encode()).hexdigest()[:32]
    return Anchor(folder / f"{name}.anchor", lock=False)


def _put_in_place(database: Database, stored: Rows, deleted: Rows) -> tuple[Rows, Rows]:
    """Write new bulk over old of its kind, and return what is still to be stored and deleted.

    SQLite then writes the pages of a value of the same size once. Deleted by itself they are filled with zeros,
    which are written too, and the new value goes elsewhere.
    """
    left, places = list[Row](), defaultdict[str, list[Row]](list)
    for row in deleted:
        places[row["kind"]].append(row)
    for row in stored:
        old = places[row["kind"]][-1:] if len(row["value"]) >= _BULK else []
        if old and database.execute(_REPLACE, row | {"old": old[0]["key"]}).rowcount:
            places[row["kind"]].pop()
        else:
            left.append(row)
    return left, [row for rows in places.values() for row in rows]


def _require_schema(database: Database) -> None:
    """Create the tables if there are none. A database of another version is left alone: it is somebody's."""
    if not database.has_table("basecagg_schema"):
        for statement in _TABLES:
            database.execute(statement)
        database.execute("INSERT INTO basecagg_schema VALUES (:v)", {"v": SCHEMA_VERSION})
        return
    (version,) = database.execute("SELECT version FROM basecagg_schema").fetchone() or (0,)
    if version != SCHEMA_VERSION:
        raise wrong_schema(repr(database), version, SCHEMA_VERSION)
