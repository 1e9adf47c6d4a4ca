"""What a simulated run gives back: every version, the totals and the model; as rows, a frame, text or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from basecagg.errors import MissingPartError
from basecagg.printing import Shown, plain_table, sections
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.logbook import VersionRecord
from basecagg.simulation.purposes import largest_part
from basecagg.simulation.run_folder import USUAL_SCORE

if TYPE_CHECKING:
    from rich.console import RenderableType


class Point(NamedTuple):
    """A version that was evaluated."""

    time: float
    """Simulated seconds."""
    score: float


@dataclass(frozen=True, repr=False)
class SimulationResult(Shown):
    """A finished run: every version, and the totals. It prints as a table, and in a notebook too."""

    config: SimulationConfig
    versions: tuple[VersionRecord, ...]
    totals: Mapping[str, Any]
    model: Vector
    score_name: str = field(default=USUAL_SCORE)
    """Accuracy, unless the task has a score of its own."""

    @property
    def score(self) -> float:
        """Accuracy (or the task's own score) of the last version that was evaluated."""
        return self.curve[-1].score

    @property
    def curve(self) -> list[Point]:
        """The versions that were evaluated."""
        return [Point(v.time, v.score) for v in self.versions if v.score is not None]

    @property
    def time(self) -> float:
        """Simulated seconds from start to the last version."""
        return self.versions[-1].time

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent; None where nothing is promised."""
        return self.versions[-1].epsilon

    @property
    def bytes_per_user(self) -> float:
        """Bytes sent by and to participants, per user, without downloads of the model."""
        sent: dict[str, int] = self.totals["bytes"]
        return sum(sent.values()) / self.config.users

    def time_to(self, score: float) -> float | None:
        """Simulated seconds to the first evaluated version with at least this score; None if none has it."""
        return next((each.time for each in self.curve if each.score >= score), None)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each version."""
        return [_row(version) for version in self.versions]

    def frame(self) -> Any:
        """The same as a pandas.DataFrame, if pandas is installed."""
        return frame_of(self.rows())

    def __rich__(self) -> RenderableType:
        """What the run is, what came of it, and how it went."""
        facts = {
            self.score_name: score_text(self.score, self.score_name),
            "simulated time": f"{self.time:,.1f} s",
            "versions": self.versions[-1].version,
            "updates": f"{self.versions[-1].updates}, of which {self.versions[-1].lost} were lost",
            "sums burned": sum(version.burned for version in self.versions),
            "MB per user": f"{self.bytes_per_user / 1e6:.2f}, most of it: {largest_part(self.totals['bytes'])}",
            **({} if self.epsilon is None else {"ε spent": f"{self.epsilon:.3g}"}),
            **({"stopped": self.totals["stopped"]} if "stopped" in self.totals else {}),
        }
        shown = [row for row in self.rows() if row["score"] is not None][-_SHOWN:]
        curve = plain_table(
            *(f"{name} >" for name in _CURVE),
            rows=[[_cell(row[name]) for name in _CURVE] for row in shown],
        )
        title = f"{self.config.label} with {self.config.users} users"
        return sections({title: plain_table(rows=list(facts.items())), "versions": curve})


_SHOWN = 10
"""Versions in the printed table; the frame has them all."""
_CURVE = ("version", "time", "score", "loss", "updates", "lost", "burned", "epsilon")


def _row(version: VersionRecord) -> dict[str, Any]:
    return {
        "version": version.version,
        "time": version.time,
        "score": version.score,
        "loss": version.loss,
        "updates": version.updates,
        "lost": version.lost,
        "burned": version.burned,
        "members": len(version.staleness),
        "staleness": fmean(version.staleness) if version.staleness else None,
        "epsilon": version.epsilon,
    }


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def score_text(score: float, name: str) -> str:
    """Accuracy in percent, any other score as a number."""
    return f"{100 * score:.1f} %" if name == USUAL_SCORE else f"{score:.4g}"


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas.DataFrame of dictionaries."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingPartError(
            "frames need pandas (pip install pandas); rows() gives the same as dictionaries"
        ) from error
    return pandas.DataFrame(list(rows))
