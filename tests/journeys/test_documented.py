"""Every command that a page tells people to type has a journey."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from documented import PAGES, commands, text_of
from pages import WALKS
from walks import Step, unmatched

HERE = Path(__file__).parent
MOST_LEFT_OUT = 10
STEPS = [step for walk in WALKS.values() for step in walk.steps]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_is_a_step_of_its_walk(page: str) -> None:
    steps = WALKS[page].steps if page in WALKS else ()
    assert unmatched(steps, text_of(page)) == []


@pytest.mark.parametrize("added", ["basecagg shout", "$ basecagg shout"])
def test_a_command_without_a_step_is_noticed(added: str) -> None:
    kind = "console" if added.startswith("$") else "bash"
    page = f"{text_of('README.md')}\n```{kind}\n{added}   # for the deaf\n```\n"
    assert unmatched(WALKS["README.md"].steps, page) == ["basecagg shout"]


def test_a_step_without_a_command_is_noticed() -> None:
    steps = [*WALKS["README.md"].steps, Step("basecagg shout")]
    assert unmatched(steps, text_of("README.md")) == ["basecagg shout"]


def test_a_page_has_its_commands_in_order_without_comments_and_answers() -> None:
    console = "```console\n$ one  # first\nan answer\n$ two \\\n    --more\n```\n"
    page = f"{console}```sh\nfor i in 1; do\n  x\ndone\n```\n"
    assert commands(page) == ["one", "two --more", "for i in 1; do\n  x\ndone"]


def test_few_commands_are_left_out_each_for_a_reason() -> None:
    reasons = [step.reason for step in STEPS if step.reason is not None]
    assert len(reasons) <= MOST_LEFT_OUT
    assert all(reasons)


@pytest.mark.parametrize("name", sorted({step.elsewhere for step in STEPS if step.elsewhere}))
def test_the_journeys_that_steps_name_exist(name: str) -> None:
    file, function = name.split("::")
    parts = ast.parse((HERE / file).read_text("utf-8")).body
    assert function in {part.name for part in parts if isinstance(part, ast.FunctionDef)}
