"""`basecagg compare`: says that the comparisons are experiments now."""

from __future__ import annotations

import click


@click.command(
    "compare",
    short_help="Has become part of `reproduce`.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1)
def command(*, words: tuple[str, ...]) -> None:
    """Has become part of `reproduce`: the same words after `basecagg reproduce`, without --full."""
    raise click.ClickException(
        f"the comparisons are experiments now: basecagg reproduce {words[0] if words else 'protocols'}"
    )
