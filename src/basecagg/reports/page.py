"""A report as one HTML file that opens offline, for light and dark screens, wide and narrow ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path


def figure(svg: str, caption: str) -> str:
    """One plot with its caption."""
    drawing = f'<div class="scroll">{svg}</div>'  # its text stays readable on a narrow screen
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: bool = True) -> str:
    """A table; all columns but the first hold numbers unless said otherwise."""
    kind = ' class="number"' if numbers else ""

    def line(cells: Sequence[object], tag: str) -> str:
        first, *rest = (escape(str(cell)) for cell in cells)
        tail = "".join(f"<{tag}{kind}>{cell}</{tag}>" for cell in rest)
        return f"<tr><{tag}>{first}</{tag}>{tail}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(header, "th")}{body}</table></div>'


def section(title: str, *parts: str) -> str:
    """A heading with what stands below it."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def paragraph(text: str, *, dim: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=dim' if dim else ''}>{escape(text)}</p>"


def plots(figures: Iterable[str]) -> str:
    """Plots side by side where there is room."""
    return f'<div class="plots">{"".join(figures)}</div>'


def folded(summary: str, content: str) -> str:
    """Content that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def write_page(path: Path, title: str, lead: str, sections: Sequence[str]) -> None:
    """Write the page, with its style sheet in it."""
    css = files("basecagg.reports").joinpath("page.css").read_text("utf-8")
    path.write_text(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head><body>"
        f"<h1>{escape(title)}</h1>{paragraph(lead, dim=True)}{''.join(sections)}</body></html>\n",
        encoding="utf-8",
    )
