"""What every study begins with: how many, how large on average, how distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from basecagg.errors import DataError
from basecagg.statistics.statistic import Rows, Statistic, Vector, column


class Summary(NamedTuple):
    """A column in three numbers."""

    records: float
    mean: float
    deviation: float


def count(name: str, *, most: int) -> Statistic[float]:
    """How many records there are; `name` is any column, and a centre has `most` records at most."""
    return Statistic(
        name="count",
        of_rows=lambda rows: np.array([column(rows, name).size], np.float64),
        bounds=np.array([most], np.float64),
        of_sum=lambda total: float(total[0]),
        per_record=1.0,
    )


def mean(name: str, low: float, high: float, *, most: int) -> Statistic[Summary]:
    """Mean and standard deviation of a column whose values are between `low` and `high`."""
    middle, half = (low + high) / 2, (high - low) / 2

    def of_rows(rows: Rows) -> Vector:
        scaled = (within(column(rows, name), name, low, high) - middle) / half
        return np.array([scaled.size, scaled.sum(), (scaled * scaled).sum()], np.float64)

    def of_sum(total: Vector) -> Summary:
        records, first, second = (float(each) for each in total)
        if records <= 0:
            return Summary(records, math.nan, math.nan)
        average = first / records
        spread = math.sqrt(max(0.0, second / records - average * average))
        return Summary(records, middle + half * average, half * spread)

    bounds = np.full(3, most, np.float64)
    return Statistic(f"mean of {name}", of_rows, bounds, of_sum, per_record=math.sqrt(3))


def histogram(name: str, edges: Sequence[float], *, most: int) -> Statistic[Vector]:
    """How many values lie between each two neighbours of `edges`; the last interval has both its ends."""
    cells = len(edges) - 1
    return Statistic(
        name=f"histogram of {name}",
        of_rows=lambda rows: np.histogram(column(rows, name), edges)[0].astype(float),
        bounds=np.full(cells, most, np.float64),
        of_sum=lambda total: total,
        per_record=1.0,
    )


def within(values: Vector, name: str, low: float, high: float) -> Vector:
    """The values, if they are where everybody agreed that they are."""
    if values.size and not (low <= values.min() and values.max() <= high):
        raise DataError(f"column {name!r} has values outside the agreed {low:g}…{high:g}")
    return values
