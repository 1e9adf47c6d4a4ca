"""The command line: every option explained, errors in one line, nothing imported before it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from basecagg import __version__, cli, errors

PAPER = ("--holders", "100", "--max-dropouts", "0.3", "--model-size", "1e6")


def run(*args: str, columns: int = 80) -> Result:
    return CliRunner().invoke(cli.main, args, env={"COLUMNS": str(columns)})


def every_command() -> Iterator[click.Command]:
    context = click.Context(cli.main)
    for name in cli.main.list_commands(context):
        command = cli.main.get_command(context, name)
        assert command is not None
        yield command
        yield from getattr(command, "commands", {}).values()


def test_every_command_and_option_has_help() -> None:
    for command in every_command():
        assert command.help, command.name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{command.name} {param.name}"


def test_every_argument_is_explained() -> None:
    """Arguments carry no help of their own: the command's text or an option's must speak of them."""
    for command in every_command():
        options = [param.help or "" for param in command.params if isinstance(param, click.Option)]
        explained = " ".join([command.help or "", *options]).casefold()
        for param in command.params:
            if isinstance(param, click.Argument):
                name = param.metavar or str(param.name).upper()
                assert name.strip("[]. ").casefold() in explained, f"{command.name} {name}"


def test_every_command_of_the_table_is_there() -> None:
    context = click.Context(cli.main)
    for name in cli.COMMANDS:
        command = cli.main.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_help_lists_every_command() -> None:
    shown = run("--help").output
    for name, line in cli.COMMANDS.items():
        assert name in shown
        assert line in shown


def test_version() -> None:
    assert run("--version").output.strip() == f"basecagg, version {__version__}"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run("plam")
    assert result.exit_code == 2
    assert "No such command 'plam'" in result.output


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from basecagg.cli import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "print([m for m in sys.modules if m.startswith('basecagg.commands') or m in ('numpy', 'rich')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ParameterError("T is too large", rule="T < U"), 2),
        (errors.DataError("x holds NaN"), 2),
        (errors.StorageError("the store is an older copy"), 1),
        (errors.MissingExtraError("learn", "training"), 1),
    ],
)
def test_our_errors_become_one_line(monkeypatch, error: errors.BASecAggError, status: int) -> None:
    @click.command("plan")
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli.CommandTable, "get_command", lambda *_: failing)
    result = run("plan")
    assert result.exit_code == status
    assert result.stderr == f"Error: {error}\n"
    assert result.stdout == ""


def test_a_command_whose_part_is_missing_names_the_extra(monkeypatch) -> None:
    """The error comes while the command's module is imported; it must not end in a traceback."""

    def missing(name: str) -> None:
        raise errors.MissingExtraError("learn", "training")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    result = run("plan")
    assert result.exit_code == 1
    assert "pip install '.[learn]'" in result.stderr


def test_other_errors_keep_their_traceback(monkeypatch) -> None:
    """A mistake of ours must not look like a mistake of the user."""

    @click.command("plan")
    def buggy() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.CommandTable, "get_command", lambda *_: buggy)
    assert isinstance(run("plan").exception, ZeroDivisionError)


@pytest.mark.parametrize("columns", [80, 120])
def test_plan_fits_the_terminal_and_marks_the_chosen_row(columns: int) -> None:
    result = run("plan", *PAPER, "--no-cpu", columns=columns)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= columns
    marked = [line.split() for line in lines if line.lstrip().startswith("→")]
    assert [row[1] for row in marked if row[1].isdigit()] == ["62"]


def test_plan_as_json_says_the_same() -> None:
    shown = json.loads(run("plan", *PAPER, "--no-cpu", "--json").stdout)
    assert shown["parameters"]["recovery_threshold"] == 62
    assert (shown["parameters"]["correctness"], shown["parameters"]["liars"]) == ("agreed", 0)
    assert shown["wrap_around"]["largest_sum"] <= shown["wrap_around"]["room"]
    assert [row["recovery_threshold"] for row in shown["options"] if row["chosen"]] == [62]
    assert shown["modes"] == {"certified": "possible", "honest-server": "possible"}
    assert shown["cpu_seconds"] == {}
    assert sum(phase["seconds"] for phase in shown["phases"]) == pytest.approx(
        next(row["wire_seconds"] for row in shown["options"] if row["chosen"])
    )


def test_plan_predicts_processor_time() -> None:
    small = ("--holders", "10", "--max-dropouts", "3", "--model-size", "1e4")
    shown = json.loads(run("plan", *small, "--json").stdout)
    times = shown["cpu_seconds"]
    assert set(times) == {str(row["recovery_threshold"]) for row in shown["options"]}
    assert all(seconds > 0 for row in times.values() for seconds in row.values())
    assert "encode" in run("plan", *small).stdout


def test_an_impossible_plan_is_one_line_with_ways_out() -> None:
    result = run("plan", *PAPER, "--max-colluders", "50%")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Possible instead: T = 34 or N = 131" in result.stderr


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--max-dropouts", "many", "not a number"),
        ("--max-dropouts", "1.5", "nor a part"),
        ("--max-dropouts", "150%", "nor a part"),
        ("--max-colluders", "-0.1", "nor a part"),
        ("--model-size", "1.5", "not a whole number"),
        ("--model-size", "inf", "not a finite number"),
        ("--staleness", "linear", "polynomial:α"),
        ("--staleness", "hinge:x", "polynomial:α"),
        ("--staleness", "polynomial:-1", "polynomial:α"),
        ("--up", "0", "not in the range"),
        ("--liars", "-1", "not in the range"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(option: str, text: str, words: str) -> None:
    result = run("plan", *PAPER, option, text)
    assert result.exit_code == 2
    assert words in result.stderr
    assert option in result.stderr


@pytest.mark.parametrize(("text", "count"), [("30", 30), ("0.3", 30), ("30%", 30), ("0.301", 31)])
def test_a_number_or_a_part(text: str, count: int) -> None:
    """A part is rounded up, and 0.3 of 100 is 30, not the 30.000000000000004 of floats."""
    shown = run(
        "plan",
        "--holders",
        "100",
        "--max-dropouts",
        text,
        "--model-size",
        "9",
        "--no-cpu",
        "--json",
    )
    assert json.loads(shown.stdout)["parameters"]["max_dropouts"] == count
