"""The server's store on other databases, and what it says of its address."""

from __future__ import annotations

import os

import pytest

from basecagg.errors import StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage.server import ServerStore


@pytest.mark.parametrize("url", ["", "store.db", "sqlite:/store.db"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(StorageError, match="write sqlite:///server"):
        ServerStore(url)


def test_other_databases_are_refused():
    with pytest.raises(StorageError, match="sqlite or postgresql, not on mysql") as caught:
        ServerStore("mysql://admin:password@host/db")
    assert "password" not in str(caught.value)


def test_bulk_is_written_over_bulk_that_goes(tmp_path):
    """Not twice, as zeros in its place and as new pages elsewhere, which is what two transactions write."""
    store, log, size = ServerStore(f"sqlite:///{tmp_path}/s.db"), tmp_path / "s.db-wal", 400_000
    store.commit([Persist("upload", key, os.urandom(size)) for key in ("a", "b", "spare")])
    store.commit([Forget("upload", "spare")])  # free pages that SQLite might take instead

    def written(*commits):
        before = log.stat().st_size
        for writes in commits:
            store.commit(writes)
        return (log.stat().st_size - before) / size

    new = Persist("upload", "c", os.urandom(size))
    assert written([new, Forget("upload", "a")]) < 1.3
    assert store.scan("upload")[1:] == [("c", new.value)]
    assert written([Forget("upload", "b")], [Persist("upload", "d", os.urandom(size))]) > 1.9
    store.close()
