"""Get the compiled kernels ready, and tell the user why that may take a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

_UNCACHED = (
    "The kernels are compiled again at every start: set NUMBA_CACHE_DIR to a folder of yours."
)


def _say(text: str) -> None:
    click.echo(text, err=True)


def load_kernels(say: Callable[[str], None] = _say, spare: Path | None = None) -> None:
    """Compile the kernels, or load them from numba's cache, which is in the spare folder if need be."""
    say("Loading kernels (compiled at first use only, some seconds) …")
    from basecagg.maths.kernels import warm_up
    from basecagg.maths.kernels.compiler import find_cache

    warm_up(spare)
    if not find_cache():
        say(_UNCACHED)
