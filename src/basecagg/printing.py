"""How results print: one layout for the command line, `print` in a script, and a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


class Shown:
    """The base of results that are laid out by `__rich__`."""

    def __rich__(self) -> RenderableType:
        """Lay it out for a terminal of 80 columns or more."""
        raise NotImplementedError

    def __str__(self) -> str:
        """The same as plain text, as wide as the terminal is."""
        from rich.console import Console

        console = Console(
            file=StringIO(),
            color_system=None,
            force_terminal=False,  # whatever the environment says
            force_jupyter=False,
            highlight=False,
            markup=False,  # names are no markup
            emoji=False,
        )
        with console.capture() as shown:
            console.print(self)
        return shown.get().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same for a notebook, in its own colours; what is too wide can be scrolled."""
        from html import escape

        return f'<pre style="line-height:1.25;overflow-x:auto">{escape(str(self))}</pre>'


def sections(bodies: Mapping[str, RenderableType]) -> RenderableType:
    """One below the other, each with its title."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    indented = {title: Padding(body, (0, 0, 1, 2), expand=False) for title, body in bodies.items()}
    return Group(*(Group(Text(title, style="bold"), body) for title, body in indented.items()))


def plain_table(*headers: str, rows: Iterable[Sequence[object]] = ()) -> Table:
    """A table without lines. Headers that end in > are aligned right, rows that begin with → are bold."""
    from rich.table import Column, Table

    columns = [
        Column(header.removesuffix(" >"), justify="right" if right else "left", no_wrap=right)
        for header in headers
        for right in [header.endswith(">")]
    ]
    table = Table(*columns, box=None, show_header=bool(headers), pad_edge=False, header_style="dim")
    for row in rows:
        table.add_row(*map(str, row), style="bold" if row[0] == "→" else None)
    return table
