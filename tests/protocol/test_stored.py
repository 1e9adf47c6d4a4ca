"""Records that cannot be read, are missing or belong elsewhere: typed errors, not surprises."""

import pytest

from basecagg.errors import StorageError
from basecagg.protocol.effects import Persist
from basecagg.protocol.stored import Progress, bind, load, parse, require, write
from basecagg.storage.in_memory import MemoryStore

PROGRESS = Progress(version=3, heads={3: b"h"}, retired=True)


def test_a_record_comes_back():
    written = write("progress", "k", PROGRESS)
    assert (written.kind, written.key, written.irreversible) == ("progress", "k", False)
    assert write("progress", "k", PROGRESS, irreversible=True).irreversible
    store = MemoryStore({"progress": {"k": written.value}})
    assert load(store, "progress", Progress) == {"k": PROGRESS}
    assert parse(require(store, "progress", "k"), Progress) == PROGRESS


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x81\xa7version\xa1x", b"\x80\x80"])
def test_a_damaged_record(value):
    with pytest.raises(StorageError, match="a stored Progress cannot be read"):
        parse(value, Progress)


def test_a_missing_record():
    with pytest.raises(StorageError, match="progress/k is missing"):
        require(MemoryStore(), "progress", "k")


def test_a_store_belongs_to_one_epoch():
    (bound,) = bind(MemoryStore(), b"one")
    assert (bound.kind, bound.key, bound.value) == ("epoch", "", b"one")
    assert isinstance(bound, Persist)
    store = MemoryStore({"epoch": {"": b"one"}})
    assert bind(store, b"one") == []
    with pytest.raises(StorageError, match="open a new one"):
        bind(store, b"other")
