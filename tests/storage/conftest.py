"""Fixtures for the stores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_kinds import DURABLE, KINDS, StoreKind, sql

from basecagg.storage import disk

sys.path.insert(0, str(Path(__file__).parent.parent / "service"))
from private_postgres import private_postgres


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """Each of the three stores."""
    return request.param


@pytest.fixture(params=DURABLE, ids=str)
def durable(request: pytest.FixtureRequest) -> StoreKind:
    """Each of the stores that are files."""
    return request.param


@pytest.fixture
def set_pragmas(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Add pragmas to those of every connection opened from now on."""

    def set_them(*pragmas: str) -> None:
        monkeypatch.setattr(disk, "PRAGMAS", (*disk.PRAGMAS, *pragmas))

    return set_them


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server for all tests of a process."""
    with private_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database for a server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    url = request.getfixturevalue("postgres")
    sql(url, "DROP TABLE IF EXISTS basecagg_lease, basecagg_records, basecagg_schema")
    yield url
