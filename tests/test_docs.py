"""Documentation that can fail: generated pages are fresh, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from basecagg import parameters
from basecagg.cli import main
from basecagg.maths import staleness
from basecagg.protections import pairs
from basecagg.protocol import step_rule

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


@pytest.fixture
def tables_as_they_were() -> Iterator[None]:
    """A page may add to the tables; the next test finds them as they were."""
    learning = importlib.import_module("basecagg.learning")
    rules, rules_before = parameters.RULES, list(parameters.RULES)
    tables: list[dict[str, Any]] = [learning.DATASETS, learning.MODELS]
    tables += [staleness.SHAPES, step_rule.OPTIMISERS, pairs.PROTECTIONS]
    before = [dict(table) for table in tables]
    yield
    rules[:] = rules_before
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.usefixtures("tables_as_they_were")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=named)
def test_the_python_on_a_page_runs(page: Path) -> None:
    exec(compile(python_blocks(page), named(page), "exec"), {})


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
