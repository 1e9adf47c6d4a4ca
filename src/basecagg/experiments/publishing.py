"""An experiment's results as files: JSON for programs, CSV for spreadsheets, a page for people, and plots."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from basecagg import __version__
from basecagg.extras import require
from basecagg.reports import page


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


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "basecagg": __version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def publish(publication: Publication, folder: Path) -> Path:
    """Write all files; return the page."""
    require("matplotlib", extra="learn", needed_for="plots")
    from basecagg.reports import plots

    folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    content = {
        "machine": about,
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
            page.section(
                "Machine", page.paragraph(", ".join(f"{k} {v}" for k, v in about.items()))
            ),
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


def shown(value: object) -> str:
    """A value for a table: three digits, whole numbers with their thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
