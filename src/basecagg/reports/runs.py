"""A finished or unfinished run, as reports read it from its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from basecagg.errors import DataError
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.run_folder import read_config, read_metrics, read_totals


@dataclass(frozen=True)
class RunRecord:
    """One run: its configuration, a dictionary per version, and its totals if it has ended."""

    name: str
    config: SimulationConfig
    versions: Sequence[dict[str, Any]]
    totals: dict[str, Any]

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The versions that were evaluated."""
        return [version for version in self.versions if version["score"] is not None]

    @property
    def final_score(self) -> float:
        """Accuracy of the last version that was evaluated."""
        return float(self.scored[-1]["score"])

    @property
    def simulated_seconds(self) -> float:
        """Simulated time of the last version."""
        return float(self.versions[-1]["time"])

    def staleness(self) -> Counter[int]:
        """How many summed updates had which staleness τ."""
        return Counter(tau for version in self.versions for tau in version["staleness"])

    def bytes_per_user(self) -> float:
        """Bytes sent by and to participants, per user, without model downloads."""
        return float(sum(self.totals.get("bytes", {}).values())) / self.config.users

    def crypto_seconds(self) -> float:
        """Measured seconds of all machines together."""
        return float(sum(self.totals.get("crypto seconds", {}).values()))

    def burned(self) -> int:
        """Buffers that could not be opened."""
        return sum(version["burned"] for version in self.versions)


def read_run(folder: Path) -> RunRecord:
    """Read a run from its folder."""
    versions = read_metrics(folder)
    if not any(version.get("score") is not None for version in versions):
        raise DataError(f"{folder} has no evaluated version yet: nothing to report")
    return RunRecord(folder.name, read_config(folder), versions, read_totals(folder))
