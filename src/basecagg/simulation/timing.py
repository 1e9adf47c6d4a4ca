"""Schedules and clocks by name: when updates meet, and how time passes. Your own go into the same tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from basecagg.schedules.buffered import Buffered, Synchronous
from basecagg.schedules.mixing import Immediate, Tiered, split_by_speed
from basecagg.schedules.schedule import Aggregation, Schedule

if TYPE_CHECKING:
    from basecagg.simulation.clock import Clock

Kind = Literal["synchronous", "buffered", "immediate", "tiered"]


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """A schedule, and everything that other files need to know about it."""

    make: Callable[[Any, Aggregation, Sequence[float]], Schedule]
    """Makes it from the settings of a run, its aggregation, and the seconds that each user trains."""
    kind: Kind = "buffered"
    """What becomes of updates. "buffered": K of any versions are summed. "synchronous": K of one version are.
    "immediate" and "tiered": the schedule mixes models itself, so nothing is summed that masks could hide.
    Protections and checks go by this."""

    @property
    def sums(self) -> bool:
        """Whether updates go to the aggregation, which sums K of them."""
        return self.kind in ("synchronous", "buffered")


def _mixed(settings: Any, aggregation: Aggregation, seconds: Sequence[float]) -> Schedule:
    return Immediate(
        aggregation.model,
        settings.users_at_once,
        settings.fedasync_mixing,
        settings.staleness_function,
        settings.max_staleness,
    )


def _tiered(settings: Any, aggregation: Aggregation, seconds: Sequence[float]) -> Schedule:
    cohort = max(1, settings.users_at_once // settings.tiers)
    return Tiered(aggregation.model, split_by_speed(seconds, settings.tiers), cohort)


SCHEDULES: dict[str, Timetable] = {
    "synchronous": Timetable(
        make=lambda settings, aggregation, _: Synchronous(aggregation, settings.users_at_once),
        kind="synchronous",
    ),
    "immediate": Timetable(make=_mixed, kind="immediate"),
    "buffered": Timetable(
        make=lambda settings, aggregation, _: Buffered(aggregation, settings.users_at_once)
    ),
    "tiered": Timetable(make=_tiered, kind="tiered"),
}
"""Every schedule there is."""


class Timepiece(NamedTuple):
    """A clock, and what checks need to know about it."""

    make: Callable[..., Clock]
    """The class, or a function that makes one from the same arguments."""
    draws_versions: bool = False
    """Whether it has no seconds, and draws by itself from which version each update is."""


def _devices(*parts: Any) -> Clock:
    from basecagg.simulation.event_clock import DeviceClock  # it needs torch, the settings do not

    return DeviceClock(*parts)


def _uniform_staleness(*parts: Any) -> Clock:
    from basecagg.simulation.clock import UniformStaleness

    return UniformStaleness(*parts)


CLOCKS: dict[str, Timepiece] = {
    "devices": Timepiece(_devices),
    "uniform-staleness": Timepiece(_uniform_staleness, draws_versions=True),
}
"""Every clock there is."""
