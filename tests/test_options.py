"""A command's options as the fields of a class: what click makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from basecagg.commands._options import POSITIVE, Count, Folder, options


class _Table:
    name: str
    """Who it is."""
    urls: Annotated[tuple[str, ...], "--url", "URL"] = ()
    """Where, {often}."""
    max_size: Annotated[Count | None, "N"] = None
    """How much,
    at most."""
    rate: Annotated[float, POSITIVE] = 2.0
    """How quickly."""
    kind: Literal["round", "square"] = "round"
    """Which one."""
    loud: bool = False
    """Whether it is heard."""
    tls: Annotated[bool, "--tls/--no-tls"] = True
    """Whether it is read."""
    out: Folder = "."
    """Where to."""


def given(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @options(_Table, often="again and again")
    def command(**typed: Any) -> None:
        found.update(typed)

    done = CliRunner().invoke(command, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return found | {"help": command.get_help(click.Context(command, max_content_width=200))}


def test_what_is_typed_arrives_and_the_rest_has_its_default() -> None:
    words = ("--name", "x", "--url", "a", "--url", "b", "--max-size", "3", "--loud", "--no-tls")
    found = given(*words, "--kind", "square", "--rate", "0.5", "--out", "there")
    assert found.pop("help")
    assert found == {
        **{"name": "x", "urls": ("a", "b"), "max_size": 3, "loud": True, "tls": False},
        **{"kind": "square", "rate": 0.5, "out": Path("there")},
    }
    usual = given("--name", "x")
    assert (usual["urls"], usual["max_size"], usual["rate"]) == ((), None, 2.0)
    assert (usual["kind"], usual["loud"], usual["tls"], usual["out"]) == (
        *("round", False, True),
        Path(),
    )


def test_the_strings_below_are_the_help() -> None:
    said = given("--name", "x")["help"]
    assert "Where, again and again." in said
    assert "How much, at most." in said
    assert "--url URL" in said


@pytest.mark.parametrize(
    "words",
    [
        *((), ("--name", "x", "--max-size", "0"), ("--name", "x", "--kind", "oval")),
        *(("--name", "x", "--rate", "0"), ("--name", "x", "--rate", "y")),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        given(*words)
