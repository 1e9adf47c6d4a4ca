"""`join --check` finds what would go wrong, before anybody has joined."""

from __future__ import annotations

import asyncio
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from service_harness import Federation, federation

from basecagg.commands import join
from basecagg.errors import DataError
from basecagg.service.agent import check
from basecagg.service.connection import Greeting
from basecagg.service.handed_over import write_invitation

HERE = Path(__file__).parent


async def look(fed: Federation, name: str, train: str = "user_functions:chatty") -> Result:
    path = fed.folder / f"{name}.invitation"
    arguments = [str(path), "--check", "--train", train, "--state", str(fed.folder / name)]
    return await asyncio.to_thread(partial(CliRunner().invoke, join.command, arguments))


def found(result: Result, word: str) -> list[str]:
    return [line.split()[1] for line in result.output.splitlines() if line.startswith(word)]


def test_it_looks_at_everything_and_joins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)

    async def story() -> None:
        async with federation(tmp_path) as fed:
            write_invitation(tmp_path / "ann.invitation", await fed.invite("ann"))
            good = await look(fed, "ann")
            everything = [
                "invitation",
                "operator",
                "function",
                "disk",
                "server",
                "certificate",
                "clock",
            ]
            assert found(good, "ok") == everything, good.output
            assert good.exit_code == 0
            assert not (tmp_path / "ann").exists()
            assert not (await fed.operator.look()).enrolments
            typo = await look(fed, "ann", "user_functions:chaty")
            assert (found(typo, "BAD"), typo.exit_code) == (["function"], 1)
            await fed.stop_server()
            gone = await look(fed, "ann")
            assert (found(gone, "BAD"), gone.exit_code) == (["server"], 1)
            assert "nobody listens" in gone.output
            late = await fed_invitation_that_is_over(fed)
            assert found(late, "BAD") == ["invitation", "server"]

    async def fed_invitation_that_is_over(fed: Federation) -> Result:
        await fed.start_server()
        late = await fed.operator.invite("bob", "both", days=1e-9)
        await fed.stop_server()
        write_invitation(tmp_path / "bob.invitation", late)
        return await look(fed, "bob")

    asyncio.run(story())


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "are free in" in check._room(tmp_path / "new")
    full = shutil.disk_usage(tmp_path)._replace(free=10 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(DataError, match="10 MiB"):
        check._room(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_is_off_and_a_certificate_that_runs_out_are_found() -> None:
    later = time.time() + 100 * 86_400
    assert check._in_step(Greeting(59_000, later)).startswith("within 59")
    for off in (61_000, -61_000):
        with pytest.raises(DataError, match="61 s off"):
            check._in_step(Greeting(off, later))
    assert "believed" in check._lasting(Greeting(0, later))
    with pytest.raises(DataError, match="in 19 days"):
        check._lasting(Greeting(0, time.time() + 20 * 86_400 - 60))
