"""Write docs/results from benchmarks/results, which `basecagg compare`, `reproduce` and `make mutants` write.

`python scripts/results.py` writes the pages and their pictures; with `--check` it only says which pages are out
of date.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import mutants_page
from basecagg.reports import plots
from reproduction import flower_comparison, incompatibility, protocol_costs, schedule_race
from reproduction.catalogue import EXPERIMENTS, find
from reproduction.experiment import ledger_path
from reproduction.publishing import Claim, Publication, in_words, shown

ROOT = Path(__file__).parent.parent
COMPARED = ROOT / "benchmarks" / "results" / "compare"
REPRODUCED = ROOT / "benchmarks" / "results" / "reproduce"
PAGES = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images" / "results"
HEADER = "<!-- Written by scripts/results.py from benchmarks/results. Do not edit. -->\n\n"
Line = Mapping[str, Any]


def _everything(lines: Sequence[Line]) -> Sequence[Line]:
    return lines


@dataclass(frozen=True)
class Source:
    """Where a page comes from, the columns of its table (none: all), and which lines it shows."""

    command: str
    load: Callable[[], Publication]
    columns: Sequence[str] = ()
    choose: Callable[[Sequence[Line]], Sequence[Line]] = _everything


def main() -> None:
    """Write the pages and pictures, or check the pages."""
    sources = {**COMPARISONS, **reproductions()}
    found = {name: source.load() for name, source in sources.items()}
    pages = {name: page(sources[name], found[name]) for name in found}
    pages["paper"] = claims_page({sources[name].command: each for name, each in found.items()})
    pages["mutants"] = mutants_page.page(HEADER)
    stale = [name for name, text in pages.items() if _read(PAGES / f"{name}.md") != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run scripts/results.py: {', '.join(stale)}" if stale else 0)
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
    for publication in found.values():
        for stem, (figure, _) in publication.figures.items():
            _save(figure, stem)


def reproductions() -> dict[str, Source]:
    """The experiments of `basecagg reproduce` that were run."""
    return {
        name: Source(f"basecagg reproduce {name}", partial(_reproduced, name))
        for name in EXPERIMENTS
        if ledger_path(REPRODUCED, name).exists()
    }


def _reproduced(name: str) -> Publication:
    return find(name).load(REPRODUCED)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _save(figure: Any, stem: str) -> None:
    """The SVG only: a site needs no PNG."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plots.save(figure, Path(folder), stem)
        shutil.copy(Path(folder) / f"{stem}.svg", IMAGES / f"{stem}.svg")


def page(source: Source, publication: Publication) -> str:
    """One page: claims, pictures, tables, notes, machine."""
    pictures = "\n\n".join(picture(publication, stem) for stem in publication.figures)
    lines = source.choose(publication.lines)
    tables = "".join(
        f"## {heading}\n\n{table(more, tuple(more[0]))}\n\n"
        for heading, more in publication.tables.items()
    )
    claims = "".join(f"> {claim.sentence} **{verdict(claim)}**\n\n" for claim in publication.claims)
    notes = "\n".join(f"- {note}" for note in publication.notes)
    return (
        f"{HEADER}# {publication.title}\n\n{publication.lead}\n\n{claims}{pictures}\n\n"
        f"## Figures\n\n{table(lines, source.columns or tuple(lines[0]))}\n\n{tables}"
        f"## How to read this\n\n{notes}\n\n"
        f"Measured on: {in_words(publication.machine)}{_duration(publication)}."
        f" `{source.command}` measures it on yours.\n"
    )


def picture(publication: Publication, stem: str) -> str:
    """A picture with its caption."""
    caption = publication.figures[stem][1]
    return f"![{caption}](../images/results/{stem}.svg)\n\n*{caption}*"


def claims_page(found: Mapping[str, Publication]) -> str:
    """Every claim beside our number, by the command that measures it."""
    told = [(command, each, claim) for command, each in found.items() for claim in each.claims]
    summary = "\n".join(
        f"| {claim.sentence} | {verdict(claim)} | [{each.title}]({each.name}.md) |"
        for _, each, claim in told
    )
    sections = "\n\n".join(_claim(command, each, claim) for command, each, claim in told)
    return (
        f"{HEADER}# The paper's claims\n\n"
        "Each claim in our words, beside what we measured. A verdict is computed from the committed figures"
        " by the code of its experiment; nothing on this page is typed in.\n\n"
        f"| claim | verdict | page |\n|---|---|---|\n{summary}\n\n{sections}\n"
    )


def verdict(claim: Claim) -> str:
    """The verdict as a word at the beginning of a sentence."""
    return f"{claim.verdict.capitalize()}."


def _claim(command: str, publication: Publication, claim: Claim) -> str:
    why = f" Why: {claim.why}." if claim.why else ""
    drawn = f"{picture(publication, claim.figure)}\n\n" if claim.figure else ""
    return (
        f"## {claim.sentence}\n\n**{verdict(claim)}** Found: {claim.found}{why}\n\n{drawn}"
        f"`{command}`, {in_words(publication.machine)}{_duration(publication)}."
        f" [Everything about it]({publication.name}.md)."
    )


def _duration(publication: Publication) -> str:
    minutes = publication.seconds / 60
    return f"; all runs together took {minutes:,.0f} minutes" if minutes >= 1 else ""


def table(lines: Sequence[Line], columns: Sequence[str]) -> str:
    """A Markdown table."""
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    return head + "\n".join(
        f"| {' | '.join(shown(line[column]) for column in columns)} |" for line in lines
    )


def _largest_model(lines: Sequence[Line]) -> Sequence[Line]:
    most = max(line["d"] for line in lines)
    return [line for line in lines if line["d"] == most]


def _schedules() -> Publication:
    """The full form if there is one."""
    return schedule_race.load(COMPARED, full=(COMPARED / "schedules-full.jsonl").exists())


COMPARISONS = {
    "protocols": Source(
        "basecagg compare protocols",
        lambda: protocol_costs.load(COMPARED),
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
    "schedules": Source(
        "basecagg compare schedules",
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
    ),
    "flower": Source(
        "basecagg compare flower",
        lambda: flower_comparison.load(COMPARED),
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
    ),
    "incompatibility": Source(
        "basecagg compare incompatibility",
        lambda: incompatibility.load(COMPARED),
        ("mixed", "share", "secagg", "secagg_wrong", "basecagg", "basecagg_wrong"),
    ),
}


if __name__ == "__main__":
    main()
