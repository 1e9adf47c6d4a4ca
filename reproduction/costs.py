"""What one aggregation costs, whatever the protocol: a cell to measure, and the row that comes out.

A row is for one synchronous round in which N users begin, D of them drop out before they upload, and the other
N − D are summed. BASecAgg sums the same N − D updates K at a time. Every cell is run at its own N and d. All
users do the same work, so one of them represents the others; and what the server does many times alike, such as
relaying a user's shares or opening a sum of K updates, is done once and multiplied.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from basecagg.costs import Network

Protocol: TypeAlias = Literal["secagg", "secagg+", "lightsecagg", "basecagg"]
PROTOCOLS: tuple[Protocol, ...] = ("secagg", "secagg+", "lightsecagg", "basecagg")
NAMES: Mapping[Protocol, str] = {
    "secagg": "SecAgg",
    "secagg+": "SecAgg+",
    "lightsecagg": "LightSecAgg",
    "basecagg": "BASecAgg",
}
"""As their papers spell them."""
Phase: TypeAlias = Literal["offline", "upload", "recovery"]
PHASES: tuple[Phase, ...] = ("offline", "upload", "recovery")
LINKS = (98, 320, 802)
"""Mb/s of a user's line, up and down: 4G, the LightSecAgg paper's machines, 5G."""
BUFFER = 10
"""K of BASecAgg, the paper's."""
LEAST_REPEATS, MOST_REPEATS, SHORT_SECONDS = 3, 9, 1.0
"""Of every cell; of those that are over sooner; and how soon that is."""
_FEW, _WARM = 25, 1000
"""N, if it is more, and d of what is run first, unmeasured."""


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

    @property
    def members(self) -> int:
        """Updates in one sum: those of the whole round, or K."""
        return min(BUFFER, self.survivors) if self.protocol == "basecagg" else self.survivors

    @property
    def sums(self) -> float:
        """That the survivors' updates make: one, or one for every K of them."""
        return self.survivors / self.members

    @property
    def memory(self) -> int:
        """Bytes that measuring it takes, about: the server's inputs, or shares, envelopes and answers."""
        if self.protocol in ("secagg", "secagg+"):
            return 4 * self.model_size * self.members
        share = self.model_size // (self.survivors - self.colluders)
        opening = share * (2 * self.survivors + self.members) + self.members * self.model_size
        return 4 * max(2 * self.users * share, opening)


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


Phases: TypeAlias = dict[Phase, PhaseCost]
"""One aggregation."""


def user_seconds(phases: Phases) -> float:
    """CPU of one user, all phases."""
    return sum(phase.user_seconds for phase in phases.values())


def server_seconds(phases: Phases) -> float:
    """CPU of the server, all phases."""
    return sum(phase.server_seconds for phase in phases.values())


def recovery_seconds(phases: Phases) -> float:
    """CPU of the server from the last upload to the sum."""
    return phases["recovery"].server_seconds


def bytes_sent(phases: Phases) -> float:
    """Of one user, all phases."""
    return sum(phase.bytes_up for phase in phases.values())


def bytes_received(phases: Phases) -> float:
    """Of one user, all phases."""
    return sum(phase.bytes_down for phase in phases.values())


class Spread(NamedTuple):
    """The middle one of some repeats, the least and the most."""

    middle: float
    least: float
    most: float


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
    repeats: list[Phases]
    exact: bool = True
    """Whether the sums opened on the way were the plain ones, bit for bit."""

    def spread(self, read: Callable[[Phases], float]) -> Spread:
        """What the repeats say of one cost."""
        values = [read(phases) for phases in self.repeats]
        return Spread(median(values), min(values), max(values))

    def duration(self, megabits: float, *, overlapped: bool) -> Spread:
        """Seconds of the aggregation; overlapped, the offline phase hides behind training."""
        counted = PHASES[1:] if overlapped else PHASES
        return self.spread(
            lambda phases: sum(phases[phase].duration(megabits) for phase in counted)
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Row:
        """The row whose `as_dict` this is."""
        repeats = [
            {name: PhaseCost(**cost) for name, cost in phases.items()}
            for phases in values["repeats"]
        ]
        rest = {name: values[name] for name in cls.__dataclass_fields__}
        return cls(**{**rest, "cell": Cell(**values["cell"]), "repeats": repeats})

    def flat(self) -> dict[str, Any]:
        """One line of a table."""
        line: dict[str, Any] = {
            "protocol": NAMES[self.cell.protocol],
            "N": self.cell.users,
            "dropout": self.cell.dropout,
            "d": self.cell.model_size,
            "T": self.colluders,
            "U or t": self.threshold,
            "degree": self.degree,
            "repeats": len(self.repeats),
            **_with_spread("user CPU s", self.spread(user_seconds)),
            **_with_spread("server CPU s", self.spread(server_seconds)),
        }
        for name in PHASES:
            phase = self._middle(name)
            line[f"{name}: user CPU s"] = phase.user_seconds
            line[f"{name}: server CPU s"] = phase.server_seconds
            line[f"{name}: bytes up"] = round(phase.bytes_up)
            line[f"{name}: bytes down"] = round(phase.bytes_down)
        for link in LINKS:
            line[f"{link} Mb/s: seconds"] = self.duration(link, overlapped=False).middle
            line[f"{link} Mb/s: seconds, overlapped"] = self.duration(link, overlapped=True).middle
        return {**line, "exact": self.exact}

    def _middle(self, name: Phase) -> PhaseCost:
        """Every cost of a phase, the middle one of the repeats."""
        columns = zip(*(vars(phases[name]).values() for phases in self.repeats), strict=True)
        return PhaseCost(*map(median, columns))


def _with_spread(column: str, spread: Spread) -> dict[str, float]:
    names = (column, f"{column}, least", f"{column}, most")
    return dict(zip(names, spread, strict=True))


# --- repeating ----------------------------------------------------------------------------------


class Setting(NamedTuple):
    """What a protocol is set to in a cell."""

    threshold: int
    colluders: int
    degree: int


class Once(NamedTuple):
    """One repeat, and whether its sum was exact."""

    phases: Phases
    exact: bool


def measured(cell: Cell, setting: Setting, aggregate: Callable[[Cell], Once]) -> Row:
    """The row of some repeats: three, and of a short one more, for its noise is larger."""
    _warm_up(aggregate, replace(cell, users=min(cell.users, _FEW), model_size=_WARM))
    np.ones(cell.memory, np.uint8)  # a virtual machine is charged for memory that it uses first
    done: list[Once] = []
    began = time.perf_counter()
    while len(done) < LEAST_REPEATS or (
        len(done) < MOST_REPEATS and time.perf_counter() - began < SHORT_SECONDS
    ):
        done.append(aggregate(cell))
        gc.collect()  # its machines, which may be gigabytes
    exact = all(once.exact for once in done)
    return Row(cell, *setting, [once.phases for once in done], exact=exact)


@cache
def _warm_up(aggregate: Callable[[Cell], Once], small: Cell) -> None:
    """Load or compile every kernel that the cell needs, so that no repeat is charged for it."""
    aggregate(small)
