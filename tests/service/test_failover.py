"""Two servers on one PostgreSQL: when one is killed the other goes on; one that slept too long is harmless."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos_check import violations
from chaos_processes import NAMES, Chaos
from ground_results import keep
from private_postgres import Postgres, running_postgres

from basecagg.service import connection
from free_ports import free_port

KILLS, SLEEP = 20, 60.0
SERVERS = ("server-a", "server-b")
PATIENCE = 3.0
"""Seconds after which nobody waits any longer for a server that sleeps; by default it is a minute."""
HURRY = f"""
from basecagg.service import connection
from basecagg.service.agent import agent
connection._GRACE = connection._CONNECT = {PATIENCE}
agent._WAIT = {PATIENCE:.0f}
"""


class Pair(Chaos):
    """Two servers, each on what looks like a machine of its own if we are root enough."""

    def __init__(self, folder: Path, postgres: Postgres, *, apart: bool) -> None:
        second = free_port()
        super().__init__(folder, postgres.url, [f"https://127.0.0.1:{second}"])
        self._ports = {"server-a": self._port, "server-b": second}
        self._postgres = postgres
        self._apart = apart
        tls = ssl.create_default_context(cafile=folder / "operator" / "ca.pem")
        self._watcher = httpx.AsyncClient(verify=tls, timeout=2.0)
        self.active = "server-a"

    @property
    def other(self) -> str:
        return next(name for name in SERVERS if name != self.active)

    async def end(self) -> None:
        await self._watcher.aclose()
        await super().end()

    def start_server(self) -> None:
        self.start_one("server-a")

    def start_one(self, name: str) -> None:
        """As its unit would: whoever comes second stands by."""
        self._port = self._ports[name]
        code = "from basecagg.commands.serve import command; command()"
        anchors = ("--anchors", f"anchors-{name}", "--standby")
        before = ["unshare", "--pid", "--fork", "--kill-child"] if self._apart else []
        self.run(name, *before, sys.executable, "-c", code, *self.server_arguments(), *anchors)

    async def stand_by(self, name: str) -> None:
        """Start one, and wait until it looks on."""
        seen = self.log(name).count("standing by")
        self.start_one(name)
        async with asyncio.timeout(60):
            while self.log(name).count("standing by") == seen:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    async def until_serving(self, name: str) -> float:
        began = time.monotonic()
        async with asyncio.timeout(60):
            while not await self._is_ready(name):
                await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def _is_ready(self, name: str) -> bool:
        try:
            reply = await self._watcher.get(f"https://127.0.0.1:{self._ports[name]}/readyz")
        except httpx.HTTPError:
            return False
        return reply.status_code == 200

    async def fail_over(self) -> dict[str, Any]:
        """kill -9 the one that serves: how long until the other does, and until there are new versions."""
        last = max(self.versions)
        self.kill(self.active)
        killed, self.active = self.active, self.other
        serving = await self.until_serving(self.active)
        await self.reach(last + 2, 90)
        await self.stand_by(killed)
        return {"killed": killed, "seconds_to_serving": round(serving, 1), "version": last}

    async def sleep_through(self, seconds: float) -> None:
        """Stop the one that serves until the other has taken over, then wake it: it ends and says why."""
        last, sleeper = max(self.versions), self.active
        self._signal(sleeper, signal.SIGSTOP)
        self.active = self.other
        if not seconds:
            self._let_time_pass()
        await self.until_serving(self.active)
        await self.reach(last + 2, 120)
        await asyncio.sleep(seconds)
        self._signal(sleeper, signal.SIGCONT)
        process = self.processes.pop(sleeper)
        assert await asyncio.to_thread(process.wait, 60) != 0
        assert "belongs to another process" in self.log(sleeper)
        assert not await self._is_ready(sleeper)
        await self.reach(max(self.versions) + 1, 60)

    def _let_time_pass(self) -> None:
        """Unless it was stopped while it wrote, and has the row locked: then it really has to."""
        from psycopg.errors import LockNotAvailable

        with self._postgres.connect() as connection, suppress(LockNotAvailable):
            connection.execute("SET lock_timeout = '1s'")
            connection.execute("UPDATE basecagg_lease SET heartbeat = heartbeat - 100")

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self.processes[name].pid
        inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if self._apart else []
        os.kill(int(inner[0]) if inner else pid, number)


async def story(
    scene: Pair,
    folder: Path,
    kills: int,
    asleep: float,
    hurry: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """`hurry` is called when everybody is there: before, all start at once, and answers take their time."""
    found = []
    try:
        await scene.begin()
        hurry()
        await scene.stand_by("server-b")
        await scene.reach(2, 90)
        for _ in range(kills):
            found.append(await scene.fail_over())
        await scene.sleep_through(asleep)
    finally:
        await scene.end()
    assert scene.versions == sorted(scene.versions)
    users = [folder / name for name in NAMES]
    assert violations(scene.database, users, folder / "anchors") == []
    for name in SERVERS:
        assert "older copy" not in scene.log(name)  # nobody had to ask the holders
    return found


def test_the_other_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry() -> None:
        for wait in ("_GRACE", "_CONNECT"):
            monkeypatch.setattr(connection, wait, PATIENCE)  # the operator's

    monkeypatch.setattr(Pair, "prelude", HURRY)
    with running_postgres() as postgres:
        asyncio.run(story(Pair(tmp_path, postgres, apart=False), tmp_path, 1, 0.0, hurry))


@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("unshare") or os.getuid() != 0, reason="needs namespaces")
def test_the_other_server_goes_on_twenty_times(tmp_path: Path) -> None:
    """As on two machines, where nobody can see that the other's process is gone: the lease has to run out."""
    with running_postgres() as postgres:
        found = asyncio.run(story(Pair(tmp_path, postgres, apart=True), tmp_path, KILLS, SLEEP))
    assert len(found) == KILLS
    keep("fail-over", found)
