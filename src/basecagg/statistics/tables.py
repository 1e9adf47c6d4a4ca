"""What every study begins with: how many, how large on average, how distributed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from basecagg.errors import DataError
from basecagg.statistics.statistic import Rows, Statistic, Vector, ascending, maker, numbers


class Summary(NamedTuple):
    """A column in three numbers."""

    records: float
    mean: float
    deviation: float


@maker
def count(name: str, *, most: int) -> Statistic[float]:
    """How many records there are; `name` is any column, and a centre has `most` records at most.

    A record counts whether its value is there or missing.
    """
    return Statistic(
        name="count",
        of_rows=lambda rows: np.array([numbers(rows, name).size], np.float64),
        bounds=np.array([most], np.float64),
        of_sum=lambda total: float(total[0]),
        per_record=1.0,
        by_record=True,
    )


@maker
def mean(name: str, low: float, high: float, *, most: int) -> Statistic[Summary]:
    """Mean and standard deviation of a column whose values are between `low` and `high`.

    A value that lies outside counts as the nearer of the two, and one that is missing not at all: `records` of
    the result says how many there were. Each centre is told of its own, and nobody else is.
    """
    ascending((low, high), f"the ends of {name}")
    middle, half = (low + high) / 2, (high - low) / 2

    def of_rows(rows: Rows) -> Vector:
        # Clipped again: between neighbouring numbers the middle is one of them, and the other 2 halves away.
        scaled = np.clip((np.clip(_present(rows, name), low, high) - middle) / half, -1, 1)
        return np.array([scaled.size, scaled.sum(), (scaled * scaled).sum()], np.float64)

    def of_sum(total: Vector) -> Summary:
        records, first, second = (float(each) for each in total)
        if records <= 0:
            return Summary(records, math.nan, math.nan)
        average = first / records
        spread = math.sqrt(max(0.0, second / records - average * average))
        return Summary(records, middle + half * average, half * spread)

    return Statistic(
        name=f"mean of {name}",
        of_rows=of_rows,
        bounds=np.full(3, most, np.float64),
        of_sum=of_sum,
        per_record=math.sqrt(3),
        notes=_notes(name, low, high, "count as the nearer end"),
        by_record=True,
    )


@maker
def histogram(
    name: str, edges: Sequence[float], *, most: int, outside: Literal["clip", "count"] = "clip"
) -> Statistic[Vector]:
    """How many values lie between each two neighbours of `edges`; the last interval has both its ends.

    What lies outside of all is in the first or the last interval, or with `outside="count"` apart: the result
    has then one number more at each end. A value that is missing is in none. Each centre is told of its own.
    """
    ascending(edges, f"the edges of {name}")
    apart, low, high = outside == "count", edges[0], edges[-1]
    # The end of the last interval belongs to it: what lies above begins with the next number.
    cuts = [-np.inf, *edges[:-1], np.nextafter(high, np.inf), np.inf] if apart else list(edges)

    def of_rows(rows: Rows) -> Vector:
        values = _present(rows, name)
        return np.histogram(values if apart else np.clip(values, low, high), cuts)[0].astype(float)

    return Statistic(
        name=f"histogram of {name}",
        of_rows=of_rows,
        bounds=np.full(len(cuts) - 1, most, np.float64),
        of_sum=lambda total: total,
        per_record=1.0,
        notes=_notes(name, low, high, "are counted apart" if apart else "count as the nearer end"),
        by_record=True,
    )


def _present(rows: Rows, name: str) -> Vector:
    values = numbers(rows, name)
    return values[np.isfinite(values)]


def _notes(name: str, low: float, high: float, fate: str) -> Callable[[Rows], list[str]]:
    """What a centre should know of a column: how many values are missing, and how many lie outside."""

    def notes(rows: Rows) -> list[str]:
        present, records = _present(rows, name), numbers(rows, name).size
        beyond = int(((present < low) | (present > high)).sum())
        counted = {
            "are missing and do not count": records - present.size,
            f"lie outside {low:g}…{high:g} and {fate}": beyond,
        }
        values = f"of {records} values in column {name!r}"
        return [f"{found} {values} {what}" for what, found in counted.items() if found]

    return notes


def within(values: Vector, name: str, low: float, high: float) -> Vector:
    """The values, if they are where everybody agreed that they are."""
    if values.size and not (low <= values.min() and values.max() <= high):
        raise DataError(f"column {name!r} has values outside the agreed {low:g}…{high:g}")
    return values
