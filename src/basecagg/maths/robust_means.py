"""One mean out of several, of which a few may be false: robust means, each by its name.

All of them work element by element in float64 with + − × ÷ √ and comparisons alone, and add in a fixed order,
so that everybody who has the same means comes to the same bits. (BLAS may add in any order.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Reals: TypeAlias = npt.NDArray[np.float64]
_PASSES = 8
"""Of Weiszfeld's algorithm: far beyond what training notices (Pillutla, Kakade and Harchaoui 2022 take 3)."""
_CLIPPINGS = 3
_NEAREST = 1e-12
"""No distance is taken to be less than this: one divides by them."""


def mean(rows: Sequence[Reals]) -> Reals:
    """Σ x_j / g, from the first to the last. One false row moves it as far as it likes."""
    return _sum(rows) / len(rows)


def median(rows: Sequence[Reals]) -> Reals:
    """The middle of every element by itself; of an even number the mean of the two middle ones."""
    low, high = (len(rows) - 1) // 2, len(rows) // 2 + 1
    return mean(_in_order(rows)[low:high])


def trimmed_mean(rows: Sequence[Reals]) -> Reals:
    """The mean of every element without its ⌊(g − 1)/3⌋ smallest and as many largest (Yin et al. 2018)."""
    cut = (len(rows) - 1) // 3
    return mean(_in_order(rows)[cut : len(rows) - cut])


def geometric_median(rows: Sequence[Reals]) -> Reals:
    """The point with the least sum of distances to all rows, by Weiszfeld's algorithm.

    It begins with the median of every element and takes a fixed number of passes, which come close to it.
    """
    centre = median(rows)
    for _ in range(_PASSES):
        weights = [1 / max(distance(row, centre), _NEAREST) for row in rows]
        total = math.fsum(weights)
        centre = _sum([row * (w / total) for row, w in zip(rows, weights, strict=True)])
    return centre


def centred_clipping(rows: Sequence[Reals]) -> Reals:
    """v ← v + Σ (x_j − v)·min(1, ρ/‖x_j − v‖) / g (Karimireddy, He and Jaggi 2021), three times.

    Differs from the paper: v begins with the median of every element, not with the last step, and ρ is the
    median of the distances to it. So a version depends on its own rows alone, and nobody chooses a radius.
    """
    centre = median(rows)
    radius = sorted(distance(row, centre) for row in rows)[(len(rows) - 1) // 2]
    for _ in range(_CLIPPINGS):
        ways = [row - centre for row in rows]
        centre = centre + mean([way * _shrink(way, radius) for way in ways])
    return centre


def distance(row: Reals, other: Reals) -> float:
    """‖x − y‖"""
    return length(row - other)


def length(row: Reals) -> float:
    """‖x‖: squares are added in halves, the second half to the first, until one number is left."""
    squares = row * row
    while squares.size > 1:
        half = squares.size // 2
        folded = squares[:half] + squares[half : 2 * half]
        squares = np.append(folded, squares[2 * half :])
    return math.sqrt(squares[0]) if squares.size else 0.0


def _shrink(way: Reals, radius: float) -> float:
    return min(1.0, radius / max(length(way), _NEAREST))


def _sum(rows: Sequence[Reals]) -> Reals:
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


def _in_order(rows: Sequence[Reals]) -> Sequence[Reals]:
    """Every element in ascending order. + 0.0 makes 0.0 of −0.0: which of them comes first nobody defines."""
    return np.sort(np.stack(rows) + 0.0, axis=0)  # type: ignore[return-value]


@dataclass(frozen=True)
class RobustMean:
    """All that is to be known about one of them."""

    about: str
    """What it does, in a few words."""
    of: Callable[[Sequence[Reals]], Reals]
    """From the rows to their mean."""
    withstands: Callable[[int], int]
    """How many of g rows may be false, whatever is in them, without moving it beyond what true rows span."""


def _minority(rows: int) -> int:
    return (rows - 1) // 2


ROBUST_MEANS: dict[str, RobustMean] = {
    "mean": RobustMean("all count alike", mean, lambda rows: 0),
    "median": RobustMean("the middle of every element", median, _minority),
    "trimmed-mean": RobustMean(
        "without the third that is largest and the third that is smallest",
        trimmed_mean,
        lambda rows: (rows - 1) // 3,
    ),
    "geometric-median": RobustMean("the least sum of distances", geometric_median, _minority),
    "centred-clipping": RobustMean(
        "each pulls as far as half of them at most", centred_clipping, _minority
    ),
}
"""Every robust mean there is. What is not here is refused, wherever it is named."""
USUAL = "centred-clipping"
