"""One trial: a fork of this process, in which the changed file is imported, runs tests until one fails.

The fork has all libraries in memory, so a trial begins at once. The changed code lives in memory only: no
file is ever changed. A trial may use so much processor time, memory, and time on the clock; one that goes on
for ever, or eats up the memory, has been noticed too.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

LIBRARIES = (
    "anyio",
    "click",
    "httpx",
    "rich.console",
    "rich.pretty",
    "starlette.applications",
    "uvicorn",
    "_hypothesis_pytestplugin",
    "numpy",
    "numba",
    "scipy.stats",
    "msgspec",
    "blake3",
    "nacl.bindings",
    "nacl.signing",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.hazmat.primitives.ciphers.aead",
)
MATHS = ("parameters", "maths.mds_code", "maths.quantization", "maths.randomness")
CLOCK_SECONDS = 900
MEMORY_BYTES = 6 << 30
IMPORTING = "importing"
NO_TESTS = 5
BROKEN = 70
OPTIONS = (
    *("-q", "-m", "not soak and not journey", "-p", "no:cacheprovider"),
    *("--disable-plugin-autoload", "-p", "_hypothesis_pytestplugin"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the fork has the plugins loaded
    "--hypothesis-profile=mutants",
)

Times = dict[str, float]
"""Seconds of each test."""


def warm_up() -> None:
    """Load the libraries, but nothing of basecagg; and look for examples in the same order each time."""
    for name in LIBRARIES:
        importlib.import_module(name)
    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def warm_up_maths() -> None:
    """Load what no other file in scope changes: maths imports none of them."""
    for name in MATHS:
        importlib.import_module(f"basecagg.{name}")


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    result: str
    """'survived', 'killed', 'timeout' or 'crashed'; 'not tried' if the tests did not begin."""
    by: tuple[str, ...] = ()
    """The tests that failed: one, or all if nothing was changed."""
    seconds: float = 0.0
    """Processor time."""
    times: Times = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """Which tests run, and in what order: those that killed often first, then the quick ones."""

    paths: Sequence[str]
    times: Mapping[str, float] = field(default_factory=dict)
    kills: Mapping[str, int] = field(default_factory=dict)
    without: Collection[str] = ()

    def rank(self, test: str) -> tuple[int, float]:
        """Its place: small is early."""
        return -self.kills.get(test, 0), self.times.get(test, 0.0)


@dataclass(frozen=True)
class Change:
    """A file of basecagg, and the code that is to be imported in its place."""

    path: Path
    name: str
    code: str


class Trial:
    """A running fork."""

    def __init__(self, change: Change | None, order: Order, cpu_seconds: int) -> None:
        """Start it."""
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115 - read after the fork has ended
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _child(change, order, cpu_seconds, self._notes.fileno())

    def wait(self) -> Outcome:
        """Let it end, whatever else runs."""
        return self.outcome(*os.wait4(self.pid, 0)[1:])

    def outcome(self, status: int, usage: resource.struct_rusage) -> Outcome:
        """What its end means."""
        with suppress(ProcessLookupError):  # what it started and left behind
            os.killpg(self.pid, signal.SIGKILL)
        self._notes.seek(0)
        notes: dict[str, Any] = json.loads(self._notes.read() or b"{}")
        self._notes.close()
        seconds = round(usage.ru_utime + usage.ru_stime, 2)
        failed = tuple(notes.get("failed", ()))
        return Outcome(_result(status), failed, seconds, notes.get("times", {}))


def _result(status: int) -> str:
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGALRM}
        return "timeout" if slow else "crashed"
    code = os.WEXITSTATUS(status)
    if code in {NO_TESTS, BROKEN}:
        return "not tried"
    return "killed" if code else "survived"


def _child(change: Change | None, order: Order, cpu_seconds: int, notes: int) -> None:
    code = BROKEN
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.alarm(CLOCK_SECONDS)
        log = os.open(
            os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        if change:
            sys.meta_path.insert(0, _Instead(change))
        watch = _Watch(order)
        first = ["-x"] if change else []
        code = int(pytest.main([*OPTIONS, *first, *order.paths], plugins=[watch]))
        with os.fdopen(notes, "w", closefd=False) as file:
            json.dump({"failed": watch.failed, "times": watch.times}, file)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class _Watch:
    """Puts the tests into order; sees which one fails and how long each takes."""

    def __init__(self, order: Order) -> None:
        self.failed: list[str] = []
        self.times: Times = {}
        self._order = order

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._order.without]
        items.sort(key=lambda item: self._order.rank(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times[report.nodeid] = self.times.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"{IMPORTING} {report.nodeid}")


class _Instead(MetaPathFinder):
    """Imports the changed code under the file's own name."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        change = self._change
        if name != change.name:
            return None
        return spec_from_file_location(name, change.path, loader=_Changed(change))


class _Changed(SourceFileLoader):
    def __init__(self, change: Change) -> None:
        super().__init__(change.name, str(change.path))
        self._code = change.code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._code, self.path, "exec", dont_inherit=True)
