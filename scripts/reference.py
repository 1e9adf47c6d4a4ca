"""Write the reference pages that come from the code, so that they cannot drift from it.

`python scripts/reference.py` writes them; with `--check` it only says which ones are out of date.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from api_page import api_page
from basecagg import cli
from basecagg.flower.settings import Settings
from basecagg.options import (
    REQUIRED,
    VIEWS,
    Setting,
    groups,
    limits_in_words,
    settings_of,
    strings_below,
)
from basecagg.parameters import CLEAR_RULES, RULES, ProtocolParameters, Rule
from basecagg.protocol import life
from diagrams import source_of

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
HEADER = "<!-- Written by scripts/reference.py (`make docs`). Edit the code, not this page. -->\n\n"


def main() -> None:
    """Write the pages, or check them."""
    pages = {
        "api.md": f"{HEADER}{api_page()}",
        "cli.md": cli_page(),
        "parameters.md": parameters_page(),
        "settings.md": settings_page(),
        "mask-life.md": mask_life_page(),
        "flower.md": flower_page(),
        "files.md": files_page(),
    }
    stale = [name for name, text in pages.items() if _read(REFERENCE / name) != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run `make docs`: {', '.join(stale)}" if stale else 0)
    for name in stale:
        (REFERENCE / name).write_text(pages[name], encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def files_page() -> str:
    """Every file with the first sentence of its docstring, room by room."""
    intro = "Every file in a line, room by room: the first words of its docstring.\n"
    rooms = ["src/basecagg", "reproduction", "benchmarks", "scripts"]
    folders = sorted({path.parent for room in rooms for path in ROOT.glob(f"{room}/**/*.py")})
    sections = "\n".join(_files(folder) for folder in folders)
    return f"{HEADER}# Files\n\n{intro}\n{sections}\n{_helpers_of_tests()}"


def _helpers_of_tests() -> str:
    """What tests share: a test itself is found by the name of what it tests."""
    tests = ROOT / "tests"
    files = [path for path in sorted(tests.glob("**/*.py")) if not path.name.startswith("test_")]
    return _section("tests: what they share", tests, files)


def _files(folder: Path) -> str:
    files = [*sorted(folder.glob("*.py")), *sorted(folder.glob("static/*"))]
    return _section(folder.relative_to(ROOT).as_posix(), folder, files)


def _section(title: str, folder: Path, files: Iterable[Path]) -> str:
    rows = "".join(f"| `{path.relative_to(folder)}` | {_first_words(path)} |\n" for path in files)
    return f"## {title}\n\n| file | what it is |\n|---|---|\n{rows}"


def _first_words(path: Path) -> str:
    if path.suffix != ".py":
        return "A part of the page, as the browser gets it."
    docs = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docs.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def cli_page() -> str:
    """Every command with every option."""
    context = click.Context(cli.main, info_name="basecagg")
    commands = (cli.main.get_command(context, name) for name in cli.COMMANDS)
    sections = "\n".join(_command(command, str(command.name)) for command in commands if command)
    intro = f"{cli.main.help}\n\n`basecagg --help` and `basecagg COMMAND --help` print this page.\n"
    exits = (
        "Exit status: 0 done; 2 what was typed or given cannot be; 1 everything else. Errors go to"
        " standard error, one line each.\n"
    )
    return f"{HEADER}# Command line\n\n{intro}\n{exits}\n{sections}"


def _command(command: click.Command, name: str) -> str:
    rows = "\n".join(_option(param) for param in command.params if isinstance(param, click.Option))
    table = f"| option | default | meaning |\n|---|---|---|\n{rows}\n" if rows else ""
    below = "\n".join(_command(sub, f"{name} {sub.name}") for sub in _subcommands(command))
    return (
        f"## basecagg {name}\n\n{_prose(command.help or '')}\n\n{table}{below and chr(10)}{below}"
    )


def _subcommands(command: click.Command) -> list[click.Command]:
    return list(command.commands.values()) if isinstance(command, click.Group) else []


def _prose(help_text: str) -> str:
    """Turn click's help into Markdown: what follows a \\b line is shown as it stands."""
    text, _, example = inspect.cleandoc(help_text).partition("\b\n")
    as_it_stands = example.replace("\b\n", "").rstrip()
    return f"{text.strip()}\n\n```text\n{as_it_stands}\n```" if example else text.strip()


def _option(param: click.Option) -> str:
    names = " / ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    default = "required" if param.required else _default(param)
    value = f" {param.metavar}" if param.metavar else ""
    return f"| {names}{value} | {default} | {_cell(param.help or '')} |"


def _default(param: click.Option) -> str:
    """The default as `--help` shows it; a flag that is off and a name that is not given have none."""
    if param.is_flag and param.secondary_opts:
        return f"`{(param.opts if param.default else param.secondary_opts)[0]}`"
    given = isinstance(param.default, int | float | str) and not param.is_flag
    return f"`{param.default}`" if given and param.default != "" else ""


def parameters_page() -> str:
    """Every field of `ProtocolParameters`, what follows from them, and every rule."""
    derived = "\n".join(
        f"| `{name}` | {_cell(inspect.getdoc(member) or '')} |"
        for name, member in vars(ProtocolParameters).items()
        if isinstance(member, property) and not name.startswith("_")
    )
    return (
        f"{HEADER}# Parameters\n\n{inspect.getdoc(ProtocolParameters)}\n\n"
        f"{_settings(settings_of(ProtocolParameters))}\n"
        f"## What follows from them\n\n| name | meaning |\n|---|---|\n{derived}\n\n"
        "## Rules\n\nChecked in this order when the parameters are made. The first that is broken is"
        " raised as a `ParameterError`, whose text names the values and says what to do.\n\n"
        f"{_numbered(RULES)}\n\n"
        'With `protection = "none"` these instead:\n\n'
        f"{_numbered(CLEAR_RULES)}\n"
    )


def _numbered(rules: list[Rule]) -> str:
    return "\n".join(f"{number}. {rule.text}" for number, rule in enumerate(rules, start=1))


SETTINGS = """\
Every setting that is given anywhere, once: in a simulated run (a field of `SimulationConfig`, a key of a TOML
file, or `basecagg run --set key=value`; `basecagg run --settings` prints them), to `BufferedSecAgg` on Flower,
to the planner, to commands (`--like-this`), and in the parameters that an epoch is signed with.

"Where" says who takes a setting, and what is different there: another default, another type, or a reason. What
is not set is None in Python, left out of a TOML file, and `none` after `--set name=`.
"""


def settings_page() -> str:
    """Every setting, group by group, with every place that takes it."""
    views = {
        name: {each.name: each for each in settings_of(load(path))} for name, path in VIEWS.items()
    }
    sections = [_group(group, views) for group in groups()]
    shared = {each.name for group in groups() for each in settings_of(group)}
    for view, found in views.items():
        own = [each for each in found.values() if each.name not in shared]
        sections += [f"## Only of {view}\n\n{_settings(own)}"] if own else []
    return f"{HEADER}# Settings\n\n{SETTINGS}\n" + "\n".join(sections)


def load(path: str) -> type[Any]:
    """The class of a view."""
    module, _, name = path.partition(":")
    view: type[Any] = getattr(import_module(module), name)
    return view


def _group(group: type[Any], views: dict[str, dict[str, Setting]]) -> str:
    own = [each for each in settings_of(group) if each.name in vars(group)["__annotations__"]]
    rows = "\n".join(f"{_row(each)} {_where(each, views)} |" for each in own)
    title = (inspect.getdoc(group) or "").rstrip(".")
    return f"## {title}\n\n| setting | default | limits | meaning | where |\n|---|---|---|---|---|\n{rows}\n"


def _where(setting: Setting, views: dict[str, dict[str, Setting]]) -> str:
    """Who takes a setting; with a default of its own, that and the reason."""
    said = []
    for view, found in views.items():
        if (here := found.get(setting.name)) is not None:
            other = f" {_shown(here.default)}" if here.default != setting.default else ""
            why = f": {_cell(here.why)}" if here.why else ""
            said.append(f"{view}{other}{why}")
    return "; ".join(each.removesuffix(".") for each in said)


def _settings(settings: Iterable[Setting]) -> str:
    rows = "\n".join(map(_row, settings))
    return f"| setting | default | limits | meaning |\n|---|---|---|---|\n{rows}\n"


def _row(each: Setting) -> str:
    said = _cell(f"{each.meaning} {each.why}")
    return f"| `{each.name}` | {_shown(each.default)} | {limits_in_words(each.kind)} | {said} |"


def _shown(default: object) -> str:
    if default is REQUIRED:
        return "required"
    return "not set" if default is None else f"`{default}`"


def flower_page() -> str:
    """Every option of the Flower strategy."""
    return (
        f"{HEADER}# Options of BufferedSecAgg\n\n{inspect.getdoc(Settings)} Options are keywords:"
        f" `BufferedSecAgg(buffer_size=5)`.\n\n{_settings(settings_of(Settings))}"
    )


def mask_life_page() -> str:
    """The transition table of every machine, drawn."""
    meanings = strings_below(life)
    titles = {
        "CONTRIBUTOR": "A mask at the contributor",
        "HOLDER": "A share at the holder",
        "SERVER": "A mask at the server",
        "SEALING_KEY": "A sealing key at the participant",
        "PARTICIPANT": "A participant",
        "PERSON": "A person at the operator",
    }
    sections = "\n".join(
        f"## {title}\n\n{meanings[name]}\n\n```mermaid\n{source_of(getattr(life, name))}```\n"
        for name, title in titles.items()
    )
    return f"{HEADER}# The life of a mask\n\n{inspect.getdoc(life)}\n\n{sections}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
