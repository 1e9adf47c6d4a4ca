"""A report as one HTML file that opens offline, for light and dark screens, wide and narrow ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_CSS = """
:root { color-scheme: light dark;
        --ink: #1d2733; --dim: #5a6472; --line: #d9dee5; --paper: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #a7b0bd; --line: #333c48; --paper: #12161c; --card: #1a2028; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; } .dim { color: var(--dim); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; padding: .8rem; background: var(--card); border: 1px solid var(--line);
         border-radius: .5rem; }
figure svg { width: 100%; min-width: 26rem; height: auto; color: var(--dim); }
figcaption { font-size: .9rem; color: var(--dim); margin-top: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; white-space: nowrap;
         border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
details { margin: .6rem 0; } summary { cursor: pointer; }
"""


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
    """Write the page."""
    path.write_text(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body>"
        f"<h1>{escape(title)}</h1>{paragraph(lead, dim=True)}{''.join(sections)}</body></html>\n",
        encoding="utf-8",
    )
