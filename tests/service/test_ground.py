"""Disk, database and clock fail at chosen moments: nothing is lost, and nobody has to help. Real processes."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from chaos_check import violations
from chaos_processes import NAMES
from ground_processes import (
    MAY_MOUNT,
    ON_POSTGRESQL,
    ON_SQLITE,
    STAGES,
    Fault,
    Ground,
    cell,
    fill,
    judge,
    small_disk,
)
from ground_results import keep
from private_postgres import Postgres

Story = Callable[[Ground], Awaitable[None]]


def on_ground(folder: Path, story: Story, *, postgres: bool = False) -> None:
    """Run the story in a federation; then look into all stores."""
    with tempfile.TemporaryDirectory(prefix="ground-of-a-server-") as name:
        Path(name).chmod(0o755)
        with (
            small_disk(Path(name) / "disk", 400 if postgres else 160) as disk,
            small_disk(Path(name) / "agent", 8) as agent_disk,
        ):
            (folder / NAMES[0]).symlink_to(agent_disk)
            database = None
            if postgres:
                (disk / "postgres").mkdir()
                database = Postgres(disk / "postgres")
            try:
                asyncio.run(_whole(folder, Ground(folder, disk, database), story))
            finally:
                if database is not None:
                    database.stop(signal.SIGINT)


async def _whole(folder: Path, ground: Ground, story: Story) -> None:
    try:
        await ground.begin()
        await ground.reach(1, 90)
        await story(ground)
    finally:
        await ground.end()
    assert ground.versions == sorted(ground.versions)
    users = [folder / name for name in NAMES]
    assert violations(ground.database, users, folder / "anchors") == []


def test_a_server_goes_on_after_its_disk_failed_and_stops_when_told_to(tmp_path: Path) -> None:
    async def story(ground: Ground) -> None:
        for fault, stage in ((ON_SQLITE[0], "opening"), (ON_SQLITE[2], "uploading")):
            assert judge(await cell(ground, fault, stage, 1.0)) == []
        if MAY_MOUNT:
            await fill_agents_disk(ground, NAMES[0])
        server = ground.processes["server"]
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, 60) == 0  # though it was scoring models

    on_ground(tmp_path, story)


async def fill_agents_disk(ground: Ground, name: str) -> None:
    """It says so and waits; when there is room it goes on, with its shares and its update."""
    disk = (ground.folder / name).resolve()
    fill(disk)
    await _until_it_says(ground, name, "the disk fails", 0)
    (disk / "filler").unlink()
    await _until_it_says(ground, name, '"event": "update"', len(ground.log(name)))


async def _until_it_says(ground: Ground, name: str, words: str, since: int) -> None:
    async with asyncio.timeout(120):
        while words not in ground.log(name)[since:]:
            assert ground.processes[name].poll() is None, ground.log(name)[-3000:]
            await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "faults"),
    [("SQLite", ON_SQLITE), ("PostgreSQL", ON_POSTGRESQL)],
    ids=["SQLite", "PostgreSQL"],
)
def test_every_fault_at_every_moment(tmp_path: Path, name: str, faults: tuple[Fault, ...]) -> None:
    """Takes three minutes for each database, and writes what the docs show."""

    async def story(ground: Ground) -> None:
        for fault in faults:
            for stage in STAGES:
                found.append(await cell(ground, fault, stage))
                wrong.extend(f"{fault.name}, {stage}: {each}" for each in judge(found[-1]))

    found, wrong = list[dict[str, Any]](), list[str]()
    on_ground(tmp_path, story, postgres=name == "PostgreSQL")
    keep(name, found)
    assert wrong == []
