"""Two servers on one database: the second is refused, and a first one that was overtaken ends, and says so."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from direct import MemoryEpoch, direct
from service_harness import GIVE_UP, SMALL, Federation, Nudge, federation, stopped_at_last

from basecagg.errors import LeaseLost, StorageError
from basecagg.service.server.serving import running
from free_ports import free_port

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


def overtake(folder: Path) -> None:
    """What a server elsewhere does to the row when it takes over."""
    connection = sqlite3.connect(folder / "server.db", timeout=20)
    with connection:
        connection.execute(
            "UPDATE basecagg_lease SET fence = fence + 1, owner = 'far|7|1|elsewhere|00'"
        )
    connection.close()


async def test_the_second_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        options = replace(fed.options, port=free_port(), wait=0.0)
        with pytest.raises(StorageError, match="in use by process"):
            async with running(options):
                pass
        await fed.begin(NAMES)
        await fed.reach(1)


@pytest.mark.parametrize("with_epoch", [False, True])
async def test_an_idle_server_that_was_overtaken_ends(tmp_path: Path, with_epoch: bool) -> None:
    fed = Federation(tmp_path)
    async with stopped_at_last(fed):
        await fed.start_server()
        if with_epoch:
            await fed.join(NAMES, lambda name: Nudge(seconds=1000))
            await fed.start_epoch()
        overtake(fed.options.folder)
        assert fed._server is not None
        with pytest.raises(LeaseLost, match="belongs to another process"):
            await asyncio.wait_for(asyncio.shield(fed._server), GIVE_UP)
        fed._server = None  # nobody has to stop it


async def test_whoever_was_overtaken_does_not_take_what_the_other_writes_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was asleep wakes with a fault, and goes back to its store while the other writes there."""

    def overtaken(*_: object) -> None:
        raise LeaseLost("'service' belongs to another process")

    def half_written(*_: object) -> None:
        raise StorageError("envelopes are stored, but none of their masks")

    async with direct(tmp_path) as scene:
        scene.service._clock.cancel()
        await scene.service.worker.do(lambda: None)  # what the clock has asked for is done by now
        monkeypatch.setattr(MemoryEpoch, "renew", overtaken)
        monkeypatch.setattr(MemoryEpoch, "scan", half_written)
        with pytest.raises(ZeroDivisionError):
            await scene.service.worker.do(lambda: 1 / 0)
        assert isinstance(scene.service.worker.defect, LeaseLost)


def damage(folder: Path) -> None:
    """What no waiting mends."""
    with sqlite3.connect(folder / "server.db", timeout=20) as connection:
        connection.execute("DROP TABLE basecagg_lease")
    connection.close()


async def is_there(client: httpx.AsyncClient) -> bool:
    try:
        await client.get("/healthz")
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize(
    ("happens", "words"),
    [(overtake, "'service' belongs to another process"), (damage, "cannot write")],
    ids=["overtaken", "damaged"],
)
def test_the_command_says_so_in_one_line_and_ends(
    tmp_path: Path, happens: Callable[[Path], None], words: str
) -> None:
    fed = Federation(tmp_path)
    command = [sys.executable, "-c", "from basecagg.cli import main; main()", "serve"]
    arguments = ["--state", str(fed.options.folder), "--host", "127.0.0.1", "--port", str(fed.port)]
    server = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, env=dict(os.environ))

    async def until_ready() -> None:
        async with httpx.AsyncClient(base_url=fed.url, verify=fed.tls) as client:
            async with asyncio.timeout(GIVE_UP):
                while not await is_there(client):
                    assert server.poll() is None
                    await asyncio.sleep(0.1)

    try:
        asyncio.run(until_ready())
        happens(fed.options.folder)
        _, said = server.communicate(timeout=60)
    finally:
        server.kill()
        server.communicate()
        asyncio.run(fed.operator.line.close())
        fed.operator.close()
    assert server.returncode == 1
    last = json.loads(said.decode().splitlines()[-1])
    assert last["event"] == "ended"
    assert last["reason"].startswith(words)
    assert "Traceback" not in said.decode()
