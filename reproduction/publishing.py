"""An experiment's results as files: JSON for programs, CSV for spreadsheets, a page for people, and plots."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from basecagg.extras import require
from basecagg.reports import page

Verdict = Literal[
    "reproduced", "partly", "not reproduced", "undecided", "corrected", "beyond the paper"
]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, in our words, beside what was found."""

    sentence: str
    found: str
    """Our number, in a sentence."""
    verdict: Verdict
    why: str = ""
    figure: str = ""
    """The file name of the plot that shows it; '' if none does."""


@dataclass
class Publication:
    """What an experiment found."""

    name: str
    """The stem of all its files."""
    title: str
    lead: str
    lines: Sequence[Mapping[str, Any]]
    """The table, a mapping from column to value for every line."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """More tables, by their headings."""
    notes: Sequence[str] = ()
    figures: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Plots and their captions, by file name."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What it was measured on."""
    claims: Sequence[Claim] = ()
    """What the paper says about this."""
    seconds: float = 0.0
    """What all runs together took, if that was written down."""


def publish(publication: Publication, folder: Path) -> Path:
    """Write all files; return the page."""
    require("matplotlib", extra="learn", needed_for="plots")
    from basecagg.reports import plots

    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": dict(publication.machine),
        **({"seconds": publication.seconds} if publication.seconds else {}),
        **({"claims": [vars(claim) for claim in publication.claims]} if publication.claims else {}),
        "lines": list(publication.lines),
        **publication.tables,
        "notes": list(publication.notes),
    }
    stem = folder / publication.name
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    _write_csv(stem.with_suffix(".csv"), publication.lines)
    for name, (figure, _) in publication.figures.items():
        plots.save(figure, folder / "plots", name)
    drawn = [
        page.figure(plots.as_svg(figure), caption)
        for figure, caption in publication.figures.values()
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
            page.section("Machine", page.paragraph(in_words(publication.machine))),
        ],
    )
    return path


def _write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    if not lines:
        return page.paragraph("nothing")
    return page.table(list(lines[0]), [[shown(cell) for cell in line.values()] for line in lines])


def in_words(machine: Mapping[str, Any]) -> str:
    """The machine as a line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def shown(value: object) -> str:
    """A value for a table: three digits, whole numbers with their thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
