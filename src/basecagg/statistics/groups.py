"""A column compared between groups: means, variances, Student's and Welch's t, and analysis of variance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from basecagg.errors import ParameterError
from basecagg.statistics.cox import Covariate
from basecagg.statistics.crosstab import Category, Significance
from basecagg.statistics.distributions import f_tail, student_tail
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, column, maker


@dataclass(frozen=True, eq=False)
class Groups:
    """A column in every group: how many, how large on average, how far apart."""

    levels: tuple[float, ...]
    records: Vector
    means: Vector
    variances: Vector
    """By n − 1."""

    def t_test(self, *, equal_variances: bool = False) -> Significance:
        """That two groups have one mean: Welch's, or Student's if the variances are taken to be equal."""
        if len(self.levels) != 2:
            raise ParameterError("a t-test compares two groups", rule="t-test: two groups")
        n, v = self.records, self.variances
        if equal_variances:
            freedom = float(n.sum() - 2)
            parts = np.full(2, ((n - 1) * v).sum() / freedom) / n
        else:
            parts = v / n
            freedom = float(parts.sum() ** 2 / (parts**2 / (n - 1)).sum())
        t = float((self.means[0] - self.means[1]) / math.sqrt(parts.sum()))
        return Significance(t, (freedom,), student_tail(t, freedom))

    @property
    def anova(self) -> Significance:
        """That all groups have one mean; groups of nobody are left out."""
        here = self.records > 0
        n, means = self.records[here], self.means[here]
        above, below = float(here.sum() - 1), float(n.sum() - here.sum())
        whole = (n * means).sum() / n.sum()
        between = float((n * (means - whole) ** 2).sum())
        within = float(((n - 1) * np.nan_to_num(self.variances[here])).sum())
        value = (between / above) / (within / below)
        return Significance(value, (above, below), f_tail(value, above, below))


@maker
def by_group(outcome: Covariate, group: Category, *, most: int) -> Statistic[Groups]:
    """Mean and variance of a column in every group; a value outside its range counts as the nearer end.

    A record whose value is missing, or whose group is none of the levels, is left out.
    """
    value, groups = Covariate(*outcome), Category(*group).checked
    ascending((value.low, value.high), f"the ends of {value.name}")
    size = len(groups.levels)

    def of_rows(rows: Rows) -> Vector:
        inside = np.clip(column(rows, value.name), value.low, value.high)
        scaled = np.clip((inside - (value.low + value.half)) / value.half, -1, 1)
        at = groups.places(rows)
        sums = [np.bincount(at, scaled**power, size) for power in range(3)]
        return np.concatenate(sums).astype(np.float64)

    def of_sum(total: Vector) -> Groups:
        n, first, second = np.split(total, 3)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = first / n
            variance = np.maximum(second - n * mean * mean, 0) / (n - 1)
        middle, half = value.low + value.half, value.half
        known = (n > 1, n > 0)
        return Groups(
            groups.levels,
            n,
            np.where(known[1], middle + half * mean, np.nan),
            np.where(known[0], half * half * variance, np.nan),
        )

    return Statistic(
        name=f"{value.name} by {groups.name}",
        of_rows=of_rows,
        bounds=np.full(3 * size, most, np.float64),
        of_sum=of_sum,
        per_record=math.sqrt(3),
        by_record=True,
    )
