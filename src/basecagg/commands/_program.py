"""A program that runs for long: its standard error is a log of JSON lines, its last words included."""

from __future__ import annotations

from pathlib import Path

import click

LOGGED = "basecagg.logged"
"""In click's context, where a command has become such a program."""


def begin_log(level: str = "INFO") -> None:
    """From here on nothing but JSON lines is written."""
    from basecagg.service.logs import log_everything

    log_everything(level)
    click.get_current_context().meta[LOGGED] = True


def ready_kernels(state: Path) -> None:
    """Load the kernels. A user without a home keeps them in the program's own folder."""
    from basecagg.commands._kernels import load_kernels
    from basecagg.service.logs import Log

    load_kernels(lambda text: Log("basecagg").info("kernels", reason=text), state / "kernels")


def log_end(reason: str, status: int) -> click.exceptions.Exit:
    """The program ends with this status: the last line says why."""
    from basecagg.service.logs import Log

    Log("basecagg").error("ended", reason=reason, status=status)
    return click.exceptions.Exit(status)
