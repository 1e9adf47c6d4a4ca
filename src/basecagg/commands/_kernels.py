"""Get the compiled kernels ready, and tell the user why that may take a while."""

from __future__ import annotations

from collections.abc import Callable

import click


def _say(text: str) -> None:
    click.echo(text, err=True)


def load_kernels(say: Callable[[str], None] = _say) -> float:
    """Compile the kernels, or load them from numba's cache; give the seconds that took."""
    say("Loading kernels (compiled at first use only, some seconds) …")
    from basecagg.maths.kernels import warm_up

    return warm_up()
