"""Quantiles: how many records have each value of a grid, so that every quantile follows from one sum.

The grid is as fine as the column is measured (years, mmHg), and part of the question: a centre sees beforehand
how closely values will be told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from basecagg.errors import ParameterError
from basecagg.statistics.cox import Covariate
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, column, maker

_MOST_CELLS = 100_000


@dataclass(frozen=True, eq=False)
class Distribution:
    """How many records have each value."""

    values: Vector
    counts: Vector

    def quantile(self, part: float) -> float:
        """The value below which this part of the records lies; between two records it is interpolated."""
        if not 0 <= part <= 1:
            raise ParameterError(f"{part} is no part between 0 and 1", rule="0 ≤ part ≤ 1")
        counts = np.maximum(self.counts, 0)  # noisy ones may be below
        below = np.cumsum(counts)
        if below[-1] < 1:
            return math.nan
        place = part * (below[-1] - 1)
        low, high = (self._at(below, rank) for rank in (math.floor(place), math.ceil(place)))
        return float(low + (high - low) * (place - math.floor(place)))

    @property
    def median(self) -> float:
        """The value in the middle."""
        return self.quantile(0.5)

    def _at(self, below: Vector, rank: int) -> float:
        """The value of the record of this rank, counted from 0."""
        found = np.searchsorted(below, rank, side="right")
        return float(self.values[min(int(found), self.values.size - 1)])


@maker
def distribution(value: Covariate, step: float, *, most: int) -> Statistic[Distribution]:
    """How many records have each value from low to high, in steps; others count as the nearest of them.

    A record is in one cell, so one record changes the counts by 1.
    """
    span = Covariate(*value)
    ascending((span.low, span.high), f"the ends of {span.name}")
    cells = round((span.high - span.low) / step) + 1 if step > 0 else 0
    if not 2 <= cells <= _MOST_CELLS:
        raise ParameterError(
            f"{span.name} in steps of {step:g} has {cells} values", rule="2 ≤ values ≤ 100,000"
        )
    values: Vector = np.asarray(span.low + step * np.arange(cells), np.float64)

    def of_rows(rows: Rows) -> Vector:
        inside = np.clip(column(rows, span.name), span.low, span.high)
        at = np.clip(np.rint((inside - span.low) / step).astype(np.int64), 0, cells - 1)
        return np.bincount(at, minlength=cells).astype(np.float64)

    return Statistic(
        name=f"distribution of {span.name}",
        of_rows=of_rows,
        bounds=np.full(cells, most, np.float64),
        of_sum=lambda total: Distribution(values, total),
        per_record=1.0,
        by_record=True,
    )
