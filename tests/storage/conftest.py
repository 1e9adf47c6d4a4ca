"""Fixtures for the stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from store_kinds import DURABLE, KINDS, StoreKind

from basecagg.storage import sqlite


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
        monkeypatch.setattr(sqlite, "PRAGMAS", (*sqlite.PRAGMAS, *pragmas))

    return set_them
