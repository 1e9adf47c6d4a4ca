"""A federation of real processes whose ground fails: disk, database and clock, at a chosen moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from chaos_processes import NAMES, Chaos
from private_postgres import Postgres

STAGES = ("idle", "dealing", "uploading", "certifying", "answering", "opening")
SCORED = ("--evaluate", "chaos_training:score")
LASTS = 2.5
"""Seconds for which a fault stays, at least."""
WATCH = 60.0
"""Seconds for which it stays at most, however slow the machine is."""


def may_mount() -> bool:
    """Whether we are root enough."""
    if os.getuid() != 0:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(probe, check=False).returncode


MAY_MOUNT = may_mount()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A disk that can be filled: a tmpfs, where we may mount one."""
    folder.mkdir(mode=0o755)
    if not MAY_MOUNT:
        yield folder
        return
    size = f"size={megabytes}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class Ground(Chaos):
    """A federation whose server stops where it is told to, and stands on a small disk."""

    def __init__(self, folder: Path, disk: Path, postgres: Postgres | None = None) -> None:
        self.disk = disk
        self.postgres = postgres
        url = f"sqlite:///{disk / 'server.db'}" if postgres is None else postgres.url
        super().__init__(folder, url)
        self.switches = folder / "switches"
        self.switches.mkdir()
        tls = ssl.create_default_context(cafile=folder / "operator" / "ca.pem")
        self._watcher = httpx.AsyncClient(base_url=self.server_url, verify=tls, timeout=30.0)

    async def end(self) -> None:
        await self._watcher.aclose()
        await super().end()

    def start_server(self) -> None:
        staged = Path(__file__).parent / "staged_server.py"
        command = [sys.executable, str(staged), str(self.switches), *self.server_arguments()]
        self.run("server", *command, "--anchors", "anchors", *SCORED)

    # --- moments ----------------------------------------------------------------------------------

    async def stop_at(self, stage: str) -> None:
        """Wait until the server is inside the transaction of such a moment."""
        if stage == "idle":
            self.signal_users(signal.SIGSTOP)
        if self.postgres is None:
            self._use_up_log()
        (self.switches / "at").write_text(stage)
        async with asyncio.timeout(90):
            while not (self.switches / "reached").exists():
                await asyncio.sleep(0.02)
        (self.switches / "reached").unlink()

    def go(self) -> None:
        (self.switches / "go").touch()
        self.signal_users(signal.SIGCONT)

    def signal_users(self, number: signal.Signals) -> None:
        for name in NAMES:
            self.processes[name].send_signal(number)

    def _use_up_log(self) -> None:
        """SQLite writes into old room of its log first: with none left a full disk is felt at once."""
        with sqlite3.connect(self.disk / "server.db", timeout=20) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    # --- what the server says ---------------------------------------------------------------------

    async def ask(self, path: str) -> tuple[int, float]:
        """The status, 0 for none, and how long it took."""
        began = time.monotonic()
        try:
            status = (await self._watcher.get(path)).status_code
        except httpx.HTTPError:
            status = 0
        return status, time.monotonic() - began

    async def watch(self, seconds: float, is_felt: bool) -> Watched:
        """Ask for health and readiness again and again: for so long, and until there is enough to judge by."""
        end, watched = time.monotonic() + seconds, Watched()
        with suppress(TimeoutError):  # what is missing then is told by `judge`
            async with asyncio.timeout(WATCH):
                while time.monotonic() < end or not watched.is_enough(is_felt):
                    await self._look(watched)
                    await asyncio.sleep(0.1)
        return watched

    async def _look(self, watched: Watched) -> None:
        for path, seen in (("/healthz", watched.health), ("/readyz", watched.ready)):
            status, took = await self.ask(path)
            seen.append(status)
            watched.slowest = max(watched.slowest, took)

    async def until_ready(self, seconds: float) -> float:
        began = time.monotonic()
        async with asyncio.timeout(seconds):
            while (await self.ask("/readyz"))[0] != 200:
                assert self.processes["server"].poll() is None, self.log("server")
                await asyncio.sleep(0.05)
        return time.monotonic() - began

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


class Watched:
    """What was said while a fault lasted."""

    def __init__(self) -> None:
        self.health: list[int] = []
        self.ready: list[int] = []
        self.slowest = 0.0

    @property
    def was_heard(self) -> bool:
        """Whether both were really answered some times."""
        answers = ([status for status in seen if status] for seen in (self.health, self.ready))
        return min(map(len, answers)) >= 3

    def is_enough(self, is_felt: bool) -> bool:
        return self.was_heard and (not is_felt or 503 in self.ready)


# --- faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and how it ends."""

    name: str
    begin: Callable[[Ground], None]
    end: Callable[[Ground], None]
    is_felt: bool = True
    """Whether the server cannot be ready meanwhile."""


def _switch(name: str, *, content: str = "", felt: bool = True) -> Fault:
    """Faults that only the server's own process can be made to see."""
    file = "clock" if content else name

    def begin(ground: Ground) -> None:
        (ground.switches / file).write_text(content)

    def end(ground: Ground) -> None:
        (ground.switches / file).unlink()

    return Fault(name.replace("-", " "), begin, end, felt)


def fill(disk: Path) -> None:
    """Leave not a byte."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _free(ground: Ground) -> None:
    (ground.disk / "filler").unlink()


def _free_and_start(ground: Ground) -> None:
    """A database that ran out of disk ends; whoever watches it starts it again."""
    _free(ground)
    assert ground.postgres is not None
    ground.postgres.stop(signal.SIGQUIT)
    ground.postgres.start()


def _of_database(action: Callable[[Postgres], object]) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        assert ground.postgres is not None
        action(ground.postgres)

    return act


CLOCK = (
    _switch("clock a day ahead", content="86400", felt=False),
    _switch("clock a day back", content="-86400", felt=False),
)
ON_SQLITE = (
    Fault("disk full", lambda ground: fill(ground.disk), _free)
    if MAY_MOUNT
    else _switch("disk-full"),
    _switch("read-only-disk"),
    _switch("failing-disk"),
    _switch("slow-disk", felt=False),
    *CLOCK,
)
ON_POSTGRESQL = (
    Fault(
        "database gone",
        _of_database(lambda p: p.stop(signal.SIGQUIT)),
        _of_database(lambda p: p.start()),
    ),
    Fault(
        "connection cut",
        _of_database(lambda p: p.cut_connections()),
        lambda ground: None,
        is_felt=False,
    ),
    Fault(
        "database frozen",
        _of_database(lambda p: p.signal_all(signal.SIGSTOP)),
        _of_database(lambda p: p.signal_all(signal.SIGCONT)),
    ),
    # Not always felt: PostgreSQL writes into files that it has put aside until those are used up.
    *(
        [Fault("disk full", lambda g: fill(g.disk), _free_and_start, is_felt=False)]
        if MAY_MOUNT
        else []
    ),
    *CLOCK,
)


# --- a cell of the matrix -----------------------------------------------------------------------------


async def cell(ground: Ground, fault: Fault, stage: str, lasts: float = LASTS) -> dict[str, Any]:
    """One fault at one moment: what the server said meanwhile, and how long it took to be back."""
    last = max(ground.versions)
    await ground.stop_at(stage)
    fault.begin(ground)
    ground.go()
    try:
        watched = await ground.watch(lasts, fault.is_felt)
    finally:
        fault.end(ground)
    ready = await ground.until_ready(60)
    began = time.monotonic()
    await ground.reach(last + 3, 120)
    return {
        "database": "SQLite" if ground.postgres is None else "PostgreSQL",
        "fault": fault.name,
        "moment": stage,
        "healthy": watched.was_heard and set(watched.health) == {200},
        "unready": 503 in watched.ready,
        "felt": fault.is_felt,
        "slowest_answer": round(watched.slowest, 2),
        "seconds_to_ready": round(ready, 1),
        "seconds_to_versions": round(time.monotonic() - began, 1),
        "same_process": ground.processes["server"].poll() is None,
    }


def judge(found: dict[str, Any]) -> list[str]:
    """What is wrong with a cell, in words."""
    wrong = {
        "healthz was not 200 all the time": not found["healthy"],
        "readyz never said 503": found["felt"] and not found["unready"],
        "the server ended": not found["same_process"],
    }
    return [what for what, is_so in wrong.items() if is_so]
