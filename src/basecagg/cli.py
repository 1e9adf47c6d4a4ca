"""The command line: a table of commands, each imported only when it is used.

So `basecagg --help` is quick, and a command whose optional part is missing says how to install it while the
others go on working.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from basecagg import __version__
from basecagg.errors import BASecAggError, DataError, ParameterError, printable

COMMANDS = {
    "plan": "Choose parameters for a federation and show what they cost.",
    "verify": "Check evidence, make versions again, check an exported model.",
    "audit": "Say what a server learned, from a transcript of its view.",
    "run": "Train a federation in simulation and show what privacy cost.",
    "report": "Write a page about simulated runs: plots, tables, audit.",
    "reproduce": "Run the paper's experiments, and some beyond it.",
    "operator": "Create a federation, enrol people, sign epochs, export the model.",
    "serve": "Run the server of a federation over HTTPS.",
    "join": "Take part in a federation as contributor, holder or both.",
    "desk": "Decide, as a centre, which studies may ask about your records.",
    "study": "Ask questions of many centres, as the analyst of a study.",
}
"""Name of a command (its file is `commands/<name>.py`, its object `command`) and its one line of help."""


class CommandTable(click.Group):
    """A click group whose commands stand in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is asked for."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"basecagg.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that we raise on purpose, or about a file, is one line and no traceback."""
        try:
            return super().invoke(ctx)
        except BASecAggError as error:
            raise _last_word(ctx, _one_line(error)) from error
        except OSError as error:
            if error.filename is None:
                raise
            said = click.ClickException(printable(f"{error.filename}: {error.strerror}"))
            raise _last_word(ctx, said) from error


class BadInput(click.ClickException):
    """What was typed or given cannot be: exit status 2, as for a wrong option."""

    exit_code = 2


def _last_word(ctx: click.Context, said: click.ClickException) -> Exception:
    """Where a program writes a log of JSON lines, its last word is one of them."""
    from basecagg.commands._program import LOGGED, log_end

    return log_end(said.message, said.exit_code) if ctx.meta.get(LOGGED) else said


def _one_line(error: BASecAggError) -> click.ClickException:
    blame_input = isinstance(error, ParameterError | DataError)
    return (BadInput if blame_input else click.ClickException)(printable(str(error), keep="\n"))


@click.command(
    cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="basecagg")
def main() -> None:
    """Asynchronous federated learning with secure aggregation."""
