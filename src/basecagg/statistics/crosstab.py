"""Cross tables: how many records there are of each combination of levels, and what follows from the counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError, ParameterError
from basecagg.statistics.distributions import chi_squared_tail
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, column, maker

_Z = 1.959963984540054
"""Of an interval of 95 %."""


class Category(NamedTuple):
    """A column with few values, all of them known beforehand."""

    name: str
    levels: tuple[float, ...]

    @property
    def checked(self) -> Category:
        """The same, unless its levels do not ascend."""
        ascending(self.levels, f"the levels of {self.name}")
        return self

    def places(self, rows: Rows) -> npt.NDArray[np.intp]:
        """The level of each record, as its place among all. A record with another value does not suit."""
        values, levels = column(rows, self.name), np.array(self.levels, np.float64)
        found = np.minimum(np.searchsorted(levels, values), levels.size - 1)
        if (levels[found] != values).any():
            raise DataError(f"column {self.name!r} has values that are none of its levels")
        return found


class Significance(NamedTuple):
    """A test statistic, its degrees of freedom, and how probable one as large is by chance."""

    statistic: float
    freedom: tuple[float, ...]
    p: float


@dataclass(frozen=True, eq=False)
class CrossTable:
    """Counts, one axis for each column."""

    columns: tuple[Category, ...]
    counts: npt.NDArray[np.float64]

    @property
    def chi_squared(self) -> Significance:
        """Pearson's test that two columns are independent; levels that nobody has are left out."""
        if self.counts.ndim != 2:
            raise ParameterError("χ² is for a table of two columns", rule="χ²: two columns")
        table = self.counts[self.counts.sum(axis=1) > 0][:, self.counts.sum(axis=0) > 0]
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(table.sum(), 1.0)
        freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
        if freedom < 1:
            return Significance(math.nan, (0.0,), math.nan)
        value = float(((table - expected) ** 2 / expected).sum())
        return Significance(value, (float(freedom),), chi_squared_tail(value, freedom))


@maker
def crosstab(columns: Sequence[Category], *, most: int) -> Statistic[CrossTable]:
    """How many records have each combination of levels. A record with any other value is left out.

    A record is in one cell, so one record changes the counts by 1.
    """
    known = tuple(Category(*each).checked for each in columns)
    shape = tuple(len(each.levels) for each in known)
    if not known:
        raise ParameterError("a cross table of no columns", rule="a cross table has columns")

    def of_rows(rows: Rows) -> Vector:
        cells = np.ravel_multi_index(tuple(each.places(rows) for each in known), shape)
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64)

    return Statistic(
        name=f"counts of {' × '.join(each.name for each in known)}",
        of_rows=of_rows,
        bounds=np.full(math.prod(shape), most, np.float64),
        of_sum=lambda total: CrossTable(known, total.reshape(shape)),
        per_record=1.0,
        by_record=True,
    )


@dataclass(frozen=True)
class MantelHaenszel:
    """The odds ratio that tables of 2 × 2 have in common, one table for each stratum."""

    odds_ratio: float
    low: float
    high: float
    """95 %, by the variance of Robins, Breslow and Greenland (1986)."""
    test: Significance
    """That it is 1, without a correction for continuity."""


def mantel_haenszel(table: CrossTable) -> MantelHaenszel:
    """From a cross table of exposure, outcome and stratum, in this order; the first two have two levels."""
    if table.counts.ndim != 3 or table.counts.shape[:2] != (2, 2):
        raise ParameterError(
            "Mantel and Haenszel take counts of exposure (2) × outcome (2) × stratum",
            rule="Mantel–Haenszel: 2 × 2 × strata",
        )
    counts: Any = table.counts[:, :, table.counts.sum(axis=(0, 1)) > 1]
    (d, c), (b, a) = counts  # the last levels are "exposed" and "with the outcome"
    n = a + b + c + d
    r, s, p, q = a * d / n, b * c / n, (a + d) / n, (b + c) / n
    total_r, total_s = float(r.sum()), float(s.sum())
    if total_r <= 0 or total_s <= 0:
        return MantelHaenszel(
            math.nan, math.nan, math.nan, Significance(math.nan, (1.0,), math.nan)
        )
    variance = float(
        (p * r).sum() / (2 * total_r**2)
        + (p * s + q * r).sum() / (2 * total_r * total_s)
        + (q * s).sum() / (2 * total_s**2)
    )
    ratio, reach = total_r / total_s, _Z * math.sqrt(variance)
    expected = (a + b) * (a + c) / n
    spread = (a + b) * (c + d) * (a + c) * (b + d) / (n * n * (n - 1))
    value = float((a - expected).sum() ** 2 / spread.sum())
    test = Significance(value, (1.0,), chi_squared_tail(value, 1))
    return MantelHaenszel(ratio, ratio * math.exp(-reach), ratio * math.exp(reach), test)
