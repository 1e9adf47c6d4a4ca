"""The server's store on other databases, and what it says of its address."""

from __future__ import annotations

import os

import pytest
from store_kinds import sql

from basecagg.errors import StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage.database import Database
from basecagg.storage.server_store import SCHEMA_VERSION, ServerStore


@pytest.mark.parametrize("url", ["", "store.db", "sqlite:/store.db"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(StorageError, match="write sqlite:///server"):
        ServerStore(url)


def test_other_databases_are_refused():
    with pytest.raises(StorageError, match="sqlite or postgresql, not on mysql") as caught:
        ServerStore("mysql://admin:password@host/db")
    assert "password" not in str(caught.value)


def test_no_password_is_shown():
    pytest.importorskip("psycopg")
    shown = repr(Database("postgresql+psycopg://admin:p%40ss@host:5432/db"))
    assert shown == "postgresql+psycopg://admin:***@host:5432/db"


def test_an_address_that_the_driver_cannot_read_is_an_error():
    pytest.importorskip("psycopg")
    with pytest.raises(StorageError, match="cannot open postgresql://admin") as caught:
        ServerStore("postgresql://admin:password@host/db?no_such_word=1")
    assert "password" not in str(caught.value)


def test_the_address_has_the_last_word_on_how_long_to_wait(postgres):
    database = Database(f"{postgres}&connect_timeout=7&options=-c%20statement_timeout%3D9s")
    with database.transaction("look"):
        assert database.execute("SHOW statement_timeout").fetchone()[0] == "9s"
        idle = database.execute("SHOW idle_in_transaction_session_timeout").fetchone()[0]
    assert idle == "0"
    database.close()


def test_namespaces_are_found_by_how_they_begin(url):
    for name in ("epoch:a%_b", "epoch:c", "service"):
        with ServerStore(url, name) as store:
            store.commit([Persist("kind", "key", b"")])
    with ServerStore(url) as store:
        assert store.namespaces("epoch:") == ["epoch:a%_b", "epoch:c"]
        assert store.namespaces("epoch:a%_") == ["epoch:a%_b"]
        assert store.namespaces("epoch:a%c") == []


def test_databases_of_other_versions_are_refused(url):
    ServerStore(url).close()
    for version, remedy in ((SCHEMA_VERSION - 1, "0.2 or later"), (99, "upgrade basecagg")):
        sql(url, f"UPDATE basecagg_schema SET version = {version}")
        with pytest.raises(StorageError, match=remedy):
            ServerStore(url)


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
