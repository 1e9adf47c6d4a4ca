"""Get the compiled kernels ready, and tell the user why that may take a while."""

from __future__ import annotations

import click


def load_kernels() -> float:
    """Compile the kernels, or load them from numba's cache; give the seconds that took."""
    click.echo("Loading kernels (compiled at first use only, some seconds) …", err=True)
    from basecagg.maths.kernels import warm_up

    return warm_up()
