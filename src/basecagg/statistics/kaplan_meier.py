"""Survival by Kaplan and Meier (1958): events and censorings in each interval are a vector, and add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from basecagg.statistics.statistic import Marks, Rows, Statistic, Vector, ascending, column, maker


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """Who was at risk, what happened, and how many are left, interval by interval."""

    times: Vector
    """The end of each interval."""
    events: Vector
    censored: Vector
    """Left the study within the interval without the event, after those who had it."""

    @property
    def at_risk(self) -> Vector:
        """Records that enter an interval: they leave in it or later. It follows from the counts."""
        return np.cumsum((self.events + self.censored)[::-1])[::-1]

    @property
    def hazard(self) -> Vector:
        """The fraction of those at risk who have the event; clipped, for noisy counts may be impossible."""
        fractions: Vector = self.events / np.maximum(self.at_risk, 1.0)
        return np.clip(fractions, 0.0, 1.0)

    @property
    def survival(self) -> Vector:
        """S at the end of each interval."""
        return np.cumprod(1.0 - self.hazard, dtype=np.float64)

    @property
    def deviation(self) -> Vector:
        """The standard error of S, by Greenwood's formula."""
        risk = np.maximum(self.at_risk, 1.0)
        left = np.maximum(risk * (1.0 - self.hazard), 1.0)
        return self.survival * np.sqrt(np.cumsum(self.hazard / left))


@maker
def kaplan_meier(
    times: Sequence[float], *, most: int, time: str = "time", event: str = "event"
) -> Statistic[SurvivalCurve]:
    """Survival over intervals that end at `times`; who is in the study for longer is censored at the last.

    A record is in one cell of the vector, so one record changes it by 1.
    """
    ends = ascending(times, "the ends of intervals")

    def of_rows(rows: Rows) -> Vector:
        cell, happened = last_intervals(rows, ends, time, event)
        events = np.bincount(cell[happened], minlength=ends.size)
        censored = np.bincount(cell[~happened], minlength=ends.size)
        return np.concatenate([events, censored]).astype(np.float64)

    return Statistic(
        name="Kaplan–Meier",
        of_rows=of_rows,
        bounds=np.full(2 * ends.size, most, np.float64),
        of_sum=lambda total: SurvivalCurve(ends, *np.split(total, 2)),
        per_record=1.0,
        by_record=True,
    )


def last_intervals(
    rows: Rows, ends: Vector, time: str, event: str
) -> tuple[npt.NDArray[np.intp], Marks]:
    """The interval in which each record leaves, and whether with the event. After the last it is censored."""
    at = column(rows, time)
    cell = np.minimum(np.searchsorted(ends, at), ends.size - 1)
    return cell, (column(rows, event) > 0) & (at <= ends[-1])
