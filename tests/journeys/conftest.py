"""Who travels, with what; and what a long journey leaves for the page of results."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "service"), str(HERE.parent / "flower")]

from figures import keep  # noqa: E402
from installation import Installation, install  # noqa: E402
from private_postgres import find_binaries, running_postgres  # noqa: E402
from traveller import Traveller  # noqa: E402

from browser import CHROMIUM  # noqa: E402
from processes import short_folder  # noqa: E402

DATABASES = ["SQLite", "PostgreSQL"] if find_binaries() else ["SQLite"]


def pytest_report_header() -> list[str]:
    """What this machine has not is said, and not passed over."""
    postgres = find_binaries() or "not found, these journeys run on SQLite only"
    chromium = CHROMIUM or "not found, nobody looks at the reports"
    return [f"PostgreSQL: {postgres}", f"Chromium: {chromium}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Journeys that ask for a database are made with each that this machine has."""
    if "database" in metafunc.fixturenames:
        metafunc.parametrize("database", DATABASES, indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `basecagg serve` has to be told about it; nothing for SQLite."""
    if request.param == "SQLite":
        yield ""
    else:
        with running_postgres() as server:
            yield f"--database '{server.url}'"


@pytest.fixture(scope="session")
def borrowing() -> Iterator[Installation]:
    """The wheel, with the dependencies that we have here: quick to make."""
    with tempfile.TemporaryDirectory(prefix="journeys-") as place:
        yield install(Path(place), whole=False)


@pytest.fixture(scope="session")
def whole() -> Iterator[Installation]:
    """The wheel and all that it asks for, installed as people install it."""
    with tempfile.TemporaryDirectory(prefix="journeys-") as place:
        yield install(Path(place), whole=True)


@pytest.fixture
def installation(request: pytest.FixtureRequest) -> Installation:
    """Long journeys install everything, short ones the wheel alone."""
    is_long = request.node.get_closest_marker("journey") is not None
    found: Installation = request.getfixturevalue("whole" if is_long else "borrowing")
    return found


@pytest.fixture
def traveller(installation: Installation) -> Iterator[Traveller]:
    with short_folder() as folder:
        somebody = Traveller(folder, installation)
        with somebody.stopped_at_the_end():
            yield somebody


@pytest.fixture
def figures(request: pytest.FixtureRequest, installation: Installation) -> Iterator[dict[str, Any]]:
    """What this journey measures; kept for the page if it is a long one that arrives."""
    measured: dict[str, Any] = {}
    began = time.monotonic()
    yield measured
    seconds = time.monotonic() - began
    report = getattr(request.node, "report", None)
    if request.node.get_closest_marker("journey") and report is not None and report.passed:
        seconds -= measured.get("seconds to install", 0)
        keep(request.node.name, seconds, measured)
        shown = ", ".join(f"{name} {value}" for name, value in measured.items())
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n  {request.node.name}: {seconds:.0f} s; {shown}", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A fixture can see at the end whether its test passed."""
    report = yield
    if report.when == "call":
        item.report = report  # type: ignore[attr-defined]
    return report
