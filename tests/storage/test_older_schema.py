"""A server's database of an older schema: all its records stay, and their owners learn what they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from basecagg.errors import StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage import server
from basecagg.storage.server import OLDER_SCHEMA, ServerStore

sys.path.insert(0, str(Path(__file__).parent.parent / "service"))
from private_postgres import private_postgres

NAMES = ("epoch:a%_b", "epoch:c", "service")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'server.db'}"
        return
    with private_postgres() as address:
        yield address


def set_version(url: str, version: int) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE basecagg_schema SET version = {version}"))
    engine.dispose()


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
