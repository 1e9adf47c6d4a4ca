"""A whole service restored from a backup: it goes on with another key in another epoch, unconvicted."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from service_harness import GIVE_UP, SMALL, Federation, Nudge, federation
from test_lying_server import MANY, PEOPLE, Lies, announced, office

from basecagg.channels.identity import Identity
from basecagg.commands.serve import command
from basecagg.errors import DataError
from basecagg.service.documents import from_json
from basecagg.service.handed_over import ServerFolder, renew_server_key
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


async def back_up(fed: Federation) -> Path:
    """A copy of the database, as its own tool makes one."""
    copy = fed.folder / "backup.db"
    source = fed.options.folder / "server.db"
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
        new.execute("UPDATE basecagg_lease SET owner = ''")
        new.commit()
    return copy


async def restore(fed: Federation, copy: Path) -> None:
    await fed.stop_server()
    for path in fed.options.folder.glob("server.db*"):
        path.unlink()
    shutil.copy(copy, fed.options.folder / "server.db")
    await fed.start_server()


async def trouble(fed: Federation) -> str:
    return (await fed.operator.look()).trouble


async def readiness(fed: Federation) -> dict[str, str]:
    """What the server says when it is ready: a disk may be busy before."""
    replies: list[httpx.Response] = []
    async with httpx.AsyncClient(base_url=fed.url, verify=fed.tls, timeout=GIVE_UP) as client:

        async def is_ready() -> bool:
            replies.append(await client.get("/readyz"))
            return replies[-1].status_code == 200

        await fed.until(is_ready)
    said: dict[str, str] = replies[-1].json()
    return said


async def test_a_restored_service_goes_on_with_another_key(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        await fed.join(NAMES, lambda name: Nudge(seconds=0.05))
        await fed.start_epoch()
        await fed.reach(1)
        copy = await back_up(fed)
        await fed.reach(4)
        await restore(fed, copy)

        async def is_known() -> bool:
            return "holders saw more than it knows" in await trouble(fed)

        await fed.until(is_known)
        stuck = await fed.version()
        assert stuck < 4
        said = await readiness(fed)
        assert said["phase"] == "open"
        assert "serve --new-key" in said["trouble"]
        first = fed.operator.epoch
        assert first is not None
        # The way on: another key, another epoch.
        await fed.stop_server()
        key = renew_server_key(fed.options.folder)
        await fed.start_server()
        assert await fed.version() == stuck
        await fed.close_epoch()
        await fed.operator.end_epoch()

        async def keys_are_there() -> bool:
            await fed.operator.look()
            return not fed.operator.machine.missing()

        await fed.until(keys_are_there)
        second = await fed.operator.start(SMALL, server_key=key)
        assert (second.number, second.server_key) == (first.number + 1, key)
        assert second.server_key != first.server_key
        assert await trouble(fed) == ""
        # Agents that caught it would end, which `reach` notices.
        await fed.reach(stuck + 2)
        assert not list(tmp_path.glob("*/evidence-*"))


# --- the server's key --------------------------------------------------------------------------------


def test_the_command_makes_a_key_and_keeps_the_former_one(tmp_path: Path) -> None:
    folder = create(tmp_path / "op", "test", "https://test", anchor_folder=tmp_path / "anchors")
    former = read_folder(folder)
    said = CliRunner().invoke(command, ["--state", str(folder), "--new-key"])
    assert said.exit_code == 0, said.output
    now = read_folder(folder)
    assert Identity.from_secret(now.server).public_key.hex() in said.output
    assert now.former == (former.server,)
    assert (now.page_token, now.operator_key) == (former.page_token, former.operator_key)


async def test_a_standby_without_the_new_key_says_which_file_to_copy(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        path = fed.options.folder / "server.json"
        before = path.read_bytes()
        made = CliRunner().invoke(command, ["--state", str(path.parent), "--new-key"])
        key = made.stdout.strip()
        assert str(path) in made.stderr  # to be copied
        assert f"basecagg operator rotate --server-key {key}" in made.stderr
        await fed.stop_server()
        await fed.start_server()
        await fed.join(NAMES, lambda name: Nudge(seconds=0.05))
        await fed.operator.set_model(np.zeros(SMALL.model_size, "<f4"))
        await fed.operator.start(SMALL, server_key=bytes.fromhex(key))
        await fed.reach(1)
        await fed.stop_server()
        after = path.read_bytes()
        path.write_bytes(before)  # as the other machine has it, which takes over
        with pytest.raises(DataError, match=rf"{key}.*copy server\.json"):
            await fed.start_server()
        path.write_bytes(after)  # the way on, and the control
        await fed.start_server()
        await fed.reach(2)


def read_folder(folder: Path) -> ServerFolder:
    return from_json((folder / "server.json").read_bytes(), ServerFolder)


async def test_the_operator_remembers_the_servers_key(tmp_path: Path) -> None:
    """An epoch with the former key is not the one that is wished for, though all else is the same."""
    lies = Lies({name: announced(name) for name in PEOPLE})
    fresh = Identity.create().public_key
    async with office(tmp_path, lies) as operator:
        first = await operator.start(MANY)
        assert await operator.start(MANY) == first
        lies.keys = {name: announced(name) for name in PEOPLE}
        second = await operator.start(MANY, server_key=fresh)
        assert (second.number, second.server_key) == (2, fresh)
    again = Office(tmp_path / "op", tmp_path / "anchors")
    again.line._client = httpx.AsyncClient(
        base_url="https://test", transport=httpx.MockTransport(lies)
    )
    assert await again.start(MANY) == second
    again.close()
