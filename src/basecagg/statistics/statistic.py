"""A statistic: a function from one's own rows to a vector of known bounds, and one from the sum to a result."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError, ParameterError
from basecagg.statistics.recipe import Recipe, digest, files_digest, of_ones_own, plain

Rows: TypeAlias = Mapping[str, Any]
"""One centre's records: columns by name, each as long as the others. A data frame will do."""
Vector: TypeAlias = npt.NDArray[np.float64]
Marks: TypeAlias = npt.NDArray[np.bool_]
Result = TypeVar("Result")
Given = ParamSpec("Given")


@dataclass(frozen=True, eq=False)
class Statistic(Generic[Result]):
    """A function that each centre applies to its own rows, and one that turns the sum into a result."""

    name: str
    of_rows: Callable[[Rows], Vector]
    """One centre's vector. It never leaves the centre but in a sum."""
    bounds: Vector
    """How large each number of one centre's vector may be, whatever its rows: known to all."""
    of_sum: Callable[[Vector], Result]
    per_record: float | None = None
    """Δ: how far one record can move the vector, in the 2-norm. None: nobody can say, and no noise makes the
    statistic private."""
    notes: Callable[[Rows], list[str]] = lambda rows: []
    """For the centre's own eyes: which of its values do not count as they are. This is never sent."""
    by_record: bool = False
    """Whether it is a sum over records, each by itself. A desk then computes each alone for an exact answer, so
    that neither the function nor rounding sees the centre as a whole."""
    made_by: Callable[[], Recipe] | None = None
    """What questions say about it, if not the name and the hash of a statistic of one's own."""

    def __post_init__(self) -> None:
        bounds = np.array(self.bounds, np.float64)
        bounds.flags.writeable = False  # they are approved with the statistic
        if bounds.ndim != 1 or not (np.isfinite(bounds) & (bounds > 0)).all():
            raise ParameterError(
                f"{self.name}: a bound is no number above 0", rule="every number has a bound"
            )
        if self.per_record is not None and not 0 < self.per_record < math.inf:
            raise ParameterError(
                f"{self.name}: one record moves it by {self.per_record}", rule="0 < per_record < ∞"
            )
        object.__setattr__(self, "bounds", bounds)

    @property
    def recipe(self) -> Recipe:
        """What a question says about it: a centre makes the statistic from that by its own code."""
        if self.made_by is not None:
            return self.made_by()
        return of_ones_own(self.name, self.of_rows, self.bounds, self.per_record, self.by_record)

    @property
    def digest(self) -> str:
        """The hash that a centre approves it by: of the recipe, without the coefficients of a Cox step."""
        return digest(self.recipe)


def maker(function: Callable[Given, Statistic[Result]]) -> Callable[Given, Statistic[Result]]:
    """Mark a function that makes a statistic: the recipe is its name and its arguments."""
    signature = inspect.signature(function)

    @wraps(function)
    def make(*arguments: Given.args, **named: Given.kwargs) -> Statistic[Result]:
        call = signature.bind(*arguments, **named)
        call.apply_defaults()

        def recipe() -> Recipe:
            parameters = plain(call.arguments)
            return {
                "built-in": function.__name__,
                "files": files_digest(),
                "parameters": parameters,
            }

        return replace(function(*arguments, **named), made_by=recipe)

    return make


def together(*statistics: Statistic[Any]) -> Statistic[tuple[Any, ...]]:
    """Several statistics in one sum; the result has one entry for each."""
    ends = np.cumsum([each.bounds.size for each in statistics])[:-1]
    lengths = [each.per_record for each in statistics if each.per_record is not None]
    whole = len(lengths) == len(statistics)

    def of_sum(total: Vector) -> tuple[Any, ...]:
        parts = np.split(total, ends)
        return tuple(each.of_sum(part) for each, part in zip(statistics, parts, strict=True))

    return Statistic(
        name=" + ".join(each.name for each in statistics),
        of_rows=lambda rows: np.concatenate([each.of_rows(rows) for each in statistics]),
        bounds=np.concatenate([each.bounds for each in statistics]),
        of_sum=of_sum,
        per_record=math.hypot(*lengths) if whole else None,
        notes=lambda rows: [note for each in statistics for note in each.notes(rows)],
        by_record=all(each.by_record for each in statistics),
        made_by=lambda: {"together": [each.recipe for each in statistics]},
    )


def over_records(
    name: str,
    of_records: Callable[[Rows], Vector],
    size: int,
    of_sum: Callable[[Vector], Result],
    *,
    clip: float,
    most: int,
) -> Statistic[Result]:
    """A sum over records, each clipped to a length of `clip`, so that noise can make it private.

    `of_records` gives a row of `size` numbers for each record, which no other record changes; a centre has
    `most` records at most.
    """

    def of_rows(rows: Rows) -> Vector:
        vectors = of_records(rows)
        lengths = np.linalg.norm(vectors, axis=1)
        factors = np.minimum(1.0, clip / np.maximum(lengths, np.finfo(np.float64).tiny))
        # A value that is no number counts as 0: nobody outside may see that it happened.
        return np.where(np.isfinite(lengths), factors, 0.0) @ np.nan_to_num(vectors)

    bounds = np.full(size, most * clip)
    return Statistic(
        name=name,
        of_rows=of_rows,
        bounds=bounds,
        of_sum=of_sum,
        per_record=clip,
        by_record=True,
        made_by=lambda: of_ones_own(name, of_records, bounds, clip, by_record=True),
    )


def column(rows: Rows, name: str) -> Vector:
    """A column as numbers. Refuse it if a value is missing or no number."""
    values = numbers(rows, name)
    if not np.isfinite(values).all():
        raise DataError(f"column {name!r} has values that are missing or no numbers")
    return values


def numbers(rows: Rows, name: str) -> Vector:
    """A column as numbers. Missing ones are NaN."""
    try:
        values = np.asarray(rows[name], np.float64)
    except KeyError:
        raise DataError(f"these rows have no column {name!r}") from None
    except (TypeError, ValueError, OverflowError):  # whose message would show the value
        raise DataError(f"column {name!r} has values that are no numbers") from None
    if values.ndim != 1:  # else a record would count more than once
        raise DataError(f"column {name!r} has more than one value for a record")
    return values


def ascending(numbers: Sequence[float] | Vector, what: str) -> Vector:
    """Check that each number is larger than the one before: edges, times, the ends of a range."""
    found = np.array(numbers, np.float64)
    if found.size == 0 or not (np.isfinite(found).all() and (np.diff(found) > 0).all()):
        raise ParameterError(f"{what} do not ascend, or are no numbers", rule=f"{what} ascend")
    return found
