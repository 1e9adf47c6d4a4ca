"""What commands share that compute or run for long: compiled kernels, and a log of JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

LOGGED = "basecagg.logged"
"""In click's context, where a command writes a log: then its last words are a line of it too."""
_UNCACHED = (
    "The kernels are compiled again at every start: set NUMBA_CACHE_DIR to a folder of yours."
)


def load_kernels(say: Callable[[str], None] | None = None, spare: Path | None = None) -> None:
    """Compile the kernels, or load them from numba's cache, which is in the spare folder if need be."""
    say = say or (lambda text: click.echo(text, err=True))
    say("Loading kernels (compiled at first use only, some seconds) …")
    from basecagg.maths.kernels import warm_up
    from basecagg.maths.kernels.compiler import find_cache

    warm_up(spare)
    if not find_cache():
        say(_UNCACHED)


def begin_log(level: str = "INFO") -> None:
    """From here on nothing but JSON lines is written."""
    from basecagg.service.logs import log_everything

    log_everything(level)
    click.get_current_context().meta[LOGGED] = True


def load_kernels_quietly(state: Path) -> None:
    """Load the kernels of a program with a log. A user without a home keeps them in the program's folder."""
    from basecagg.service.logs import Log

    load_kernels(lambda text: Log("basecagg").info("kernels", reason=text), state / "kernels")


def log_end(reason: str, status: int) -> click.exceptions.Exit:
    """The program ends with this status: the last line says why."""
    from basecagg.service.logs import Log

    Log("basecagg").error("ended", reason=reason, status=status)
    return click.exceptions.Exit(status)
