"""Every statistic from sums is what it is from all rows in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from made_up import COVARIATES, MONTHS, MOST, cox, made_up, pooled, survival

from basecagg.errors import DataError
from basecagg.statistics import (
    Covariate,
    HazardModel,
    Statistic,
    count,
    cox_step,
    fit_cox,
    fit_hazard,
    fit_hazard_privately,
    hazard_gradient,
    hazard_step,
    histogram,
    kaplan_meier,
    mean,
    moments,
    over_records,
    together,
)

CENTRES = made_up()
ROWS = pooled(CENTRES)
MODEL = HazardModel((1, 2, 4, 6, 9, 12), COVARIATES, MOST)
ZEROS = np.zeros(2)


def in_clear(statistic: Statistic[Any]) -> Any:
    """The sum of the centres' vectors, each within its bounds."""
    vectors = [statistic.of_rows(rows) for rows in CENTRES.values()]
    assert all((np.abs(vector) <= statistic.bounds).all() for vector in vectors)
    return statistic.of_sum(np.sum(vectors, axis=0))


def test_a_count() -> None:
    assert in_clear(count("time", most=MOST)) == ROWS["time"].size


def test_a_mean_and_its_deviation() -> None:
    found = in_clear(mean("age", 0, 100, most=MOST))
    assert found == pytest.approx((ROWS["age"].size, ROWS["age"].mean(), ROWS["age"].std()))


def test_a_histogram() -> None:
    edges = [20, 40, 60, 95]
    found = in_clear(histogram("age", edges, most=MOST))
    assert found.tolist() == np.histogram(ROWS["age"], edges)[0].tolist()


def test_a_survival_curve() -> None:
    curve = in_clear(kaplan_meier(MONTHS, most=MOST))
    assert np.abs(curve.survival - survival(ROWS)).max() < 1e-12
    assert curve.at_risk[0] == ROWS["time"].size
    naive = np.cumsum(curve.events / (curve.at_risk * (curve.at_risk - curve.events)))
    assert curve.deviation == pytest.approx(curve.survival * np.sqrt(naive))


def test_who_stays_longer_than_the_last_interval_is_censored_there() -> None:
    rows = {"time": [1, 5, 9], "event": [1, 1, 1]}
    curve = kaplan_meier([2, 6], most=3).of_sum(kaplan_meier([2, 6], most=3).of_rows(rows))
    assert (curve.events.tolist(), curve.censored.tolist()) == ([1, 1], [0, 1])
    assert curve.survival.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_cox_by_newton_is_cox_by_a_general_optimiser() -> None:
    fit = fit_cox(in_clear, COVARIATES, most=MOST)
    assert np.abs(fit.coefficients - cox(ROWS)).max() < 1e-6
    assert (fit.errors > 0).all()


def derivatives(f: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    return np.array([(f(at + h * e) - f(at - h * e)) / (2 * h) for e in np.eye(at.size)])


STEPS = {
    "cox": (lambda at: in_clear(cox_step(COVARIATES, at, most=MOST)), np.array([0.02, 0.3])),
    "hazard": (lambda at: in_clear(hazard_step(MODEL, at)), np.linspace(-1, 1, MODEL.size)),
}


@pytest.mark.parametrize("name", STEPS)
def test_gradient_and_information_are_the_derivatives_of_the_likelihood(name: str) -> None:
    ask, at = STEPS[name]
    found = ask(at)
    slope = derivatives(lambda b: ask(b).log_likelihood, at)
    assert found.gradient == pytest.approx(slope, rel=1e-5, abs=1e-4)
    bend = np.array([derivatives(lambda b, i=i: ask(b).gradient[i], at) for i in range(at.size)])
    assert found.information == pytest.approx(-bend, rel=1e-5, abs=1e-3)


def test_a_covariate_that_never_varies_is_named_as_the_reason() -> None:
    fixed = {name: rows | {"fixed": np.ones(len(rows["time"]))} for name, rows in CENTRES.items()}
    step = cox_step([Covariate("fixed", 0, 1)], np.zeros(1), most=MOST)
    with pytest.raises(DataError, match="never vary"):
        step.of_sum(np.sum([step.of_rows(rows) for rows in fixed.values()], axis=0)).covariance  # noqa: B018


def test_whoever_decides_alone_has_no_coefficient() -> None:
    rows = {"time": [1, 2, 3, 4], "event": [1, 1, 0, 0], "x": [1, 1, 0, 0]}

    def ask(statistic):
        return statistic.of_sum(statistic.of_rows(rows))

    with pytest.raises(DataError, match=r"no maximum|singular"):
        fit_cox(ask, [Covariate("x", 0, 1)], most=4)


def test_the_model_in_discrete_time_is_near_cox() -> None:
    fine = HazardModel(MONTHS[:12], COVARIATES, MOST)
    found = fine.coefficients(fit_hazard(in_clear, fine).coefficients)
    assert found == pytest.approx(fit_cox(in_clear, COVARIATES, most=MOST).coefficients, rel=0.25)


def test_without_noise_the_private_fit_is_the_exact_one() -> None:
    exact = fit_hazard(in_clear, MODEL)
    _, found = fit_hazard_privately(in_clear, MODEL, clip=100.0, steps=40)
    assert MODEL.coefficients(found) == pytest.approx(
        MODEL.coefficients(exact.coefficients), rel=0.02
    )


# --- one record -------------------------------------------------------------------------------

PRIVATE = [
    count("time", most=MOST),
    mean("age", 0, 100, most=MOST),
    histogram("age", [0, 50, 100], most=MOST),
    kaplan_meier(MONTHS, most=MOST),
    moments(MODEL),
    hazard_gradient(MODEL, np.linspace(-3, 3, MODEL.size), clip=0.7),
    together(count("time", most=MOST), kaplan_meier(MONTHS, most=MOST)),
]


@pytest.mark.parametrize("statistic", PRIVATE, ids=lambda each: each.name)
def test_one_record_changes_it_by_no_more_than_it_says(statistic: Statistic[Any]) -> None:
    assert statistic.per_record is not None
    for rows in CENTRES.values():
        whole = statistic.of_rows(rows)
        for record in range(len(rows["time"])):
            fewer = {name: np.delete(values, record) for name, values in rows.items()}
            moved = float(np.linalg.norm(whole - statistic.of_rows(fewer)))
            assert moved <= statistic.per_record * (1 + 1e-12)


def test_a_bound_that_is_too_small_would_be_noticed() -> None:
    unclipped = hazard_gradient(MODEL, np.zeros(MODEL.size), clip=100.0)
    rows = CENTRES["centre-00"]
    fewer = {name: values[1:] for name, values in rows.items()}
    moved = np.linalg.norm(unclipped.of_rows(rows) - unclipped.of_rows(fewer))
    assert moved > 0.7


def test_cox_has_no_bound_for_a_record() -> None:
    step = cox_step(COVARIATES, ZEROS, most=MOST)
    assert step.per_record is None
    assert together(count("time", most=MOST), step).per_record is None


def test_what_is_no_number_counts_as_nothing_where_records_are_clipped() -> None:
    statistic = over_records(
        "sum", lambda rows: rows["v"], 2, lambda total: total, clip=1.0, most=9
    )
    rows = {"v": np.array([[0.5, 0.0], [np.nan, 0.1], [np.inf, 0.0], [3.0, 4.0]])}
    assert statistic.of_rows(rows) == pytest.approx([0.5 + 0.6, 0.8])


# --- several in one, and refusals -------------------------------------------------------------


def test_several_statistics_in_one_sum() -> None:
    both = together(count("time", most=MOST), kaplan_meier(MONTHS, most=MOST))
    number, curve = in_clear(both)
    assert number == curve.at_risk[0] == ROWS["time"].size
    assert both.per_record == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("statistic", "said"),
    [
        (count("weight", most=MOST), "no column 'weight'"),
        (cox_step([Covariate("age", 0, 30)], ZEROS[:1], most=MOST), "outside the agreed 0…30"),
    ],
)
def test_rows_that_do_not_suit_are_refused_in_words(statistic: Statistic[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        statistic.of_rows(CENTRES["centre-00"])


def test_a_number_beyond_all_floats_is_no_number() -> None:
    with pytest.raises(DataError, match="no numbers"):
        count("time", most=MOST).of_rows({"time": [10**400]})


def test_missing_values_are_refused_where_a_record_counts_as_a_whole() -> None:
    with pytest.raises(DataError, match="missing"):
        kaplan_meier(MONTHS, most=MOST).of_rows({"time": [1.0, np.nan], "event": [1, 1]})
    assert count("time", most=MOST).of_rows({"time": [1.0, np.nan]}).tolist() == [2]


@pytest.mark.parametrize("apart", [1, 2, 3, 5])
def test_scaled_covariates_stay_within_one_between_neighbouring_floats(apart: int) -> None:
    """Or each centre's sum would be clipped by itself, and tell how records are spread over centres."""
    found = []
    for low in (1.0, 3.0, -7.5, 1e9):
        high = low + apart * abs(np.spacing(low))
        model = HazardModel((1.0,), (Covariate("x", low, high),), 10)
        found.append(np.abs(model.scaled({"x": np.array([low, high])})).max())
    assert max(found) <= 1.0


def test_ends_that_are_far_apart_are_scaled_to_one() -> None:
    """The control."""
    model = HazardModel((1.0,), (Covariate("x", 0.0, 1.0),), 10)
    assert (model.scaled({"x": np.array([0.0, 1.0])}) == [[-1.0], [1.0]]).all()
