"""Write docs/results from benchmarks/results, which `basecagg reproduce` and `make mutants` write.

`python scripts/results.py` writes the pages and their pictures; with `--check` it only says which pages are out
of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import mutants_page
from basecagg.reports import plots
from reproduction.catalogue import EXPERIMENTS, find
from reproduction.experiment import ledger_path
from reproduction.machine import in_words
from reproduction.report import Claim, Line, Publication, shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"
PAGES = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images" / "results"
HEADER = "<!-- Written by scripts/results.py from benchmarks/results. Do not edit. -->\n\n"


def main() -> None:
    """Write the pages and pictures, or check the pages."""
    found = [
        find(name).load(RESULTS) for name in EXPERIMENTS if ledger_path(RESULTS, name).exists()
    ]
    pages = {publication.name: page(publication) for publication in found}
    pages["paper"] = claims_page(found)
    pages["mutants"] = mutants_page.page(HEADER)
    stale = [name for name, text in pages.items() if _read(PAGES / f"{name}.md") != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date, run scripts/results.py: {', '.join(stale)}" if stale else 0)
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
    for publication in found:
        for stem, (figure, _) in publication.figures.items():
            plots.save(figure, IMAGES, stem, ("svg",))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def page(publication: Publication) -> str:
    """One page: claims, pictures, tables, notes, machine."""
    pictures = "\n\n".join(picture(publication, stem) for stem in publication.figures)
    tables = "".join(
        f"## {heading}\n\n{table(more)}\n\n" for heading, more in publication.tables.items()
    )
    claims = "".join(f"> {claim.sentence} **{verdict(claim)}**\n\n" for claim in publication.claims)
    notes = "\n".join(f"- {note}" for note in publication.notes)
    return (
        f"{HEADER}# {publication.title}\n\n{publication.lead}\n\n{claims}{pictures}\n\n"
        f"## Figures\n\n{table(publication.summary or publication.lines)}\n\n{tables}"
        f"## How to read this\n\n{notes}\n\n"
        f"Measured on: {in_words(publication.machine)}{_duration(publication)}."
        f" `{command(publication)}` measures it on yours.\n"
    )


def command(publication: Publication) -> str:
    """What measures it."""
    return f"basecagg reproduce {publication.name}"


def picture(publication: Publication, stem: str) -> str:
    """A picture with its caption."""
    caption = publication.figures[stem][1]
    return f"![{caption}](../images/results/{stem}.svg)\n\n*{caption}*"


def claims_page(found: Iterable[Publication]) -> str:
    """Every claim beside our number, by the command that measures it."""
    told = [(each, claim) for each in found for claim in each.claims]
    summary = "\n".join(
        f"| {claim.sentence} | {verdict(claim)} | [{each.title}]({each.name}.md) |"
        for each, claim in told
    )
    sections = "\n\n".join(_claim(each, claim) for each, claim in told)
    return (
        f"{HEADER}# The paper's claims\n\n"
        "Each claim in our words, beside what we measured. A verdict is computed from the committed figures"
        " by the code of its experiment; nothing on this page is typed in.\n\n"
        f"| claim | verdict | page |\n|---|---|---|\n{summary}\n\n{sections}\n"
    )


def verdict(claim: Claim) -> str:
    """The verdict as a word at the beginning of a sentence."""
    return f"{claim.verdict.capitalize()}."


def _claim(publication: Publication, claim: Claim) -> str:
    why = f" Why: {claim.why}." if claim.why else ""
    drawn = f"{picture(publication, claim.figure)}\n\n" if claim.figure else ""
    return (
        f"## {claim.sentence}\n\n**{verdict(claim)}** Found: {claim.found}{why}\n\n{drawn}"
        f"`{command(publication)}`, {in_words(publication.machine)}{_duration(publication)}."
        f" [Everything about it]({publication.name}.md)."
    )


def _duration(publication: Publication) -> str:
    minutes = publication.seconds / 60
    return f"; all runs together took {minutes:,.0f} minutes" if minutes >= 1 else ""


def table(lines: Sequence[Line]) -> str:
    """A Markdown table."""
    head = f"| {' | '.join(lines[0])} |\n|{'---|' * len(lines[0])}\n"
    return head + "\n".join(f"| {' | '.join(map(shown, line.values()))} |" for line in lines)


if __name__ == "__main__":
    main()
