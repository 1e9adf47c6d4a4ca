"""What a command shows is what `print` shows: one layout for the terminal, a script and a notebook."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


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
            force_terminal=False,
            force_jupyter=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        with console.capture() as shown:
            console.print(self)
        return shown.get().rstrip("\n")

    __repr__ = __str__
