"""Everything that is built in is what lifelines, statsmodels or SciPy make of all rows in one place."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network import LeavingStudy, protocol_text
from public_data import CENTRES, DATA, PublicData, load
from scipy import stats
from service_harness import Federation, stopped_at_last

from basecagg.statistics import (
    Category,
    Covariate,
    Significance,
    Study,
    by_group,
    count,
    cox_step,
    crosstab,
    distribution,
    fit_cox,
    fit_regression,
    fit_weighted_means,
    kaplan_meier,
    mantel_haenszel,
    mean,
    survival_by_group,
)

lifelines = pytest.importorskip("lifelines", reason="the dependency group `study`")
sm = pytest.importorskip("statsmodels.api", reason="the dependency group `study`")
pytest.importorskip("SurvSet", reason="the dependency group `study`")

NEAR = 1e-6
TREATED = Category("treated", (0, 1))
YES = Category("yes", (0, 1))


class Asked:
    """A study of one data set, asked while a fourth of the centres leaves as soon as it has answered."""

    def __init__(self, name: str) -> None:
        self.data: PublicData = load(name)
        self.rows, self.most = self.data.rows, self.data.most
        self.study = Study(self.data.centres, most=self.most)
        self._rng = np.random.default_rng(1)

    def ask(self, statistic: Any) -> Any:
        names = list(self.study.desks)
        order = list(self._rng.permutation(names))
        return self.study.ask(statistic, order=order, gone=order[: CENTRES // 4])

    def approve(self, statistic: Any) -> None:
        """What every centre does by itself."""
        for desk in self.study.desks.values():
            desk.approve(statistic)


_PATIENCE = 900
"""Seconds for one question: the machine may be busy with other things."""


class AskedOverNetwork:
    """The same over TLS, by a study protocol: two of eight centres are gone when a sum is opened."""

    def __init__(self, name: str, folder: Path) -> None:
        self.data: PublicData = load(name)
        self.rows, self.most = self.data.rows, self.data.most
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.study: LeavingStudy = self._do(self._begin(folder))

    def ask(self, statistic: Any) -> Any:
        return self._do(self._ask(statistic))

    def approve(self, statistic: Any) -> None:
        """It is in the protocol, which every centre has approved."""
        assert (statistic.digest, False) in self.study.protocol.answered

    def end(self) -> None:
        self._do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE)

    async def _begin(self, folder: Path) -> LeavingStudy:
        federation = Federation(folder)
        await federation.start_server()
        text = protocol_text(
            self.data.centres, most=self.most, columns=_columns(self.data), asked=_asks(self.data)
        )
        study = LeavingStudy(federation, self.data.centres, text)
        await study.begin()
        return study

    async def _ask(self, statistic: Any) -> Any:
        return await self.study.ask_while_some_leave(lambda remote: remote.ask(statistic))

    async def _end(self) -> None:
        assert self.study.left > 0
        self.study.restore()
        async with stopped_at_last(self.study.federation):
            pass


def _columns(data: PublicData) -> str:
    spans = {each.name: each for each in (data.y, data.times, *data.covariates)}
    lines = [f"[columns.{n}]\nlow = {c.low}\nhigh = {c.high}\n" for n, c in spans.items()]
    lines += [f"[columns.{n}]\nlevels = [0, 1]\n" for n in ("event", "yes", "treated")]
    lines.append(f"[columns.group]\nlevels = {list(data.group.levels)}\n")
    lines.append(f"[columns.time]\nlow = 0\nhigh = {data.rows['time'].max()}\n")
    return "".join(lines)


def _asks(data: PublicData) -> str:
    """Everything that the tests below ask for."""
    covariates = [each.name for each in data.covariates]
    ends = list(data.ends)
    asked = [
        ("count", {"column": "y"}),
        ("mean", {"column": "y"}),
        ("table", {"columns": ["group", "yes"]}),
        ("compare", {"column": "y", "by": "treated"}),
        ("compare", {"column": "y", "by": "group"}),
        ("quantiles", {"column": "y", "step": data.step}),
        ("mantel-haenszel", {"exposure": "treated", "outcome": "yes", "strata": "group"}),
        ("regression", {"family": "linear", "outcome": "y", "covariates": covariates}),
        ("regression", {"family": "linear", "outcome": "times", "covariates": ["age"]}),
        ("regression", {"family": "logistic", "outcome": "yes", "covariates": covariates}),
        ("regression", {"family": "poisson", "outcome": "times", "covariates": ["age"]}),
        ("survival", {"times": ends}),
        ("survival by group", {"times": ends, "by": "group"}),
        ("cox", {"covariates": covariates}),
        (
            "weighted means",
            {"outcome": "yes", "treatment": "treated", "covariates": covariates, "least": 0.05},
        ),
    ]
    return "".join(
        f'[[ask]]\nname = "{number}"\ncompute = "{compute}"\n'
        + "".join(f"{word} = {json.dumps(value)}\n" for word, value in words.items())
        for number, (compute, words) in enumerate(asked)
    )


@pytest.fixture(
    scope="module",
    params=[
        *DATA,
        *(pytest.param(f"{name} over the network", marks=pytest.mark.soak) for name in DATA),
    ],
)
def asked(request: Any, tmp_path_factory: Any) -> Iterator[Asked | AskedOverNetwork]:
    name, over, _ = request.param.partition(" over the network")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that are compared with
        if not over:
            yield Asked(name)
            return
        study = AskedOverNetwork(name, tmp_path_factory.mktemp(name))
        yield study
        study.end()


def near(found: Any, expected: Any) -> None:
    if isinstance(found, Significance):
        found = (found.statistic, *found.freedom, found.p)
    np.testing.assert_allclose(found, expected, rtol=NEAR, atol=NEAR)


def test_counts_means_and_variances(asked: Asked) -> None:
    y = asked.rows["y"]
    assert asked.ask(count("y", most=asked.most)) == y.size
    found = asked.ask(mean("y", asked.data.y.low, asked.data.y.high, most=asked.most))
    near(found, (y.size, y.mean(), y.std()))


def test_cross_tables(asked: Asked) -> None:
    group, rows = asked.data.group, asked.rows
    table = asked.ask(crosstab((group, YES), most=asked.most))
    counts = [
        [((rows["group"] == g) & (rows["yes"] == y)).sum() for y in (0, 1)] for g in group.levels
    ]
    assert table.counts.tolist() == counts
    known = stats.chi2_contingency(np.array(counts), correction=False)
    near(table.chi_squared, (known.statistic, known.dof, known.pvalue))


def test_t_tests(asked: Asked) -> None:
    found = asked.ask(by_group(asked.data.y, TREATED, most=asked.most))
    arms = [asked.rows["y"][asked.rows["treated"] == level] for level in (0, 1)]
    near(found.variances, [arm.var(ddof=1) for arm in arms])
    for equal in (True, False):
        known = stats.ttest_ind(*arms, equal_var=equal)
        near(found.t_test(equal_variances=equal), (known.statistic, known.df, known.pvalue))


def test_analysis_of_variance(asked: Asked) -> None:
    found = asked.ask(by_group(asked.data.y, asked.data.group, most=asked.most)).anova
    arms = [asked.rows["y"][asked.rows["group"] == level] for level in asked.data.group.levels]
    known = stats.f_oneway(*arms)
    near((found.statistic, found.p), (known.statistic, known.pvalue))
    assert found.freedom == (len(arms) - 1, asked.rows["y"].size - len(arms))


def test_quantiles(asked: Asked) -> None:
    found = asked.ask(distribution(asked.data.y, asked.data.step, most=asked.most))
    near(found.median, np.median(asked.rows["y"]))
    for part in (0, 0.05, 0.25, 0.333, 0.9, 1):
        near(found.quantile(part), np.quantile(asked.rows["y"], part))


def test_mantel_haenszel(asked: Asked) -> None:
    stratum = asked.data.group
    found = mantel_haenszel(asked.ask(crosstab((TREATED, YES, stratum), most=asked.most)))
    rows, tables = asked.rows, []
    for level in stratum.levels:
        here = rows["group"] == level
        cells = [
            [(here & (rows["treated"] == t) & (rows["yes"] == y)).sum() for y in (1, 0)]
            for t in (1, 0)
        ]
        tables.append(np.array(cells, float))
    known = sm.stats.StratifiedTable(tables)
    near(found.odds_ratio, known.oddsratio_pooled)
    near((found.low, found.high), known.oddsratio_pooled_confint())
    test = known.test_null_odds(correction=False)
    near((found.test.statistic, found.test.p), (test.statistic, test.pvalue))


def design(asked: Asked) -> np.ndarray:
    return sm.add_constant(np.stack([asked.rows[c.name] for c in asked.data.covariates], axis=1))


def test_linear_regression(asked: Asked) -> None:
    outcome = (
        asked.data.y if asked.data.y.high != 44 else asked.data.times
    )  # Rossi's y is a covariate
    name = outcome.name
    covariates = [c for c in asked.data.covariates if name == "y" or c.name == "age"]
    found = fit_regression(asked.ask, "linear", outcome, covariates, most=asked.most)
    x = sm.add_constant(np.stack([asked.rows[c.name] for c in covariates], axis=1))
    known = sm.OLS(asked.rows[name], x).fit()
    near(found.coefficients, known.params)
    near(found.errors, known.bse)
    near(found.p, known.pvalues)


def test_logistic_regression(asked: Asked) -> None:
    outcome = Covariate("yes", 0, 1)
    found = fit_regression(asked.ask, "logistic", outcome, asked.data.covariates, most=asked.most)
    known = sm.Logit(asked.rows["yes"], design(asked)).fit(disp=0, tol=1e-12)
    near(found.coefficients, known.params)
    near(found.errors, known.bse)
    near(found.p, known.pvalues)


def test_poisson_regression(asked: Asked) -> None:
    covariates = asked.data.covariates[:1]
    found = fit_regression(asked.ask, "poisson", asked.data.times, covariates, most=asked.most)
    x = sm.add_constant(asked.rows["age"])
    known = sm.GLM(asked.rows["times"], x, family=sm.families.Poisson()).fit(tol=1e-14)
    near(found.coefficients, known.params)
    near(found.errors, known.bse)
    near(found.p, known.pvalues)


def test_survival(asked: Asked) -> None:
    curve = asked.ask(kaplan_meier(asked.data.ends, most=asked.most))
    known = lifelines.KaplanMeierFitter().fit(asked.rows["time"], asked.rows["event"])
    near(curve.survival, known.survival_function_at_times(asked.data.ends))


def test_log_rank(asked: Asked) -> None:
    group = asked.data.group
    found = asked.ask(survival_by_group(asked.data.ends, group, most=asked.most)).log_rank
    rows = asked.rows
    known = lifelines.statistics.multivariate_logrank_test(
        rows["time"], rows["group"], rows["event"]
    )
    near(found, (known.test_statistic, known.degrees_of_freedom, known.p_value))


def test_cox_stratified_by_centre(asked: Asked) -> None:
    import pandas as pd

    covariates = asked.data.covariates
    asked.approve(cox_step(covariates, np.zeros(len(covariates)), most=asked.most))
    found = fit_cox(asked.ask, covariates, most=asked.most)
    names = ["time", "event", *(c.name for c in covariates)]
    frame = pd.DataFrame({name: asked.rows[name] for name in names})
    frame["centre"] = asked.data.centre_of
    options = {"precision": 1e-12, "r_precision": 1e-14}
    known = lifelines.CoxPHFitter().fit(
        frame, "time", "event", strata="centre", fit_options=options
    )
    near(found.coefficients, known.params_.to_numpy())
    near(found.errors, known.standard_errors_.to_numpy())


def test_means_weighted_by_propensity(asked: Asked) -> None:
    outcome, rows = Covariate("yes", 0, 1), asked.rows
    found = fit_weighted_means(
        asked.ask, outcome, "treated", asked.data.covariates, most=asked.most, least=0.05
    )
    chance = sm.Logit(rows["treated"], design(asked)).fit(disp=0, tol=1e-12).predict()
    chance = np.clip(chance, 0.05, 0.95)
    for arm, weight in enumerate(((1 - rows["treated"]) / (1 - chance), rows["treated"] / chance)):
        average = np.average(rows["yes"], weights=weight)
        near(found.means[arm], average)
        error = math.sqrt((weight**2 * (rows["yes"] - average) ** 2).sum()) / weight.sum()
        near(found.errors[arm], error)


def test_an_oracle_notices_a_record_that_is_gone(asked: Asked) -> None:
    """A negative control: one record of hundreds is left out, and no result is near any more."""
    rows = {name: values[1:] for name, values in asked.rows.items()}
    y = rows["y"]
    found = asked.ask(mean("y", asked.data.y.low, asked.data.y.high, most=asked.most))
    with pytest.raises(AssertionError):
        near(found, (y.size, y.mean(), y.std()))
