"""The store of a participant or an operator: one SQLite file, and an anchor outside it.

Two processes cannot write to one store: the second is refused by a lock beside the file and by the anchor's
lock. Where locks do not reach (a network drive), the fence in the file stops the process that opened it first.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from basecagg.errors import PassingFault, StorageError
from basecagg.protocol.effects import Persist, Write
from basecagg.storage import anchor, disk
from basecagg.storage.anchor import LINEAGE_BYTES, Anchor, Mark, next_mark
from basecagg.storage.batch import Batch
from basecagg.storage.failures import explain, wrong_schema

SCHEMA_VERSION = 5
# Shares and uploads are large, and a log that was emptied grows again: for a version's ten shares of 74 kB
# (written, then deleted) a holder took 3.6 ms of CPU with pages of 16 KiB, and 2.9 ms with these. Small shares
# took no more.
PARTICIPANT_FILE = 2**16, 2**22
"""Bytes of a page and of the log."""
# Ordered by (namespace, kind, key): what a machine loads at its start lies together, apart from the shares.
_SCHEMA = (
    "CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " lineage BLOB NOT NULL, counter INTEGER NOT NULL, number INTEGER NOT NULL, fence INTEGER NOT NULL)",
    "CREATE TABLE records (namespace INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,"
    " value BLOB NOT NULL, PRIMARY KEY (namespace, kind, key)) WITHOUT ROWID",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_READ = "SELECT value FROM records WHERE namespace = ? AND kind = ? AND key = ?"
_KEYS = "SELECT key FROM records WHERE namespace = ? AND kind = ? ORDER BY key"
_SCAN = "SELECT key, value FROM records WHERE namespace = ? AND kind = ? ORDER BY key"
_FIRST = "SELECT 1 FROM records WHERE namespace = ? LIMIT 1"
_STORE = (
    "INSERT INTO records VALUES (?, ?, ?, ?)"
    " ON CONFLICT (namespace, kind, key) DO UPDATE SET value = excluded.value"
)
_DELETE = "DELETE FROM records WHERE namespace = ? AND kind = ? AND key = ?"
_FENCE = "SELECT fence FROM namespaces WHERE id = ?"
_MARK = "UPDATE namespaces SET lineage = ?, counter = ?, number = ? WHERE id = ?"
_COMMON = 0
"""No namespace has this number: what all machines of one file share is stored under it."""
_SHARED_KINDS = frozenset({"salt", "sent"})
"""Fingerprints of updates outlive the federation in which they were sent."""
_SECRET_KINDS = frozenset({"sealing", "mask", "locks", "share"})
"""When one of these is deleted nothing of it may stay in the log either."""
NUMBER = "highest"
"""The kind of the stored number, in decimal digits, that the anchor remembers too."""


class ParticipantStore:
    """What one machine stores. Several machines may share a file: each has a namespace of its own.

    `number` is the highest that store or anchor was told to remember, whatever else is lost.

    After a `StorageError` the machine in memory may be ahead of its store: build it again from the store.
    """

    def __init__(
        self, path: str | Path, namespace: str, *, anchor_folder: str | Path | None = None
    ) -> None:
        """Open the store, create what is missing, and compare it with its anchor."""
        self.path = Path(path)
        self.namespace = namespace
        folder = Path(anchor_folder) if anchor_folder else anchor.default_folder()
        with ExitStack() as opened:
            name = anchor.name_of(self.path, namespace)
            self._connection = opened.enter_context(closing(self._connect()))
            opened.enter_context(
                closing(disk.FileLock(self.path.with_name(f"{self.path.name}.{name[:8]}.lock")))
            )
            self._anchor = opened.enter_context(closing(Anchor(folder / name)))
            self._empty_log()  # the process that had it last may have been killed before it could
            self._id, self._mark, self._fence = self._begin()
            self.rolled_back = self._is_older_copy()
            """Whether this is an older copy of the store; until its machine has given up its masks."""
            self.number = max(mark.number for mark in (self._mark, self._anchor.mark) if mark)
            if not self.rolled_back and self._anchor.mark != self._mark:
                self._anchor.write(self._mark)  # it is new, or was left behind by a crash
            self._opened = opened.pop_all()

    # --- reading and writing ----------------------------------------------------------------------------------

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        rows = self._fetch(_READ, self._place(kind), kind, key)
        return bytes(rows[0][0]) if rows else None

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return [key for (key,) in self._fetch(_KEYS, self._place(kind), kind)]

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return self._fetch(_SCAN, self._place(kind), kind)

    def _fetch(self, statement: str, *values: int | str) -> list[Any]:
        with self._explaining("read"):
            return self._connection.execute(statement, values).fetchall()

    def _place(self, kind: str) -> int:
        return _COMMON if kind in _SHARED_KINDS else self._id

    def commit(self, writes: Sequence[Write]) -> None:
        """Make the writes durable before returning, and note in the anchor what must not be undone.

        With its first commit to an older copy, which `start` returns, the machine gives up its masks. From then
        on this store is current again, and every other copy is old.
        """
        batch = Batch.of(writes)
        if batch:
            self._write(batch, self._mark_after(batch))
            self.rolled_back = False
            # Of all writes: a seed may go with one, and the record with the next.
            if any(map(_destroys, writes)):
                self._empty_log()

    def _mark_after(self, batch: Batch) -> Mark:
        told = (int(write.value) for write in batch.stored if write.kind == NUMBER)
        number = max((self.number, *told))
        if not self.rolled_back and not batch.irreversible:
            return self._mark._replace(number=number)
        return next_mark(self._mark, self._anchor.mark, rolled_back=self.rolled_back, number=number)

    def _write(self, batch: Batch, mark: Mark) -> None:
        stored = ((self._place(w.kind), w.kind, w.key, w.value) for w in batch.stored)
        deleted = ((self._place(w.kind), w.kind, w.key) for w in batch.deleted)
        with self._transaction():
            self._require_fence()
            self._connection.executemany(_STORE, stored)
            self._connection.executemany(_DELETE, deleted)
            if mark != self._mark:
                self._connection.execute(_MARK, (*mark, self._id))
        self.number = mark.number
        if mark != self._mark:
            self._mark = mark
            self._drop_anchor()

    def _empty_log(self) -> None:
        """Before anything is sent: the log still has what was deleted, and the file only zeros in its place."""
        with self._explaining("write"):
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise PassingFault(
                f"cannot empty the log of {self.path}", "another process is reading it"
            )

    def _require_fence(self) -> None:
        """A process that opened the store after us has raised the fence: what we remember may be outdated."""
        (fence,) = self._connection.execute(_FENCE, (self._id,)).fetchone()
        if fence != self._fence:
            raise StorageError(
                f"{self.path} was opened by another process since: this one must stop"
            )

    def _drop_anchor(self) -> None:
        """Note the mark outside the store. If that fails, nothing may be sent before the next start."""
        try:
            self._anchor.write(self._mark)
        except StorageError:
            self.close()
            raise

    # --- opening and closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file and give back the locks."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Show which store, never what is in it."""
        return f"ParticipantStore({str(self.path)!r}, {self.namespace!r})"

    def _connect(self) -> sqlite3.Connection:
        disk.make_private(self.path)
        with self._explaining("open"):
            connection = sqlite3.connect(self.path)
            try:
                disk.configure_sqlite(connection, *PARTICIPANT_FILE)
            except BaseException:
                connection.close()
                raise
        return connection

    def _begin(self) -> tuple[int, Mark, int]:
        """The namespace's number, mark and fence; a new one starts a life of its own."""
        with self._transaction():
            self._require_schema()
            row = self._connection.execute(
                "INSERT INTO namespaces (name, lineage, counter, number, fence) VALUES (?, ?, 0, 0, 0)"
                " ON CONFLICT (name) DO UPDATE SET fence = fence + 1"
                " RETURNING id, lineage, counter, number, fence",
                (self.namespace, os.urandom(LINEAGE_BYTES)),
            ).fetchone()
        return row[0], Mark(*row[1:4]), row[4]

    def _require_schema(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and tables == 0:
            for statement in _SCHEMA:
                self._connection.execute(statement)
        elif version != SCHEMA_VERSION:
            raise wrong_schema(str(self.path), version, SCHEMA_VERSION)

    def _is_older_copy(self) -> bool:
        if self._anchor.mark is None:
            is_used = self._mark.counter > 0 or bool(self._fetch(_FIRST, self._id))
            return is_used or not self._anchor.is_new
        return not self._anchor.mark.precedes(self._mark)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Carry out everything in the block, or nothing, whatever interrupts it."""
        with self._explaining("write"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself gives up some failed ones
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explaining(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(f"cannot {action} {self.path}", error) from None


def _destroys(write: Write) -> bool:
    """Whether a secret goes: it is deleted, or a mask is written over for good, without its seed."""
    if isinstance(write, Persist):
        return write.irreversible and write.kind == "mask"
    return write.kind in _SECRET_KINDS and not write.harmless
