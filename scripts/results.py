"""Write docs/results from the figures in benchmarks/results/compare, which `basecagg compare … --out` writes.

`python scripts/results.py` writes the pages and their pictures; with `--check` it only says which pages are out
of date.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from basecagg.experiments import flower_comparison, incompatibility, protocol_costs, schedule_race
from basecagg.experiments.publishing import Publication, in_words, shown
from basecagg.reports import plots

ROOT = Path(__file__).parent.parent
DATA = ROOT / "benchmarks" / "results" / "compare"
PAGES = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images" / "results"
HEADER = "<!-- Written by scripts/results.py from benchmarks/results/compare. Do not edit. -->\n\n"
Line = Mapping[str, Any]


def main() -> None:
    """Write the pages and pictures, or check the pages."""
    publications = {name: load() for name, (load, _, _) in SOURCES.items()}
    pages = {name: page(name, publication) for name, publication in publications.items()}
    stale = [name for name, text in pages.items() if _read(PAGES / f"{name}.md") != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run scripts/results.py: {', '.join(stale)}" if stale else 0)
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, publication in publications.items():
        (PAGES / f"{name}.md").write_text(pages[name], encoding="utf-8")
        for stem, (figure, _) in publication.figures.items():
            _save(figure, stem)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _save(figure: Any, stem: str) -> None:
    """The SVG only: a site needs no PNG."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plots.save(figure, Path(folder), stem)
        shutil.copy(Path(folder) / f"{stem}.svg", IMAGES / f"{stem}.svg")


def page(name: str, publication: Publication) -> str:
    """One page: pictures, tables, notes, machine."""
    _, columns, choose = SOURCES[name]
    pictures = "\n\n".join(
        f"![{caption}](../images/results/{stem}.svg)\n\n*{caption}*"
        for stem, (_, caption) in publication.figures.items()
    )
    tables = "".join(
        f"## {heading}\n\n{table(lines, tuple(lines[0]))}\n\n"
        for heading, lines in publication.tables.items()
    )
    notes = "\n".join(f"- {note}" for note in publication.notes)
    return (
        f"{HEADER}# {publication.title}\n\n{publication.lead}\n\n{pictures}\n\n"
        f"## Figures\n\n{table(choose(publication.lines), columns)}\n\n{tables}"
        f"## How to read this\n\n{notes}\n\n"
        f"Measured on: {in_words(publication.machine)}. `basecagg compare {name}` measures it on yours.\n"
    )


def table(lines: Sequence[Line], columns: Sequence[str]) -> str:
    """A Markdown table."""
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    return head + "\n".join(
        f"| {' | '.join(shown(line[column]) for column in columns)} |" for line in lines
    )


def _largest_model(lines: Sequence[Line]) -> Sequence[Line]:
    most = max(line["d"] for line in lines)
    return [line for line in lines if line["d"] == most]


def _everything(lines: Sequence[Line]) -> Sequence[Line]:
    return lines


def _schedules() -> Publication:
    """The full form if there is one."""
    return schedule_race.load(DATA, full=(DATA / "schedules-full.jsonl").exists())


SOURCES: dict[
    str,
    tuple[Callable[[], Publication], Sequence[str], Callable[[Sequence[Line]], Sequence[Line]]],
] = {
    "protocols": (
        lambda: protocol_costs.load(DATA),
        (
            "protocol",
            "N",
            "dropout",
            "d",
            "T",
            "degree",
            "user CPU s",
            "server CPU s",
            "98 Mb/s: seconds, overlapped",
            "320 Mb/s: seconds",
            "320 Mb/s: seconds, overlapped",
            "802 Mb/s: seconds, overlapped",
            "extrapolated",
        ),
        _largest_model,
    ),
    "schedules": (
        _schedules,
        (
            "method",
            "speed",
            "C",
            "K",
            "simulated seconds",
            "updates",
            "accuracy",
            "reached",
            "faster than fedavg",
            "faster than fedasync",
        ),
        _everything,
    ),
    "flower": (
        lambda: flower_comparison.load(DATA),
        (
            "users",
            "shares",
            "model_size",
            "threshold",
            "colluders",
            "flower_total",
            "secagg_total",
            "basecagg_total",
            "flower / our secagg, per user",
            "flower / our secagg, server",
            "flower / basecagg, total",
        ),
        _everything,
    ),
    "incompatibility": (
        lambda: incompatibility.load(DATA),
        ("mixed", "share", "secagg", "secagg_wrong", "basecagg", "basecagg_wrong"),
        _everything,
    ),
}
"""Where each page comes from, the columns of its table, and which lines it shows."""


if __name__ == "__main__":
    main()
