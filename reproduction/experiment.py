"""An experiment of `basecagg reproduce`: the runs that it needs, and what it reports from their results.

Running and reporting meet only in the ledger. So a stopped experiment goes on where it was, a finished one is
drawn again without being run, and the pages of results come from the same code as the command's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reproduction.jobs import Job, Order, Size, run_jobs
from reproduction.ledger import Ledger
from reproduction.report import Publication

Results = Mapping[str, Any]
"""What a ledger holds, by key."""


@dataclass(frozen=True)
class Experiment:
    """One figure, table or claim of a paper, or a question that no paper asks."""

    name: str
    """On the command line, and the stem of all its files."""
    jobs: Callable[[Order, Results], Sequence[Job]]
    """All runs, the most wanted first, as far as the results so far tell which they are."""
    report: Callable[[Results, Size], Publication]
    """What the results say, however many there are."""
    timed: bool = True
    """Whether the committed `seconds` are those that a run took; in the races they are simulated ones."""

    def run(self, order: Order, folder: Path) -> Publication:
        """Run what the folder has no result of yet, and report everything."""
        ledger = Ledger(ledger_path(folder, self.name, order.size))
        order = replace(order, unfinished=folder / "unfinished" / self.name)
        jobs: Sequence[Job] = ()
        while len(jobs) < len(jobs := self.jobs(order, ledger.results)):
            run_jobs(jobs, order, ledger)
        return self.load(folder, order.size)

    def load(self, folder: Path, size: Size = "full") -> Publication:
        """Report what the folder holds."""
        ledger = Ledger(ledger_path(folder, self.name, size))
        publication = self.report(ledger.results, size)
        publication.machines = ledger.machines
        if self.timed:
            publication.seconds = sum(each.get("seconds", 0.0) for each in ledger.results.values())
        return publication


def ledger_path(folder: Path, name: str, size: Size = "full") -> Path:
    """The file of an experiment's results; there is none before the first."""
    return folder / (f"{name}.jsonl" if size == "full" else f"{name}-{size}.jsonl")
