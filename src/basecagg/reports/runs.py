"""A finished or unfinished run, as reports read it from its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from basecagg.errors import DataError, printable
from basecagg.simulation import run_folder
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.result import score_text
from basecagg.simulation.run_folder import USUAL_SCORE


@dataclass(frozen=True)
class RunRecord:
    """One run: its configuration, a dictionary per version, and its totals if it has ended."""

    name: str
    """No other run of a report has it."""
    task: str
    """What was learned."""
    config: SimulationConfig
    versions: Sequence[dict[str, Any]]
    totals: dict[str, Any]
    score_name: str = USUAL_SCORE

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The versions that were evaluated."""
        return [version for version in self.versions if version["score"] is not None]

    @property
    def priced(self) -> list[dict[str, Any]]:
        """The versions that say what users have spent of their privacy."""
        return [version for version in self.versions if version.get("epsilon") is not None]

    @property
    def epsilon_text(self) -> str:
        """The largest ε that a user has spent, where one is promised."""
        return f"{self.priced[-1]['epsilon']:.3g}" if self.priced else "–"

    @property
    def final_score(self) -> float:
        """Of the last version that was evaluated."""
        return float(self.scored[-1]["score"])

    @property
    def score_text(self) -> str:
        """The final score: accuracy in percent, any other as a number."""
        return score_text(self.final_score, self.score_name)

    @property
    def best_score(self) -> float:
        """Of all versions that were evaluated."""
        return max(float(version["score"]) for version in self.scored)

    def time_to(self, score: float) -> float | None:
        """Simulated seconds to the first evaluated version with at least this score; None if none has it."""
        return next((v["time"] for v in self.scored if v["score"] >= score), None)

    @property
    def lost(self) -> int:
        """Updates that were trained, and are in no sum nor waiting for one; older runs did not count them."""
        return int(self.versions[-1].get("lost", 0))

    @property
    def simulated_seconds(self) -> float:
        """Simulated time of the last version."""
        return float(self.versions[-1]["time"])

    def staleness(self) -> Counter[int]:
        """The number of summed updates by staleness τ."""
        return Counter(tau for version in self.versions for tau in version["staleness"])

    @property
    def updates(self) -> int:
        """Updates that users had trained and sent by the last version."""
        return int(self.versions[-1]["updates"])

    def bytes_per_user(self) -> float | None:
        """Bytes sent by and to participants, per user, without model downloads; known at the end."""
        return sum(self.sent.values()) / self.config.users if self.sent else None

    @property
    def sent(self) -> dict[str, int]:
        """The same bytes of all users, by kind of message; empty until the end."""
        return dict(self.totals.get("bytes", {}))

    def processor_seconds(self) -> float | None:
        """Measured seconds of server, holders and contributors together, without training; if measured."""
        spent = self.totals.get("crypto seconds")
        return sum(spent.values()) if spent else None

    def burned(self) -> int:
        """Buffers that could not be opened."""
        return sum(version["burned"] for version in self.versions)


def read_runs(folders: Sequence[Path]) -> dict[Path, RunRecord]:
    """Read runs from their folders, each once, and give each a name of its own."""
    places = list(dict.fromkeys(folder.resolve() for folder in folders))
    return {place: read_run(place, name) for place, name in zip(places, names(places), strict=True)}


def read_run(folder: Path, name: str) -> RunRecord:
    """Read a run from its folder."""
    record = RunRecord(
        name,
        versions=run_folder.read_metrics(folder),
        config=run_folder.read_config(folder),
        task=printable(run_folder.read_task(folder)),
        totals=run_folder.read_totals(folder),
        score_name=printable(run_folder.read_score(folder)),
    )
    if not record.scored:
        raise DataError(f"{folder} has no evaluated version yet: nothing to report")
    return record


def shared_score(runs: Iterable[RunRecord]) -> str | None:
    """The name of the score that all runs have; None if they have several."""
    names = {run.score_name for run in runs}
    return names.pop() if len(names) == 1 else None


def names(places: Sequence[Path]) -> list[str]:
    """For each place the shortest end of its path that no other place has."""
    tails = [
        [printable("/".join(place.parts[-length:])) for length in range(1, len(place.parts) + 1)]
        for place in places
    ]
    shared = Counter(tail for each in tails for tail in each)
    return [
        next((tail for tail in each if shared[tail] == 1), f"{each[-1]} ({number})")
        for number, each in enumerate(tails, start=1)
    ]
