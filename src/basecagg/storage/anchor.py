"""A counter kept outside a store, so that an older copy of the store gives itself away.

The store commits counter n + 1, then the anchor takes n + 1, then the driver may send. A crash in between
leaves the anchor one behind, which is harmless: nothing was sent. Any other difference shows an older copy.

The anchor's name comes from the store's path and namespace, not from anything inside the store: a deleted
store, which is the oldest copy of all, is noticed too. It is never removed, and backups must leave it out.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from basecagg.errors import DataError
from basecagg.storage import disk
from basecagg.storage.failures import explain

# Two slots, written in turn, a disk block apart: a write that is cut short spoils its own slot only.
_SLOTS = (0, 4096)
_BODY = struct.Struct("<8s16sQQ")
_MAGIC = b"basecagB"
_CHECKSUM = 32
LINEAGE_BYTES = 16
_ELSEWHERE = "choose another folder for anchors (--anchors, or set XDG_STATE_HOME)"


class Mark(NamedTuple):
    """A point in the life of a store."""

    lineage: bytes
    """16 random bytes, drawn when that life began."""
    counter: int
    """Irreversible commits so far."""
    number: int = 0
    """The highest number that the store was ever told to remember: of an epoch that was joined or signed."""

    def precedes(self, store: Self) -> bool:
        """Whether this is what the anchor of such a store says: the same, or one commit less after a crash."""
        return self.lineage == store.lineage and 0 <= store.counter - self.counter <= 1


def next_mark(store: Mark, anchor: Mark | None, *, rolled_back: bool, number: int = 0) -> Mark:
    """The mark after an irreversible commit. An older copy that goes on begins a life of its own.

    Then every other copy is an old one, wherever it comes back.
    """
    if not rolled_back:
        return Mark(store.lineage, store.counter + 1, number)
    last = store.counter if anchor is None else max(store.counter, anchor.counter)
    return Mark(os.urandom(LINEAGE_BYTES), last + 1, number)


class Anchor:
    """The last mark of one store. While it is locked nobody else can open it, so no machine runs twice."""

    def __init__(self, path: Path, *, lock: bool = True) -> None:
        """Open the file, or create it empty, and lock it unless something else keeps others out."""
        self.path = path
        with self._explaining(f"opened: {_ELSEWHERE}"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if lock:
                with self._explaining("locked: a machine with this store is running already"):
                    disk.lock(self._descriptor)
            with self._explaining("read"):
                disk.sync_folder(path.parent)
                marks = [self._read(slot) for slot in _SLOTS]
        except BaseException:
            self.close()
            raise
        counters = [-1 if mark is None else mark.counter for mark in marks]
        self._newest = counters.index(max(counters))
        self.mark = marks[self._newest]
        """The newest mark that was completely written, or None when there is none."""
        self.is_new = os.fstat(self._descriptor).st_size == 0

    def write(self, mark: Mark) -> None:
        """Put the mark on the disk before returning. The newest one so far stays until that is done."""
        body = _BODY.pack(_MAGIC, *mark)
        other = 1 - self._newest
        with self._explaining("written: nothing may be sent"):
            os.lseek(self._descriptor, _SLOTS[other], os.SEEK_SET)
            os.write(self._descriptor, body + hashlib.sha256(body).digest())
            disk.sync(self._descriptor)
        self._newest, self.mark = other, mark

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._descriptor)

    def _read(self, slot: int) -> Mark | None:
        os.lseek(self._descriptor, slot, os.SEEK_SET)
        record = os.read(self._descriptor, _BODY.size + _CHECKSUM)
        body, checksum = record[: _BODY.size], record[_BODY.size :]
        if checksum != hashlib.sha256(body).digest():
            return None
        magic, *mark = _BODY.unpack(body)
        return Mark(*mark) if magic == _MAGIC else None

    @contextmanager
    def _explaining(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explain(f"the anchor {self.path} cannot be {action}", error) from None


def default_folder() -> Path:
    """Where anchors are kept: the user's state, which belongs to this machine alone."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise DataError(f"nobody knows where your home is: {_ELSEWHERE}") from None
    return Path(state) / "basecagg" / "anchors"


def name_of(store: Path, namespace: str) -> str:
    """The file name of the anchor of a store at this path."""
    place = os.fsencode(store.resolve()) + b"\0" + namespace.encode()
    return f"{hashlib.sha256(place).hexdigest()[:32]}.anchor"
