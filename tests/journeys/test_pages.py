"""Each page is walked from its first command to its last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import WALKS
from private_postgres import find_binaries, running_postgres
from traveller import Traveller

QUICK = ("docs/how-to/audit.md",)
"""Pages whose walk takes seconds; these are walked in `make test` too."""


@pytest.fixture
def any_database() -> Iterator[str]:
    """The best database that this machine has: PostgreSQL, or a file for SQLite."""
    if find_binaries():
        with running_postgres() as server:
            yield server.url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder, 'server.db')}"


@pytest.mark.parametrize("page", QUICK)
def test_a_quick_page(page: str, traveller: Traveller) -> None:
    WALKS[page].make(page, traveller, "")


@pytest.mark.journey
@pytest.mark.parametrize("page", WALKS)
def test_a_page(
    page: str, traveller: Traveller, any_database: str, figures: dict[str, Any]
) -> None:
    figures["commands"] = len(WALKS[page].steps)
    WALKS[page].make(page, traveller, any_database)
