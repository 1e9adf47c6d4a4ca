"""A server's database of an older schema: all its records stay, and their owners learn what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from basecagg.errors import LeaseLost, StorageError, StoreInUse
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage import server
from basecagg.storage.server import OLDER_SCHEMA, ServerStore

NAMES = ("epoch:a%_b", "epoch:c", "service")


def sql(url: str, statement: str) -> Any:
    engine = create_engine(url)
    with engine.begin() as connection:
        result = connection.execute(text(statement))
        found = result.scalar() if result.returns_rows else None
    engine.dispose()
    return found


def set_version(url: str, version: int) -> None:
    sql(url, f"UPDATE basecagg_schema SET version = {version}")


def records(url: str) -> dict[str, tuple[bytes | None, bool]]:
    found = {}
    for name in NAMES:
        store = ServerStore(url, name)
        found[name] = store.read("kind", "key"), store.read(OLDER_SCHEMA, "") is not None
        store.close()
    return found


def test_records_stay_and_are_marked_once(url: str) -> None:
    for name in NAMES:
        store = ServerStore(url, name)
        store.commit([Persist("kind", "key", name.encode())])
        store.close()
    assert records(url) == {name: (name.encode(), False) for name in NAMES}  # the control
    set_version(url, server._OLDER)
    assert records(url) == {name: (name.encode(), True) for name in NAMES}
    store = ServerStore(url, "service")
    assert store.namespaces("epoch:") == ["epoch:a%_b", "epoch:c"]
    assert store.namespaces("epoch:a%_") == ["epoch:a%_b"]
    assert store.namespaces("epoch:a%c") == []
    store.commit([Forget(OLDER_SCHEMA, "")])
    store.close()
    assert records(url)["service"] == (b"service", False)


def test_schemas_before_that_and_later_ones_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'server.db'}"
    ServerStore(url).close()
    for version, remedy in ((server._OLDER - 1, "fresh database"), (99, "upgrade basecagg")):
        set_version(url, version)
        with pytest.raises(StorageError, match=remedy):
            ServerStore(url)


@pytest.mark.parametrize("newcomer", ["service", "another"])
def test_nobody_changes_a_database_while_somebody_writes_to_it(url: str, newcomer: str) -> None:
    """A second server of a newer version, or a standby of one, comes while the first is at work."""
    written = [Persist("kind", "key", b"written")]
    primary = {name: ServerStore(url, name) for name in NAMES}
    set_version(url, server._OLDER)
    with pytest.raises(StoreInUse):
        ServerStore(url, newcomer)
    assert sql(url, "SELECT version FROM basecagg_schema") == server._OLDER
    for store in primary.values():
        assert store.read(OLDER_SCHEMA, "") is None
        store.commit(written)
        store.close()
    assert records(url) == dict.fromkeys(NAMES, (b"written", True))  # now it may


def test_whoever_slept_meanwhile_writes_nothing_into_a_changed_database(url: str) -> None:
    """Not even to a namespace that nobody has asked for since."""
    sleepers = [ServerStore(url, name) for name in NAMES]
    set_version(url, server._OLDER)
    sql(url, "UPDATE basecagg_lease SET heartbeat = heartbeat - 1000")
    ServerStore(url, "service").close()
    assert sql(url, "SELECT version FROM basecagg_schema") == server.SCHEMA_VERSION
    for store in sleepers:
        with pytest.raises(LeaseLost):
            store.commit([Persist("kind", "key", b"late")])
        store.close()
    assert records(url) == dict.fromkeys(NAMES, (None, False))
