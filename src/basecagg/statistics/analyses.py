"""What a study protocol may ask for, by name: the sums that an analysis needs, and what it makes of them.

An analysis names columns, which the protocol describes once for all. Its results are plain numbers by name, so
that they can be shown, stored and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from basecagg.errors import DataError
from basecagg.statistics.cox import Covariate, cox_step, fit_cox
from basecagg.statistics.crosstab import (
    Category,
    CrossTable,
    Significance,
    crosstab,
    mantel_haenszel,
)
from basecagg.statistics.distributions import normal_tail
from basecagg.statistics.groups import by_group
from basecagg.statistics.kaplan_meier import kaplan_meier
from basecagg.statistics.log_rank import survival_by_group
from basecagg.statistics.quantiles import distribution
from basecagg.statistics.regression import fit_regression, regression_step
from basecagg.statistics.statistic import Statistic
from basecagg.statistics.tables import count, mean
from basecagg.statistics.weighting import fit_weighted_means, weighted_means

Ask: TypeAlias = Callable[[Statistic[Any]], Any]
Outcome: TypeAlias = dict[str, Any]
"""Of an analysis: plain numbers by name; `table` is a list of rows, each a dictionary."""


@dataclass(frozen=True)
class Column:
    """A column as the protocol describes it: numbers from low to high, or one of a few levels."""

    name: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    levels: tuple[float, ...] = ()
    meaning: str = ""

    @property
    def category(self) -> Category:
        """Its levels."""
        if not self.levels:
            raise DataError(f"column {self.name!r} has no levels in the protocol")
        return Category(self.name, self.levels)

    @property
    def span(self) -> Covariate:
        """Where its numbers are: in its range, or from its first to its last level."""
        low, high = (self.levels[0], self.levels[-1]) if self.levels else (self.low, self.high)
        if low is None or high is None:
            raise DataError(f"column {self.name!r} has neither levels nor `low` and `high`")
        return Covariate(self.name, float(low), float(high))


class Words:
    """What stands in one `[[ask]]` of a protocol, read strictly."""

    def __init__(self, words: Mapping[str, Any], columns: Mapping[str, Column], most: int) -> None:
        self._words = dict(words)
        self._columns = columns
        self._used = {"name", "compute", "noise"}
        self.most = most

    def column(self, word: str, usual: str | None = None) -> Column:
        """The column that is named there."""
        return self._column(word, self._take(word, str, usual))

    def columns(self, word: str) -> tuple[Column, ...]:
        """The columns that are named there."""
        return tuple(self._column(word, name) for name in self._take(word, list, None))

    def number(self, word: str, usual: float | None = None) -> float:
        """A number."""
        return float(self._take(word, (int, float), usual))

    def numbers(self, word: str, usual: Sequence[float] | None = None) -> tuple[float, ...]:
        """Numbers: a list, or all from one to another as {from = 1, to = 44, step = 1}."""
        found = self._take(word, (list, tuple, dict), usual)
        if isinstance(found, dict):
            if not {"from", "to"} <= found.keys() <= {"from", "to", "step"}:
                raise DataError(f"{word} is a list, or has `from`, `to` and perhaps `step`")
            step = found.get("step", 1)
            return tuple(np.arange(found["from"], found["to"] + step / 2, step).tolist())
        return tuple(float(each) for each in found)

    def word(self, word: str) -> str:
        """A word."""
        return str(self._take(word, str, None))

    def require_all_used(self) -> None:
        """Refuse what nobody reads: a slip of the pen would otherwise change the study in silence."""
        if unknown := sorted(self._words.keys() - self._used):
            raise DataError(f"nobody knows what {unknown[0]!r} means there")

    def _column(self, word: str, name: Any) -> Column:
        if name not in self._columns:
            raise DataError(f"{word} names {name!r}, which is none of the protocol's columns")
        return self._columns[name]

    def _take(self, word: str, kind: Any, usual: Any) -> Any:
        self._used.add(word)
        found = self._words.get(word, usual)
        if found is None or not isinstance(found, kind) or isinstance(found, bool):
            raise DataError(f"it lacks {word!r}, or that is of another kind than it should be")
        return found


@dataclass(frozen=True)
class Analysis:
    """One `[[ask]]` of a protocol."""

    name: str
    compute: str
    private: bool
    sums: tuple[Statistic[Any], ...]
    """What centres approve: one for each kind of question, at any coefficients."""
    run: Callable[[Ask], Outcome]
    """Asks, and makes the result."""
    words: str
    """What it tells of the patients, for people."""


_Made: TypeAlias = tuple[tuple[Statistic[Any], ...], Callable[[Ask], Outcome], str]


def _significance(found: Significance) -> Outcome:
    freedom = found.freedom[0] if len(found.freedom) == 1 else list(found.freedom)
    return {"statistic": found.statistic, "degrees of freedom": freedom, "p": found.p}


def _count(given: Words) -> _Made:
    one = count(given.column("column").name, most=given.most)
    return (one,), lambda ask: {"records": ask(one)}, "how many records there are in all"


def _mean(given: Words) -> _Made:
    at = given.column("column")
    one = mean(*at.span, most=given.most)

    def run(ask: Ask) -> Outcome:
        found = ask(one)
        return {"records": found.records, "mean": found.mean, "deviation": found.deviation}

    return (one,), run, f"mean and standard deviation of {at.name}"


def _compare(given: Words) -> _Made:
    at, group = given.column("column"), given.column("by")
    one = by_group(at.span, group.category, most=given.most)

    def run(ask: Ask) -> Outcome:
        found = ask(one)
        rows = zip(found.levels, found.records, found.means, found.variances, strict=True)
        table = [
            {group.name: level, "records": n, "mean": m, "deviation": math.sqrt(v)}
            for level, n, m, v in rows
        ]
        tests = {"ANOVA": _significance(found.anova)}
        if len(found.levels) == 2:
            tests["Welch's t"] = _significance(found.t_test())
            tests["Student's t"] = _significance(found.t_test(equal_variances=True))
        return {"table": table, "tests": tests}

    return (one,), run, f"mean and variance of {at.name} for each {group.name}"


def _table(given: Words) -> _Made:
    columns = given.columns("columns")
    one = crosstab([each.category for each in columns], most=given.most)

    def run(ask: Ask) -> Outcome:
        found = ask(one)
        tests = {"χ²": _significance(found.chi_squared)} if found.counts.ndim == 2 else {}
        return {"table": _cells(found), "tests": tests}

    names = " × ".join(each.name for each in columns)
    return (one,), run, f"how many records have each combination of {names}"


def _cells(found: CrossTable) -> list[Outcome]:
    names = [each.name for each in found.columns]
    return [
        dict(zip(names, (c.levels[i] for c, i in zip(found.columns, at, strict=True)), strict=True))
        | {"records": float(found.counts[at])}
        for at in np.ndindex(found.counts.shape)
    ]


def _mantel_haenszel(given: Words) -> _Made:
    columns = [given.column(word) for word in ("exposure", "outcome", "strata")]
    one = crosstab([each.category for each in columns], most=given.most)

    def run(ask: Ask) -> Outcome:
        table = ask(one)
        found = mantel_haenszel(table)
        return {
            "odds ratio": found.odds_ratio,
            "low": found.low,
            "high": found.high,
            "tests": {"Cochran–Mantel–Haenszel": _significance(found.test)},
            "table": _cells(table),
        }

    names = " × ".join(each.name for each in columns)
    return (one,), run, f"how many records have each combination of {names}"


def _quantiles(given: Words) -> _Made:
    at, step = given.column("column"), given.number("step")
    parts = given.numbers("parts", (0.25, 0.5, 0.75))
    one = distribution(at.span, step, most=given.most)

    def run(ask: Ask) -> Outcome:
        found = ask(one)
        return {"table": [{"part": part, at.name: found.quantile(part)} for part in parts]}

    return (one,), run, f"how many records have each value of {at.name}, in steps of {step:g}"


def _regression(given: Words) -> _Made:
    family, outcome = given.word("family"), given.column("outcome").span
    covariates = [each.span for each in given.columns("covariates")]
    most = given.most
    start = np.zeros(1 + len(covariates))
    known: Any = family
    one = regression_step(known, outcome, covariates, start, most=most)

    def run(ask: Ask) -> Outcome:
        found = fit_regression(ask, known, outcome, covariates, most=most)
        return {"table": _coefficients(found.names, found.coefficients, found.errors, found.p)}

    names = ", ".join(each.name for each in covariates)
    return (one,), run, f"{family} regression of {outcome.name} on {names}, at any coefficients"


def _coefficients(names: Sequence[str], values: Any, errors: Any, tails: Any) -> list[Outcome]:
    rows = zip(names, values, errors, tails, strict=True)
    return [
        {"term": n, "coefficient": float(b), "error": float(e), "p": float(p)}
        for n, b, e, p in rows
    ]


def _survival(given: Words) -> _Made:
    times = given.numbers("times")
    columns = {word: given.column(word, word).name for word in ("time", "event")}
    one = kaplan_meier(times, most=given.most, **columns)

    def run(ask: Ask) -> Outcome:
        return {"table": _curve(ask(one))}

    return (one,), run, f"how many have the event, or leave, in each of {len(times)} intervals"


def _curve(found: Any, **more: Any) -> list[Outcome]:
    columns = (found.times, found.at_risk, found.events, found.survival, found.deviation)
    return [
        more | {"until": t, "at risk": n, "events": d, "survival": s, "error": e}
        for t, n, d, s, e in zip(*(each.tolist() for each in columns), strict=True)
    ]


def _survival_by(given: Words) -> _Made:
    times, group = given.numbers("times"), given.column("by")
    columns = {word: given.column(word, word).name for word in ("time", "event")}
    one = survival_by_group(times, group.category, most=given.most, **columns)

    def run(ask: Ask) -> Outcome:
        found = ask(one)
        curves = zip(found.group.levels, found.curves, strict=True)
        table = [row for level, each in curves for row in _curve(each, **{group.name: level})]
        return {"table": table, "tests": {"log-rank": _significance(found.log_rank)}}

    return (
        (one,),
        run,
        f"how many have the event, or leave, in each interval, for each {group.name}",
    )


def _cox(given: Words) -> _Made:
    covariates, most = [each.span for each in given.columns("covariates")], given.most
    columns: Any = {word: given.column(word, word).name for word in ("time", "event")}
    one = cox_step(covariates, np.zeros(len(covariates)), most=most, **columns)

    def run(ask: Ask) -> Outcome:
        found = fit_cox(ask, covariates, most=most, **columns)
        names = [each.name for each in covariates]
        tails = [normal_tail(z) for z in found.coefficients / found.errors]
        table = _coefficients(names, found.coefficients, found.errors, tails)
        return {"table": [row | _hazard_ratio(row) for row in table]}

    names = ", ".join(each.name for each in covariates)
    words = (
        f"Cox regression on {names}, stratified by centre, at any coefficients. This is NO sum over patients:"
        " an event that only one centre has tells of all who were at risk there"
    )
    return (one,), run, words


def _hazard_ratio(row: Outcome) -> Outcome:
    b, reach = row["coefficient"], 1.959963984540054 * row["error"]
    return {"hazard ratio": math.exp(b), "low": math.exp(b - reach), "high": math.exp(b + reach)}


def _weighted_means(given: Words) -> _Made:
    outcome, treated = given.column("outcome").span, given.column("treatment")
    covariates = [each.span for each in given.columns("covariates")]
    least, most = given.number("least", 0.01), given.most
    start = np.zeros(1 + len(covariates))
    sums = (
        regression_step("logistic", treated.span, covariates, start, most=most),
        weighted_means(outcome, treated.name, covariates, start, most=most, least=least),
    )

    def run(ask: Ask) -> Outcome:
        found = fit_weighted_means(ask, outcome, treated.name, covariates, most=most, least=least)
        arms = zip(("nobody", "everybody"), found.means, found.errors, strict=True)
        return {
            "table": [{"treated": w, "mean": float(m), "error": float(e)} for w, m, e in arms],
            "difference": found.difference,
            "error": found.error,
        }

    return sums, run, f"mean {outcome.name} by {treated.name}, weighted by propensity"


ANALYSES: dict[str, Callable[[Words], _Made]] = {
    "count": _count,
    "mean": _mean,
    "compare": _compare,
    "table": _table,
    "mantel-haenszel": _mantel_haenszel,
    "quantiles": _quantiles,
    "regression": _regression,
    "survival": _survival,
    "survival by group": _survival_by,
    "cox": _cox,
    "weighted means": _weighted_means,
}
"""What `compute` may say."""


def analysis(words: Mapping[str, Any], columns: Mapping[str, Column], most: int) -> Analysis:
    """One analysis as it stands in a protocol, or `DataError` with what is wrong in it."""
    name, compute, private = (words.get(key, usual) for key, usual in _USUAL.items())
    if not isinstance(name, str) or not name or not isinstance(private, bool):
        raise DataError("every [[ask]] has a name, and `noise` is true or false")
    if compute not in ANALYSES:
        raise DataError(f"{name}: compute = {compute!r}; there are {', '.join(ANALYSES)}")
    given = Words(words, columns, most)
    try:
        sums, run, said = ANALYSES[compute](given)
        given.require_all_used()
    except (DataError, ValueError) as error:
        raise DataError(f"{name}: {error}") from None
    if private and any(each.per_record is None for each in sums):
        raise DataError(
            f"{name}: nobody knows how much one record changes {compute}, so no noise makes it private"
        )
    return Analysis(name, compute, private, sums, run, said)


_USUAL = {"name": None, "compute": None, "noise": False}
