"""Survival in groups, and the log-rank test that it is the same in all of them (Mantel 1966)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from basecagg.statistics.crosstab import Category, Significance
from basecagg.statistics.distributions import chi_squared_tail
from basecagg.statistics.kaplan_meier import SurvivalCurve, last_intervals
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, maker


@dataclass(frozen=True, eq=False)
class SurvivalByGroup:
    """A curve for each group."""

    group: Category
    curves: tuple[SurvivalCurve, ...]

    @property
    def log_rank(self) -> Significance:
        """That all groups have one hazard in every interval; groups of nobody are left out."""
        here = [curve for curve in self.curves if curve.at_risk[0] > 0]
        events, risk = (
            np.array([getattr(c, what) for c in here]) for what in ("events", "at_risk")
        )
        deaths, n = events.sum(axis=0), risk.sum(axis=0)
        seen = n > 1
        events, risk, deaths, n = events[:, seen], risk[:, seen], deaths[seen], n[seen]
        part = risk / n
        factor = deaths * (n - deaths) / (n - 1)
        covariance = np.diag((factor * part).sum(axis=1)) - (factor * part) @ part.T
        excess = (events - deaths * part).sum(axis=1)
        # The excesses add up to 0: one group follows from the others.
        value = float(excess[:-1] @ np.linalg.pinv(covariance[:-1, :-1]) @ excess[:-1])
        freedom = len(here) - 1
        return Significance(value, (float(freedom),), chi_squared_tail(value, freedom))


@maker
def survival_by_group(
    times: Sequence[float],
    group: Category,
    *,
    most: int,
    time: str = "time",
    event: str = "event",
) -> Statistic[SurvivalByGroup]:
    """Kaplan–Meier curves over intervals that end at `times`, one for each level of a column.

    A record is in one cell, so one record changes the counts by 1.
    """
    ends, groups = ascending(times, "the ends of intervals"), Category(*group).checked
    shape = (len(groups.levels), 2, ends.size)

    def of_rows(rows: Rows) -> Vector:
        interval, happened = last_intervals(rows, ends, time, event)
        place = (groups.places(rows), (~happened).astype(np.intp), interval)
        cells = np.ravel_multi_index(place, shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).astype(np.float64)

    def of_sum(total: Vector) -> SurvivalByGroup:
        curves = (SurvivalCurve(ends, *counts) for counts in total.reshape(shape))
        return SurvivalByGroup(groups, tuple(curves))

    return Statistic(
        name=f"survival by {groups.name}",
        of_rows=of_rows,
        bounds=np.full(int(np.prod(shape)), most, np.float64),
        of_sum=of_sum,
        per_record=1.0,
        by_record=True,
    )
