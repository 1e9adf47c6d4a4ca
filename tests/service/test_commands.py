"""The commands: every option explained, mistakes told in words, the keys where they belong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from service_harness import Federation, Nudge, federation

from basecagg.cli import main
from basecagg.commands import join, operator, serve
from basecagg.errors import DataError, StorageError
from basecagg.protocol.global_model import model_hash
from basecagg.service.connection import Unreachable
from basecagg.service.handed_over import read_invitation
from basecagg.service.operator.office import Office


def every_command(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from every_command(inner)


@pytest.mark.parametrize(
    "top", [serve.command, operator.command, join.command], ids=lambda c: c.name
)
def test_every_command_and_option_is_explained(top: click.Command) -> None:
    for command in every_command(top):
        assert command.help, command.name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{command.name} {param.name}"
            else:  # an argument is explained in the command's own text
                assert str(param.name).upper().rstrip("S") in command.help, command.name


@pytest.fixture(autouse=True)
def _own_anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(command: click.Command, *arguments: str):
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


def test_init_makes_both_folders_and_says_what_to_do(tmp_path: Path) -> None:
    folder = str(tmp_path / "op")
    done = run(operator.command, "--folder", folder, "init", "--name", "x", "--url", "https://h:1")
    assert done.exit_code == 0
    assert "basecagg serve --state server" in done.output
    assert (tmp_path / "op" / "server" / "tls.pem").exists()
    out = str(tmp_path / "new")
    more = ("certificate", "--host", "h", "--host", "10.0.0.1", "--out", out)
    assert run(operator.command, "--folder", folder, *more).exit_code == 0
    assert (tmp_path / "new" / "tls.key").exists()


def test_a_federation_has_a_name_that_its_invitations_can_carry(tmp_path: Path) -> None:
    init = ("init", "--name", "ten hospitals", "--url", "https://h:1")
    done = run(operator.command, "--folder", str(tmp_path / "op"), *init)
    assert isinstance(done.exception, DataError)
    assert "'ten hospitals' is no name" in str(done.exception)
    assert not (tmp_path / "op").exists()


def test_without_a_server_the_operator_is_told_so(tmp_path: Path) -> None:
    folder = str(tmp_path / "op")
    run(operator.command, "--folder", folder, "init", "--name", "x", "--url", "https://127.0.0.1:1")
    done = run(operator.command, "--folder", folder, "status")
    assert isinstance(done.exception, Unreachable)
    assert "https://127.0.0.1:1" in str(done.exception)


def test_without_a_folder_the_operator_is_told_so(tmp_path: Path) -> None:
    done = run(operator.command, "--folder", str(tmp_path), "status")
    assert isinstance(done.exception, DataError)
    assert "basecagg operator init" in str(done.exception)


@pytest.mark.parametrize("options", [[], ["--train", "a:b", "--holder-only"]])
def test_a_user_trains_or_only_holds(options: list[str]) -> None:
    done = run(join.command, "x.invitation", *options)
    assert isinstance(done.exception, DataError)
    assert "either" in str(done.exception)


def test_a_server_needs_its_folder(tmp_path: Path) -> None:
    done = run(serve.command, "--state", str(tmp_path / "nowhere"))
    assert done.exit_code == 2


def test_a_server_without_its_certificate_says_which_file(tmp_path: Path) -> None:
    init = ("init", "--name", "x", "--url", "https://h:1")
    run(operator.command, "--folder", str(tmp_path), *init)
    (tmp_path / "server" / "tls.key").unlink()
    done = run(serve.command, "--state", str(tmp_path / "server"), "--port", "0")
    assert isinstance(done.exception, DataError)
    assert "tls.key" in str(done.exception)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    init = ("init", "--name", "x", "--url", "https://h:1")
    done = run(main, "operator", "--folder", str(tmp_path / "file" / "op"), *init)
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {tmp_path / 'file'}")
    assert done.output.count("\n") == 1


# --- the operator's commands against a real server ------------------------------------------------


class Desk:
    """Runs `basecagg operator …` beside the event loop of a federation whose own office is closed."""

    def __init__(self, fed: Federation) -> None:
        self._fed = fed
        fed.operator.close()

    async def __call__(self, *arguments: str, typed: str = ""):
        place = ["--folder", str(self._fed.folder / "operator")]
        place += ["--anchors", str(self._fed.folder / "anchors")]
        work = partial(CliRunner().invoke, operator.command, [*place, *arguments], input=typed)
        return await asyncio.to_thread(work)

    async def reach(self, version: int) -> None:
        """Wait until all have joined and learned something."""
        async with asyncio.timeout(60):
            while True:
                status = (await self("status")).output
                if int(re.search(r"version (\d+)", status)[1]) >= version:  # type: ignore[index]
                    return


async def test_the_life_of_a_federation_in_commands(tmp_path: Path) -> None:
    names = [f"user-{index}" for index in range(7)]
    out = ("--out", str(tmp_path))

    async with federation(tmp_path) as fed:
        desk = Desk(fed)
        assert (await desk("invite", *names, *out)).exit_code == 0
        early = await desk("close")
        assert "no epoch has begun" in str(early.exception)
        for name in names:
            invitation = read_invitation(tmp_path / f"{name}.invitation")
            fed.launch(fed.profile(name, invitation), Nudge())
        np.save(tmp_path / "m.npy", np.zeros(50))
        plan = ("--max-dropouts", "2", "--max-colluders", "2", "--buffer-size", "4")
        model = ("--model", str(tmp_path / "m.npy"))
        how = ("--server-optimiser", "adam", "--global-rate", "0.02", "--averaged", "40:50")
        lost = await desk("start", *model, "--holders", "7", *plan, *how[:-1], "40:60")
        assert "averaged of the step goes up to 60" in str(lost.exception)
        started = await desk("start", *model, "--holders", "7", *plan, *how)
        assert "epoch 1 from version 0: N = 7" in started.output, started.exception
        await desk.reach(2)
        # Nudge moves every number the same way: adam by its own scale, averages by the mean.
        moved = await fed.model()
        assert moved[:40].min() > 0
        assert moved[:40].max() < moved[40:].min() / 2
        other = ("--model", str(tmp_path / "other.npy"))
        np.save(tmp_path / "other.npy", np.full(50, 7.0))
        refused = await desk("start", *other, *plan)
        assert "goes on with its own model" in str(refused.exception)
        rotated = await desk("rotate", *plan)
        assert "is closed at version" in rotated.output
        assert "epoch 2 from version" in rotated.output, rotated.exception
        await desk.reach(5)
        assert (await fed.model()).max() < 2  # not the one that was refused
        closed = await desk("close")
        assert "epoch 2 is closed" in closed.output
        status = await desk("status")
        assert status.output.startswith("epoch 2 is closed")
        await fed.stop("user-3")
        replaced = await desk("replace", "user-3", *out)
        assert replaced.stdout == f"{tmp_path / 'user-3.invitation'}\n"
        assert read_invitation(tmp_path / "user-3.invitation").after == 2
        six = ("--max-dropouts", "1", "--max-colluders", "2", "--buffer-size", "4")
        again = await desk("start", *model, "--without", "user-3", *six)
        assert isinstance(again.exception, DataError)  # it is no holder at present
        again = await desk("start", *other, *six)
        assert "epoch 3 from version" in again.output, again.exception
        assert "N = 6" in again.output
        obeyed = Office(tmp_path / "operator", tmp_path / "anchors")
        first = obeyed.epoch.first
        assert first.model_hash == model_hash(first.version, np.full(50, 7.0, "<f4"))
        obeyed.close()


async def test_a_bad_name_leads_nowhere(tmp_path: Path) -> None:
    async with federation(tmp_path / "fed") as fed:
        desk = Desk(fed)
        out = tmp_path / "out"
        for name in ("..", "../x", ".hidden", "a b", "server", "", "ü", "x" * 65):
            done = await desk("invite", "good", name, "--out", str(out))
            assert isinstance(done.exception, DataError), name
        assert not out.exists()  # nor is anybody else invited by such a command
        assert "good" not in (await desk("status")).output
        assert not list(tmp_path.glob("*.invitation"))


async def test_recovering_asks_about_everybody(tmp_path: Path) -> None:
    async with federation(tmp_path) as fed:
        desk = Desk(fed)
        await desk("invite", "ann", "bob", "cem", "--out", str(tmp_path))
        for anchor in (tmp_path / "anchors").iterdir():
            anchor.unlink()
        done = await desk("invite", "dea", "--out", str(tmp_path))
        assert isinstance(done.exception, StorageError)
        assert "`operator recover` it" in (await desk("status")).output
        done = await desk("recover", "--above", "5", "--confirm", "ann", typed="y\nn\n")
        assert "in are: ann, bob" in done.output
        assert "6 or later" in done.output
        status = (await desk("status")).output
        assert "older copy" not in status
        assert "cem                            both, revoked" in status
        assert (await desk("invite", "dea", "--out", str(tmp_path))).exit_code == 0
