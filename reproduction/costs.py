"""What one aggregation costs, whatever the protocol: a cell to measure, and the row that comes out.

A row is for one synchronous round in which N users begin, D of them drop out before they upload, and the other
N − D are summed. BASecAgg sums the same N − D updates K at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from basecagg.costs import Network

Protocol: TypeAlias = Literal["secagg", "secagg+", "lightsecagg", "basecagg"]
PROTOCOLS: tuple[Protocol, ...] = ("secagg", "secagg+", "lightsecagg", "basecagg")
Phase: TypeAlias = Literal["offline", "upload", "recovery"]
PHASES: tuple[Phase, ...] = ("offline", "upload", "recovery")
LINKS = (98, 320, 802)
"""Mb/s of a user's line, up and down: 4G, the LightSecAgg paper's machines, 5G."""
BUFFER = 10
"""K of BASecAgg, the paper's."""


@dataclass(frozen=True)
class Cell:
    """What to measure."""

    protocol: Protocol
    users: int
    """N"""
    dropout: float
    """D/N"""
    model_size: int
    """d"""

    @property
    def key(self) -> str:
        """A name for files and resumed runs."""
        return f"{self.protocol}/{self.users}/{self.dropout:g}/{self.model_size}"

    @property
    def dropouts(self) -> int:
        """D"""
        return round(self.dropout * self.users)

    @property
    def survivors(self) -> int:
        """N − D = U: the largest recovery threshold, hence the smallest shares."""
        return self.users - self.dropouts

    @property
    def colluders(self) -> int:
        """T = N/2, or the largest that U ≥ T + 1 allows."""
        return min(self.users // 2, self.survivors - 1)


@dataclass
class PhaseCost:
    """One phase: processor seconds of a user and of the server, bytes that a user sends and receives."""

    user_seconds: float = 0.0
    server_seconds: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0

    def duration(self, megabits: float) -> float:
        """Seconds if all users work side by side on lines of this speed, then the server."""
        moved = Network(megabits, megabits).seconds(self.bytes_up, self.bytes_down)
        return self.user_seconds + moved + self.server_seconds


@dataclass
class Row:
    """A measured cell."""

    cell: Cell
    threshold: int
    """U of coded masks, t of pairwise ones."""
    colluders: int
    """T that the row holds against."""
    degree: int
    """k: others that a user masks with, or that hold its shares."""
    phases: dict[Phase, PhaseCost]
    extrapolated: str = ""
    """What was not measured at full size, and how it was extended; '' if everything was."""
    exact: bool = True
    """Whether the sums opened on the way were the plain ones, bit for bit."""

    @property
    def user_seconds(self) -> float:
        """CPU of one user, all phases."""
        return sum(phase.user_seconds for phase in self.phases.values())

    @property
    def server_seconds(self) -> float:
        """CPU of the server, all phases."""
        return sum(phase.server_seconds for phase in self.phases.values())

    def duration(self, megabits: float, *, overlapped: bool) -> float:
        """Seconds of the aggregation; overlapped, the offline phase hides behind training."""
        counted = PHASES[1:] if overlapped else PHASES
        return sum(self.phases[phase].duration(megabits) for phase in counted)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Row:
        """The row whose `as_dict` this is."""
        phases = {name: PhaseCost(**cost) for name, cost in values["phases"].items()}
        rest = {name: values[name] for name in cls.__dataclass_fields__}
        return cls(**{**rest, "cell": Cell(**values["cell"]), "phases": phases})

    def flat(self) -> dict[str, Any]:
        """One line of a table."""
        line: dict[str, Any] = {
            "protocol": self.cell.protocol,
            "N": self.cell.users,
            "dropout": self.cell.dropout,
            "d": self.cell.model_size,
            "T": self.colluders,
            "U or t": self.threshold,
            "degree": self.degree,
            "user CPU s": self.user_seconds,
            "server CPU s": self.server_seconds,
        }
        for name, phase in self.phases.items():
            line[f"{name}: user CPU s"] = phase.user_seconds
            line[f"{name}: server CPU s"] = phase.server_seconds
            line[f"{name}: bytes up"] = round(phase.bytes_up)
            line[f"{name}: bytes down"] = round(phase.bytes_down)
        for link in LINKS:
            line[f"{link} Mb/s: seconds"] = self.duration(link, overlapped=False)
            line[f"{link} Mb/s: seconds, overlapped"] = self.duration(link, overlapped=True)
        return {**line, "exact": self.exact, "extrapolated": self.extrapolated}
