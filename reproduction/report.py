"""What an experiment found, for people and programs: on the terminal, and as JSON, CSV, a page and plots."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.table import Table

from basecagg.reports import page
from reproduction import machine

Line: TypeAlias = Mapping[str, Any]
"""A line of a table: a value for every column."""
Verdict = Literal[
    "reproduced",
    "partly",
    "not reproduced",
    "corrected",
    "undecided",
    "holds",
    "does not hold",
    "measured",
]
"""On a sentence of the paper the first four, on one of our own the last three."""

SEEDS_NEEDED = 3
"""Fewer settle no claim, whatever they say."""


def settled(verdict: Verdict, seeds: int) -> Verdict:
    """The verdict, if it comes from enough seeds."""
    return verdict if seeds >= SEEDS_NEEDED else "undecided"


def beyond_paper(holds: bool, seeds: int = SEEDS_NEEDED) -> Verdict:
    """The verdict on a sentence of our own, which is in no paper."""
    return settled("holds" if holds else "does not hold", seeds)


def seeds_missing(seeds: int) -> str:
    """The end of a sentence on why a claim is as it is."""
    return "" if seeds >= SEEDS_NEEDED else f", and {SEEDS_NEEDED} seeds are needed to settle it"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, in our words, beside what was found."""

    heading: str
    """Two to six words, for the heading of a section."""
    sentence: str
    found: str
    """Our number, in a sentence."""
    verdict: Verdict
    why: str = ""
    figure: str = ""
    """The file name of the plot that shows it; '' if none does."""
    beyond: bool = False
    """Not a sentence of the paper, but one of our own or a question."""


@dataclass
class Publication:
    """What an experiment found."""

    name: str
    """The stem of all its files."""
    title: str
    lead: str
    lines: Sequence[Line]
    """The table."""
    summary: Sequence[Line] = ()
    """What the terminal and the site show of it, if it is large."""
    tables: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """More tables, by their headings."""
    notes: Sequence[str] = ()
    figures: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Plots and their captions, by file name."""
    machines: Sequence[Mapping[str, Any]] = ()
    """What it was measured on: one after the other, if it went on elsewhere."""
    claims: Sequence[Claim] = ()
    """What the paper says about this."""
    seconds: float = 0.0
    """What all runs together took, if that was written down."""
    identified_by: Sequence[str] = ()
    """The columns that say which line of the table it is."""
    repeatable: Mapping[str, float] = field(default_factory=dict)
    """Columns that another machine should find too, and by how much it may differ."""


def show(publication: Publication) -> None:
    """Print the tables, the claims and the notes."""
    console = Console(highlight=False)
    show_table(console, publication.title, publication.summary or publication.lines)
    for heading, lines in publication.tables.items():
        show_table(console, heading, lines)
    for claim in publication.claims:
        console.print(f"• {claim.sentence} — {claim.verdict}: {claim.found}")
    for note in publication.notes:
        console.print(f"• {note}")


def show_table(console: Console, title: str, lines: Sequence[Line]) -> None:
    """Print lines that have the same columns."""
    columns = _fitting(lines, console.width)
    table = Table(*columns, title=title)
    for line in lines:
        table.add_row(*(shown(line[column]) for column in columns))
    console.print(table)


def _fitting(lines: Sequence[Line], width: int) -> list[str]:
    """The first columns that a terminal has room for, if no word is broken; files have all of them."""
    columns: list[str] = []
    for column in lines[0]:
        texts = [column, *(shown(line[column]) for line in lines)]
        width -= 3 + max((len(word) for text in texts for word in text.split()), default=0)
        if width < 1:
            break
        columns.append(column)
    return columns


def publish(publication: Publication, folder: Path) -> Path:
    """Write all files; return the page."""
    from basecagg.reports import plots

    stem = folder / publication.name
    content = {
        "machines": list(publication.machines),
        **({"seconds": publication.seconds} if publication.seconds else {}),
        **({"claims": [vars(claim) for claim in publication.claims]} if publication.claims else {}),
        "lines": list(publication.lines),
        **publication.tables,
        "notes": list(publication.notes),
    }
    write_json(stem.with_suffix(".json"), content)
    _write_csv(stem.with_suffix(".csv"), publication.lines)
    drawn = [
        page.figure(plots.save(figure, folder / "plots", name), caption)
        for name, (figure, caption) in publication.figures.items()
    ]
    path = stem.with_suffix(".html")
    page.write_page(
        path,
        publication.title,
        publication.lead,
        [
            page.section("Plots", page.plots(drawn)),
            *(page.section(head, _table(lines)) for head, lines in publication.tables.items()),
            page.section("Notes", *map(page.paragraph, publication.notes)),
            page.section("All figures", _table(publication.lines)),
            page.section("Machine", page.paragraph(machine.in_words(*publication.machines))),
        ],
    )
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Figures for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_csv(path: Path, lines: Sequence[Line]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _table(lines: Sequence[Line]) -> str:
    if not lines:
        return page.paragraph("nothing")
    return page.table(list(lines[0]), [[shown(cell) for cell in line.values()] for line in lines])


def select(lines: Sequence[Line], columns: Sequence[str]) -> list[Line]:
    """Some columns of a table."""
    return [{column: line[column] for column in columns} for line in lines]


def shown(value: object) -> str:
    """A value for a table: three digits, whole numbers with their thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(lines: Sequence[Line]) -> str:
    """A Markdown table."""
    head = f"| {' | '.join(name or 'remark' for name in lines[0])} |\n|{'---|' * len(lines[0])}\n"
    return head + "\n".join(f"| {' | '.join(map(shown, line.values()))} |" for line in lines)
