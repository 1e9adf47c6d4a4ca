"""Write docs/results from benchmarks/results, where experiments, mutants and benchmarks leave their figures.

`python scripts/results.py` writes the pages and their pictures; with `--check` it only says which pages are out
of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import faults_page
import journeys_page
import mutants_page
import service_page
from basecagg.reports import plots
from reproduction.catalogue import EXPERIMENTS, find
from reproduction.experiment import ledger_path
from reproduction.machine import in_words
from reproduction.report import Claim, Publication, markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"
PAGES = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images" / "results"
HEADER = "<!-- Written by scripts/results.py from benchmarks/results. Do not edit. -->\n\n"

_SECRECY = "tests/claims/test_server_and_colluders_see_only_the_sum.py"
BY_TESTS = {
    "T-privacy: the server and T holders who pool all they see learn the weighted sum and nothing else, by"
    " counting through everything in small fields; one colluder too many is noticed.": (
        f"{_SECRECY}::test_one_colluder_in_f_5",
        f"{_SECRECY}::test_two_colluders",
        f"{_SECRECY}::test_the_count_notices",
    ),
    "Dropouts: any U of N shares give the sum exactly, whoever is gone.": (
        "tests/maths/test_mds_code.py::test_any_u_shares_decode_as_the_oracle_says",
        "tests/claims/test_the_recovered_sum_is_exact.py::test_with_any_holders_gone",
    ),
    "Stochastic rounding is unbiased.": (
        "tests/maths/test_quantization.py::test_rounding_is_unbiased",
        "tests/maths/test_quantization.py::test_rounding_of_many_numbers_is_unbiased_and_bounded",
    ),
    "Corrected: the paper allows N − D ≥ U ≥ T; with U = T there is no room for the mask beside T pieces of"
    " noise, so that U ≥ T + 1 is required.": (
        "tests/test_parameters.py::test_a_broken_rule_is_named_with_its_values",
    ),
}
"""Sentences of the paper that no measurement settles, and the tests that do."""


def main() -> None:
    """Write the pages and pictures, or check the pages."""
    found = [
        find(name).load(RESULTS) for name in EXPERIMENTS if ledger_path(RESULTS, name).exists()
    ]
    pages = {publication.name: page(publication) for publication in found}
    pages["paper"] = claims_page(found)
    pages["redo"] = redo_page(found)
    pages["mutants"] = mutants_page.page(HEADER)
    pages["faults"] = faults_page.page(HEADER)
    pages["journeys"] = journeys_page.page(HEADER)
    pages["service"] = service_page.page(HEADER)
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
        f"## {heading}\n\n{markdown(more)}\n\n" for heading, more in publication.tables.items()
    )
    claims = "".join(f"> {claim.sentence} **{verdict(claim)}**\n\n" for claim in publication.claims)
    notes = "\n".join(f"- {note}" for note in publication.notes)
    return (
        f"{HEADER}# {publication.title}\n\n{publication.lead}\n\n{claims}{pictures}\n\n"
        f"## Figures\n\n{markdown(publication.summary or publication.lines)}\n\n{tables}"
        f"## How to read this\n\n{notes}\n\n"
        f"Measured on: {in_words(*publication.machines)}{_duration(publication)}."
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
    shown_by_tests = "\n".join(
        f"- {sentence} Shown by {', '.join(f'`{test}`' for test in tests)}."
        for sentence, tests in BY_TESTS.items()
    )
    sections = "\n\n".join(_claim(each, claim) for each, claim in told)
    return (
        f"{HEADER}# The paper's claims\n\n"
        "Each claim in our words, beside what we measured. Figures and verdicts are computed from the committed"
        " ledgers by the code of each experiment; the sentences and what counts as a difference are ours, and"
        " stand in that code. *Partly*: the claim holds, but less than as it is told. *Undecided*: too few"
        " seeds or repeats, or an interval wider than what counts. *Corrected*: it fails as printed, and we"
        " know why.\n\n"
        f"{_summary(told, beyond=False)}\n\n"
        f"What is proved for all cases is tested, not measured:\n\n{shown_by_tests}\n\n"
        f"Beyond the paper:\n\n{_summary(told, beyond=True)}\n\n{sections}\n"
    )


def _summary(told: Iterable[tuple[Publication, Claim]], *, beyond: bool) -> str:
    return markdown(
        [
            {
                "claim": claim.sentence,
                "verdict": verdict(claim),
                "page": f"[{each.title}]({each.name}.md)",
            }
            for each, claim in told
            if claim.beyond == beyond
        ]
    )


def redo_page(found: Sequence[Publication]) -> str:
    """What a stranger needs to measure it again: the command, the hours, what must come out."""
    lines = [
        {
            "experiment": f"[{each.title}]({each.name}.md)",
            "command": f"`basecagg reproduce --check {each.name}`",
            "took": f"{each.seconds / 3600:.1f} h" if each.seconds >= 3600 else _minutes(each),
            "must come out": _expected(each),
        }
        for each in found
        if each.claims
    ]
    return (
        f"{HEADER}# Redo the paper\n\n{_REDO}\n\n{markdown(lines)}\n\n"
        "`flower` measures times, which no other machine repeats: run it without `--check`; of `protocols`,"
        " which does too, only verdicts are compared."
        " `basecagg reproduce all --quick` does everything in a short form. One seed settles nothing, so it"
        " says *undecided* where the full form would say more.\n"
    )


_REDO = """\
You need a checkout, `make test` once (it installs everything), about 5 GB of disk, and for MNIST and CIFAR-10
the official files in a folder `data`:

```text
data/mnist/                  train-images-idx3-ubyte  train-labels-idx1-ubyte
                             t10k-images-idx3-ubyte   t10k-labels-idx1-ubyte
data/cifar-10-batches-bin/   data_batch_1.bin … data_batch_5.bin  test_batch.bin
```

Then `. .venv/bin/activate`, and a command below. Stop whenever you like: the same command goes on, with the
run that was stopped from its last checkpoint. `--check` puts your figures beside the committed ones and exits
with 1 if a verdict or a figure differs by more than is stated. Seeds are the same. What differs is the order of
floating-point additions, which training amplifies. The committed CIFAR-10 runs saw images that had gone through
JPEG (quality 75), yours see the official ones: by how much that differs we have not measured.

The times are those of the committed runs by the clock, one after the other, on two cores that had other work
too: yours should take less, and `--workers 2` runs two at a time."""


def _expected(publication: Publication) -> str:
    verdicts = ", ".join(dict.fromkeys(claim.verdict for claim in publication.claims))
    figures = "".join(
        f"; {column} ± {within:g}" for column, within in publication.repeatable.items()
    )
    return f"the same verdicts ({verdicts}){figures}"


def _minutes(publication: Publication) -> str:
    return f"{publication.seconds / 60:.0f} min" if publication.seconds else "not written down"


def verdict(claim: Claim) -> str:
    """The verdict as a word at the beginning of a sentence."""
    return f"{claim.verdict.capitalize()}."


def _claim(publication: Publication, claim: Claim) -> str:
    why = f" Why: {claim.why}." if claim.why else ""
    drawn = f"{picture(publication, claim.figure)}\n\n" if claim.figure else ""
    return (
        f"## {claim.heading}\n\n> {claim.sentence}\n\n**{verdict(claim)}** Found: {claim.found}{why}\n\n{drawn}"
        f"`{command(publication)}`, {in_words(*publication.machines)}{_duration(publication)}."
        f" [Everything about it]({publication.name}.md)."
    )


def _duration(publication: Publication) -> str:
    minutes = publication.seconds / 60
    return f"; all runs together took {minutes:,.0f} minutes" if minutes >= 1 else ""


if __name__ == "__main__":
    main()
