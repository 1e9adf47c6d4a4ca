"""Documentation that can fail: generated pages are fresh, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import linecache
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from basecagg import Federation, parameters
from basecagg.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = sorted(
    {line for page in PAGES for line in re.findall(r"^basecagg .*", page.read_text("utf-8"), re.M)}
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S))


def test_generated_pages_are_up_to_date() -> None:
    script = ROOT / "scripts" / "reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


API = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")


def offered_names() -> Iterator[str]:
    """All that stands in an `__all__`, read and not imported: some need an extra."""
    for path in sorted(ROOT.glob("src/**/*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                    yield from ast.literal_eval(names)


def test_every_public_name_is_in_the_reference() -> None:
    offered = set(offered_names()) - {"__version__"}
    assert {"simulate", "Task", "BufferedSecAgg"} <= offered
    assert offered <= set(re.findall(r"^### (\w+) { #basecagg\.", API, re.M))


def imported_by(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("basecagg"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=named)
def test_every_name_that_a_page_imports_is_in_the_reference(page: Path) -> None:
    for name in imported_by(python_blocks(page)):
        assert f"{{ #{name} }}" in API, name


@pytest.mark.usefixtures("tables_as_they_were")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=named)
def test_the_python_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what a page writes goes there
    text = python_blocks(page)
    # As if it stood in a file: a page's functions have a text, as a reader's have.
    linecache.cache[named(page)] = (len(text), None, text.splitlines(keepends=True), named(page))
    exec(compile(text, named(page), "exec"), {})


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_on_the_pages_exist_with_their_options(line: str) -> None:
    """Parsed, not run: most of them train, or need files that the reader has and a test has not."""
    command: click.Command | None = main
    context, words = click.Context(main), shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command, name = command.get_command(context, words[0]), words.pop(0)
        assert command is not None, name
    assert command is not None
    command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("basecagg plan ")])
def test_the_plans_on_the_pages_work(line: str) -> None:
    result = CliRunner().invoke(main, shlex.split(line)[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=named)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f"{page.relative_to(ROOT / 'docs').as_posix()}\n" in (ROOT / "mkdocs.yml").read_text(
        "utf-8"
    )


# --- the sign of an update ---------------------------------------------------------------------------

SIGN = "before − after"
SAID_ON = (
    *("README.md", "docs/reference/glossary.md", "docs/tutorial/first-sum.md"),
    *("docs/tutorial/by-hand.md", "docs/explanation/how-a-sum-opens.md"),
    *("docs/explanation/protocol.md", "docs/how-to/add-your-own.md", "docs/how-to/flower.md"),
    *("docs/how-to/server-optimisers.md",),
)
TAKE_AN_UPDATE = (
    *("basecagg.simulation.federation:Federation.contribute",),
    *("basecagg.protocol.contributor:Contributor.submit", "basecagg.protocol.masking:hide"),
    *("basecagg.protocol.step_rule:StepRule", "basecagg.protocol.messages:PlainUpdate"),
    *("basecagg.schedules.schedule:Schedule.finish",),
)


@pytest.mark.parametrize("page", SAID_ON)
def test_a_page_that_explains_updates_says_their_sign(page: str) -> None:
    assert SIGN in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("place", TAKE_AN_UPDATE)
def test_what_takes_an_update_says_its_sign(place: str) -> None:
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert SIGN in found.__doc__


def test_no_page_has_the_other_sign() -> None:
    wrong = re.compile(r"after (it )?(−|-|minus) (the model )?before", re.I)
    assert [named(page) for page in PAGES if wrong.search(page.read_text("utf-8"))] == []


def test_the_sign_that_is_said_leads_to_the_trained_model() -> None:
    p = parameters.ProtocolParameters(
        num_holders=5,
        recovery_threshold=3,
        max_colluders=1,
        max_dropouts=1,
        buffer_size=3,
        model_size=4,
        correctness="honest-holders",
    )
    federation = Federation(p)
    before, after = federation.server.model, np.array([0.5, -1.0, 0.25, 2.0])
    for user in ("user-0", "user-1", "user-2"):
        federation.contribute(user, before - after)
    federation.run()
    np.testing.assert_allclose(federation.server.model, after, atol=1e-4)
