"""Every setting is spelled once, what differs has a reason; a command's options are the fields of a class."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from basecagg import options as schema
from basecagg.commands._options import Folder, options
from basecagg.options import REQUIRED, VIEWS, Count, Positive, Range, Setting, groups, settings_of
from basecagg.protocol.floor import LocalFloor


class _Table:
    name: str
    """Who it is."""
    urls: Annotated[tuple[str, ...], "--url", "URL"] = ()
    """Where, again and again."""
    max_size: Count | None = None
    """N: how much,
    at most."""
    rate: Positive = 2.0
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
    @options(_Table)
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
    assert "N: how much, at most." in said
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


# --- the table of settings ----------------------------------------------------------------------------


def view(where: str) -> dict[str, Setting]:
    pytest.importorskip("flwr" if where == "Flower" else "click")
    module, _, name = VIEWS[where].partition(":")
    return {each.name: each for each in settings_of(getattr(import_module(module), name))}


SPELLED = {name: group for group in groups() for name in vars(group)["__annotations__"]}
USUAL = {each.name: each for group in groups() for each in settings_of(group)}


def test_no_setting_is_spelled_twice() -> None:
    assert sum(len(vars(group)["__annotations__"]) for group in groups()) == len(SPELLED)
    for name, each in USUAL.items():
        assert each.meaning.endswith("."), name
        assert not schema.misfit(each.default, each.kind), name


@pytest.mark.parametrize("where", VIEWS)
def test_every_setting_of_a_view_is_explained(where: str) -> None:
    for name, each in view(where).items():
        assert each.meaning or each.why, name


@pytest.mark.parametrize("where", VIEWS)
def test_another_default_has_a_reason(where: str) -> None:
    silent = {
        name
        for name, each in view(where).items()
        if name in USUAL and each.default != USUAL[name].default and not each.why
    }
    assert silent <= WITHOUT_REASON.get(where, set())


WITHOUT_REASON = {
    "parameters": {"recovery_threshold", "max_colluders", "max_dropouts", "buffer_size"},
    "budget": {"epsilon"},
    "planner": {"staleness"},
    "`plan`": {"holders"},
}
"""What must be given there, or is the same default as an object instead of a word."""


def test_what_must_be_given_has_no_default() -> None:
    for where, names in WITHOUT_REASON.items():
        for name in names - {"staleness"}:
            assert view(where)[name].default is REQUIRED


class _Hasty(schema.AnswerOptions):
    retries: int = 3


def test_a_default_of_ones_own_without_a_reason_is_found() -> None:
    (found,) = [each for each in settings_of(_Hasty) if each.name == "retries"]
    assert (found.default, found.why) == (3, "")
    assert found.meaning == USUAL["retries"].meaning


def test_where_people_look_first() -> None:
    """Weighting by examples, the answer timeout, the lifetime of an invitation: by these names everywhere."""
    assert {"weigh_examples", "answer_timeout", "invitation_days"} <= SPELLED.keys()
    for where, name in (
        *(("run", "weigh_examples"), ("run", "answer_timeout"), ("`serve`", "answer_timeout")),
        *(("Flower", "weigh_examples"), ("Flower", "answer_timeout")),
        ("`operator invite`", "invitation_days"),
    ):
        assert name in view(where)


def test_what_a_participant_insists_on_is_typed_by_its_name() -> None:
    insisted = {each.name for each in fields(LocalFloor)} - {"consistency", "correctness"}
    assert insisted <= view("`join`").keys()


@pytest.mark.parametrize(
    ("limits", "good", "bad", "words"),
    [
        (Range(1), (1, inf), (0, -inf, nan), "at least 1"),
        (Range(0, inf, above=True, below=True), (1e-9,), (0, inf, nan), "above 0 and finite"),
        (Range(0, 1), (0, 1), (-0.1, 1.1, nan), "between 0 and 1"),
        (Range(0, 1, below=True), (0, 0.9), (1, nan), "at least 0, below 1"),
        (Range(0, 1, above=True), (0.1, 1), (0, nan), "above 0, at most 1"),
    ],
)
def test_limits(limits: Range, good: Any, bad: Any, words: str) -> None:
    assert all(map(limits.holds, good))
    assert not any(map(limits.holds, bad))
    assert limits.words == words
