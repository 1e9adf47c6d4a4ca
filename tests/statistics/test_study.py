"""A whole study by secure sums: the pooled results, whoever leaves when, and a server that learns sums only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up import COVARIATES, MONTHS, MOST, cox, made_up, pooled, survival

from basecagg.errors import BASecAggWarning, BudgetSpent, DataError, QuestionRefused
from basecagg.planning.budget import Budget
from basecagg.statistics import (
    HazardModel,
    Statistic,
    Study,
    count,
    cox_step,
    fit_cox,
    fit_hazard,
    histogram,
    kaplan_meier,
    mean,
    together,
)

COUNT = count("time", most=MOST)
COX = cox_step(COVARIATES, np.zeros(2), most=MOST)
BUDGET = Budget(epsilon=3.0, delta=1e-5, max_uses=2)


def hurried(study: Study, gone: int, seed: int = 0) -> Any:
    """Centres answer at their own pace, another one each time; some are gone as soon as they have."""
    rng, names = np.random.default_rng(seed), list(study.desks)

    def ask(statistic: Any) -> Any:
        order = list(rng.permutation(names))
        return study.ask(statistic, order=order, gone=rng.choice(names, gone, replace=False))

    return ask


def approve(study: Study, statistic: Statistic[Any]) -> None:
    """What every centre does by itself."""
    for desk in study.desks.values():
        desk.approve(statistic)


def require_pooled(centres: Any, gone: int) -> Study:
    study, rows = Study(centres, most=MOST), pooled(centres)
    approve(study, COX)
    ask = hurried(study, gone)
    curve = ask(kaplan_meier(MONTHS, most=MOST))
    assert np.abs(curve.survival - survival(rows)).max() < 1e-6
    fit = fit_cox(ask, COVARIATES, most=MOST)
    assert np.abs(fit.coefficients - cox(rows)).max() < 1e-4
    return study


def test_a_study_comes_to_the_pooled_results_while_holders_leave() -> None:
    study = require_pooled(made_up(), gone=2)
    found = study.audit()
    assert found.only_sums
    assert found.sums >= 5
    assert found.smallest == 9
    assert all(len(sums.exposed) == 0 for sums in found.epochs)


def test_hazards_in_discrete_time_are_those_of_all_rows() -> None:
    """Though every record is rounded by itself: Newton still comes to an end."""
    centres, model = made_up(), HazardModel((2, 4, 8, 12), COVARIATES, MOST)

    def in_clear(statistic: Statistic[Any]) -> Any:
        return statistic.of_sum(np.sum([statistic.of_rows(r) for r in centres.values()], axis=0))

    found, whole = (fit_hazard(ask, model) for ask in (Study(centres, most=MOST).ask, in_clear))
    np.testing.assert_allclose(found.coefficients, whole.coefficients, atol=1e-6)


@pytest.mark.soak
def test_sixty_seven_centres_of_which_twenty_leave() -> None:
    study = require_pooled(made_up(67), gone=20)
    assert study.audit().smallest == 67


def test_when_too_many_leave_there_is_no_sum() -> None:
    study = Study(made_up(), most=MOST)
    with pytest.raises(DataError, match="3 holders are gone, too many"):
        study.ask(COUNT, gone=list(study.desks)[-3:])
    assert study.ask(COUNT) == pooled(made_up())["time"].size


def test_everybody_is_asked_once() -> None:
    study = Study(made_up(), most=MOST)
    with pytest.raises(DataError, match="answers once"):
        study.ask(COUNT, order=[*study.desks, "centre-00"])


def test_several_statistics_in_one_secure_sum() -> None:
    centres = made_up()
    number, curve = Study(centres, most=MOST).ask(together(COUNT, kaplan_meier(MONTHS, most=MOST)))
    assert number == curve.at_risk[0] == pooled(centres)["time"].size


def test_the_same_question_may_be_asked_again() -> None:
    """The machines mask no update twice; a question's number makes it a new one."""
    study = Study(made_up(), most=MOST)
    assert study.ask(COUNT) == study.ask(COUNT)
    assert study.audit().sums == 2


def test_answers_to_a_question_that_failed_meet_no_others() -> None:
    """Three old answers and six new ones are a sum of three centres, for whoever can take off the six."""
    centres = made_up()
    kept = centres["centre-03"].pop("age")
    study, ages = Study(centres, most=MOST), mean("age", 0, 100, most=MOST)
    with pytest.raises(QuestionRefused, match="cannot answer"):
        study.ask(ages)
    centres["centre-03"]["age"] = kept
    assert study.ask(ages).records == pooled(centres)["time"].size
    assert study.audit().sums == 1


# --- values that are missing, or lie outside ----------------------------------------------------

AGES = mean("age", 0, 100, most=MOST)
EDGES = (0, 50, 100)


def with_one(age: float) -> tuple[Study, dict[str, np.ndarray]]:
    """A study in which one record of one centre is like this, and all rows in one place."""
    centres = made_up()
    centres["centre-03"]["age"] = centres["centre-03"]["age"].astype(float)
    centres["centre-03"]["age"][0] = age
    return Study(centres, most=MOST), pooled(centres)


def test_one_missing_value_does_not_fail_a_question() -> None:
    study, rows = with_one(np.nan)
    known = rows["age"][np.isfinite(rows["age"])]
    with pytest.warns(BASecAggWarning) as told:
        found = study.ask(AGES)
    assert found == pytest.approx((known.size, known.mean(), known.std()))
    (note,) = map(str, (each.message for each in told))
    assert note.startswith("centre-03: 1 of ")  # and no other centre is told
    assert "'age' are missing" in note
    assert study.ask(COUNT) == rows["time"].size  # the record itself is there


def test_a_mean_takes_what_lies_outside_as_the_nearer_end() -> None:
    study, rows = with_one(300)
    with pytest.warns(BASecAggWarning, match="centre-03: 1 of .* outside 0…100") as told:
        found = study.ask(AGES)
    assert found.mean == pytest.approx(np.clip(rows["age"], 0, 100).mean())
    assert "300" not in str(told[0].message)


@pytest.mark.parametrize("value", [-3.0, 300.0])
def test_a_histogram_loses_nobody_who_lies_outside(value: float) -> None:
    study, rows = with_one(value)
    with pytest.warns(BASecAggWarning, match="centre-03: .* outside 0…100 and count as the nearer"):
        clipped = study.ask(histogram("age", EDGES, most=MOST))
    assert clipped.sum() == rows["age"].size
    assert clipped.tolist() == np.histogram(np.clip(rows["age"], 0, 100), EDGES)[0].tolist()
    with pytest.warns(BASecAggWarning, match="centre-03: .* outside 0…100 and are counted apart"):
        apart = study.ask(histogram("age", EDGES, most=MOST, outside="count"))
    below, above = (rows["age"] < 0).sum(), (rows["age"] > 100).sum()
    inside = np.histogram(rows["age"], EDGES)[0]
    assert apart.tolist() == [below, *inside, above]


def test_a_histogram_leaves_out_what_is_missing() -> None:
    study, rows = with_one(np.nan)
    with pytest.warns(BASecAggWarning, match="centre-03: 1 of .* missing"):
        found = study.ask(histogram("age", (0, 50, 100), most=MOST))
    assert found.sum() == rows["age"].size - 1


@pytest.mark.parametrize("value", [np.nan, 300.0])
def test_a_fit_leaves_out_records_that_do_not_suit(value: float) -> None:
    study, rows = with_one(value)
    others = {name: values[rows["age"] < 101] for name, values in rows.items()}
    approve(study, COX)
    with pytest.warns(BASecAggWarning, match="centre-03: leaves 1 of .* records out"):
        found = fit_cox(study.ask, COVARIATES, most=MOST)
    np.testing.assert_allclose(found.coefficients, cox(others), atol=1e-4)


def test_a_statistic_of_ones_own_leaves_out_what_gives_no_number() -> None:
    study, rows = with_one(np.nan)
    ages = Statistic("ages", lambda r: np.array([sum(r["age"])]), np.array([MOST * 100.0]), sum)
    approve(study, ages)
    with pytest.warns(BASecAggWarning, match="centre-03: leaves 1 of .* records out"):
        assert study.ask(ages) == pytest.approx(np.nansum(rows["age"]))


# --- what would isolate a centre --------------------------------------------------------------


def test_a_question_that_would_isolate_a_centre_is_refused() -> None:
    study = Study(made_up(), most=MOST)
    study.ask(COUNT)
    with pytest.raises(QuestionRefused, match="single somebody out"):
        study.ask(COUNT, members=list(study.desks)[1:])
    found = study.audit()
    assert (found.sums, found.smallest, found.rounds.determined) == (1, 9, ())


def test_without_that_rule_the_audit_names_the_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: desks that forget with whom they answered give a centre away."""
    centres = made_up()
    study = Study(centres, most=MOST)
    whole = study.ask(COUNT)
    for desk in study.desks.values():
        monkeypatch.setattr(desk.store, "read", lambda kind, key: None)
    rest = study.ask(COUNT, members=list(study.desks)[1:])
    assert whole - rest == len(centres["centre-00"]["time"])
    found = study.audit()
    assert found.rounds.determined == ("centre-00",)
    assert not found.only_sums


@pytest.mark.parametrize("few", [1, 2, 4])
def test_few_centres_are_refused_and_the_machines_learn_nothing(few: int) -> None:
    study = Study(made_up(), most=MOST, budget=BUDGET)
    with pytest.raises(QuestionRefused, match="sums of 5 or more"):
        study.ask(COUNT, members=list(study.desks)[:few])
    assert study.audit().sums == 0


# --- with a budget ----------------------------------------------------------------------------


def test_noisy_sums_go_through_the_same_machines() -> None:
    centres = made_up()
    study = Study(centres, most=MOST, budget=BUDGET, silent=1)
    found = study.ask_privately(COUNT)
    assert abs(found - pooled(centres)["time"].size) < 50
    assert study.audit().only_sums


def test_other_members_are_possible_with_noise_until_the_budget_is_spent() -> None:
    study = Study(made_up(), most=MOST, budget=BUDGET)
    study.ask(COUNT)
    study.ask_privately(COUNT, members=list(study.desks)[1:])
    study.ask_privately(COUNT)
    assert study.audit().only_sums
    assert all(desk.ledger.uses == 2 for name, desk in study.desks.items() if name != "centre-00")
    with pytest.raises(BudgetSpent):
        study.ask_privately(COUNT)


def test_without_a_budget_there_is_no_noise_to_ask_for() -> None:
    with pytest.raises(DataError, match="without a budget"):
        Study(made_up(), most=MOST).ask_privately(COUNT)
