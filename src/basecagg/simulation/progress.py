"""Progress of a run as one line that is written over and over, in a terminal and in a notebook."""

from __future__ import annotations

import sys
import time

from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.logbook import VersionRecord

_EVERY = 0.1
"""Seconds from one writing to the next, at least."""


class Line:
    """Say of every version how far the run is, what it scored last, and what was lost and burned."""

    def __init__(self, config: SimulationConfig, title: str = "") -> None:
        """`title` stands in front."""
        self._ending, self._title = config.ending, title or config.label
        self._score = self._shown = ""
        self._burned, self._next = 0, 0.0

    def __call__(self, record: VersionRecord) -> None:
        """A version is there."""
        measure, amount = self._ending
        done = record.reached(measure)
        self._burned += record.burned
        if record.score is not None:
            self._score = f", score {record.score:.4f}"
        over = done >= amount
        if time.monotonic() < self._next and not over:
            return
        self._next = time.monotonic() + _EVERY
        fate = f", {record.lost} lost" * bool(record.lost) + f", {self._burned} burned" * bool(
            self._burned
        )
        text = (
            f"{self._title}: {min(done, amount):.0f} of {amount:.0f} {measure}{self._score}{fate}"
        )
        sys.stdout.write("\r" + text.ljust(len(self._shown)) + "\n" * over)
        sys.stdout.flush()
        self._shown = text
