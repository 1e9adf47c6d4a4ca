"""Print what an experiment found, and write its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from reproduction.publishing import Publication


def show(publication: Publication, out: Path, columns: Sequence[str] = ()) -> None:
    """Print the tables (of the first, these columns; none: all) and notes, and say where the page is."""
    from reproduction.publishing import publish

    console = Console(highlight=False)
    console.print(_table(publication.title, publication.lines, columns))
    for heading, lines in publication.tables.items():
        console.print(_table(heading, lines, ()))
    for claim in publication.claims:
        console.print(f"• {claim.sentence} — {claim.verdict}: {claim.found}")
    for note in publication.notes:
        console.print(f"• {note}")
    console.print(f"page: {publish(publication, out)}")


def _table(title: str, lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    from reproduction.publishing import shown

    chosen = columns or tuple(lines[0])
    table = Table(title=title)
    for index, column in enumerate(chosen):
        table.add_column(column, no_wrap=index < 2)
    for line in lines:
        table.add_row(*(shown(line[column]) for column in chosen))
    return table
