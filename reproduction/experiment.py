"""An experiment of `basecagg reproduce`: what it measures into a ledger, and what it reports from one.

Measuring and reporting meet only in the ledger. So a stopped experiment goes on where it was, a finished one is
drawn again without being run, and the pages of results come from the same code as the command's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reproduction.ledger import Ledger
from reproduction.publishing import Publication

Size = Literal["full", "quick", "smoke"]
"""Hours; minutes; seconds on a data set that needs no file."""
Results = Mapping[str, Any]
"""What a ledger holds, by key."""


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    done: int
    total: int
    now: str
    """The run that was just begun or finished."""
    seconds_left: float | None = None
    """None while nothing is known about the speed of this machine."""


@dataclass(frozen=True)
class Order:
    """What was asked for: how much, from which data, and with how many processes."""

    size: Size = "full"
    data_dir: Path = Path("data")
    workers: int = 1
    tell: Callable[[Progress], None] = field(default=lambda progress: None)


@dataclass(frozen=True)
class Experiment:
    """`measure` adds to the ledger what it lacks; `report` says what is in it, however much that is."""

    name: str
    """On the command line, and the stem of all its files."""
    measure: Callable[[Order, Ledger], None]
    report: Callable[[Results, Size], Publication]

    def run(self, order: Order, folder: Path) -> Publication:
        """Measure what the folder has no result of yet, and report everything."""
        self.measure(order, self._ledger(folder, order.size))
        return self.load(folder, order.size)

    def load(self, folder: Path, size: Size = "full") -> Publication:
        """Report what the folder holds."""
        ledger = self._ledger(folder, size)
        publication = self.report(ledger.results, size)
        publication.machine = ledger.machine
        publication.seconds = sum(result.get("seconds", 0.0) for result in ledger.results.values())
        return publication

    def _ledger(self, folder: Path, size: Size) -> Ledger:
        return Ledger(ledger_path(folder, self.name, size))


def ledger_path(folder: Path, name: str, size: Size = "full") -> Path:
    """The file of an experiment's results; there is none before the first."""
    return folder / (f"{name}.jsonl" if size == "full" else f"{name}-{size}.jsonl")
