"""Programs whose files all go into one folder, and who can be ended with all that they started.

Every process carries a mark in its environment, which its children inherit, even those that leave its
session. So "kill this node" ends all that the node started, and "nobody is left" can be checked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

PROGRAMS = Path(sys.executable).parent
_MARK = "FLOWER_TEST_MEMBER"
_PATIENCE = 1200.0
"""Seconds after which something that should have happened will not; no test asserts a time."""
_FAREWELL = 15.0
T = TypeVar("T")


@contextmanager
def short_folder(inside: Path | None = None) -> Iterator[Path]:
    """A temporary folder with a short name: the sockets of Ray must fit into 107 characters."""
    with tempfile.TemporaryDirectory(prefix="fl-", dir=inside) as name:
        yield Path(name).resolve()


class Processes:
    """Programs by name, with a log each."""

    programs = PROGRAMS
    """Where they are found first."""
    whose: Mapping[str, Any] = {}
    """What `subprocess` is told about the user who starts them: nothing if that is ourselves."""
    surroundings: Mapping[str, str] = os.environ
    """The environment to which the one of these programs is added."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        for name in ("home", "tmp", "logs", "work"):
            (folder / name).mkdir()
        self.environment = {
            **self.surroundings,
            "PATH": os.pathsep.join([str(self.programs), self.surroundings.get("PATH", "")]),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # `flwr run` imports the app where it lies
            **environment,
        }
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a program and call it `name`."""
        with self._log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                command,
                cwd=self.folder / "work",
                env=self.marked(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self.whose,
            )

    def finish(self, name: str) -> str:
        """Wait for its end, which must be a good one; give what it said."""
        status = self._started[name].wait(_PATIENCE)
        assert status == 0, f"{name} ended with {status}:\n{self.said(name)[-3000:]}"
        return self.said(name)

    def is_running(self, name: str) -> bool:
        return self._started[name].poll() is None

    def said(self, name: str) -> str:
        """Its log, in all its lives."""
        log = self._log(name)
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        """Look ten times a second until there is something; give it."""
        deadline = time.monotonic() + _PATIENCE
        while (found := look()) is None:
            assert time.monotonic() < deadline, f"not seen in {_PATIENCE:.0f} s: {what}"
            time.sleep(0.1)
        return found

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Look ten times a second until it has happened."""
        self.wait_for(lambda: happened() or None, what)

    def kill(self, name: str) -> None:
        """End it as a power cut would, with all that it started."""
        while pids := self.members(name):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._started[name].wait(_FAREWELL)

    @contextmanager
    def stopped_at_the_end(self) -> Iterator[None]:
        """Whatever happens, nobody is left."""
        try:
            yield
        finally:
            self._stop()
        assert not self.leftovers()

    def _stop(self) -> None:
        """Ask everybody to end; kill who does not."""
        for process in self._started.values():
            process.terminate()
        deadline = time.monotonic() + _FAREWELL
        while self.leftovers() and time.monotonic() < deadline:
            time.sleep(0.1)
        for name in self._started:
            self.kill(name)

    def members(self, name: str) -> list[int]:
        """It and all that it started, as far as they run."""
        return self._alive(self._mark(name))

    def leftovers(self) -> list[int]:
        """Every process that was started here, or by one that was, and still runs."""
        return self._alive(f"{self.folder}:")

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def marked(self, name: str) -> dict[str, str]:
        """The environment of a program of this name."""
        return self.environment | {_MARK: self._mark(name)}

    def _mark(self, name: str) -> str:
        return f"{self.folder}:{name}:"

    def _alive(self, mark: str) -> list[int]:
        for process in self._started.values():
            process.poll()  # takes note of the dead, who would be zombies otherwise
        wanted = f"{_MARK}={mark}".encode()
        return [pid for pid in _pids() if wanted in _environment_of(pid)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment_of(pid: int) -> bytes:
    """Empty for a zombie, and for a process that is not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
