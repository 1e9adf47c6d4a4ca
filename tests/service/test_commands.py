"""The commands: every option explained, mistakes told in words, the keys where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from basecagg.commands import join, operator, serve
from basecagg.errors import DataError
from basecagg.service.connection import Unreachable


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


def test_without_a_server_the_operator_is_told_so(tmp_path: Path) -> None:
    folder = str(tmp_path / "op")
    run(operator.command, "--folder", folder, "init", "--name", "x", "--url", "https://127.0.0.1:1")
    done = run(operator.command, "--folder", folder, "status")
    assert isinstance(done.exception, Unreachable)


def test_without_a_folder_the_operator_is_told_so(tmp_path: Path) -> None:
    done = run(operator.command, "--folder", str(tmp_path), "status")
    assert isinstance(done.exception, DataError)
    assert "cannot be read" in str(done.exception)


@pytest.mark.parametrize("options", [[], ["--train", "a:b", "--holder-only"]])
def test_a_user_trains_or_only_holds(options: list[str]) -> None:
    done = run(join.command, "x.invitation", *options)
    assert isinstance(done.exception, DataError)
    assert "either" in str(done.exception)


def test_a_server_needs_its_folder(tmp_path: Path) -> None:
    done = run(serve.command, "--state", str(tmp_path / "nowhere"))
    assert done.exit_code == 2
