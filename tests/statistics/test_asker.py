"""An asker who wants one centre's numbers: everything that it can choose in a question, it chooses."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import basecagg.statistics.desk as desk_module
from basecagg.errors import BASecAggError, BASecAggWarning, ParameterError, QuestionRefused
from basecagg.planning.budget import Budget
from basecagg.statistics import (
    Covariate,
    Desk,
    HazardModel,
    Question,
    Statistic,
    Study,
    count,
    cox_step,
    hazard_gradient,
    hazard_step,
    histogram,
    kaplan_meier,
    mean,
    moments,
    private_sums,
    together,
)
from basecagg.statistics.desk import CANNOT
from basecagg.statistics.encoding import element_bits, join, split
from basecagg.statistics.recipe import files_digest
from basecagg.storage.in_memory import MemoryStore

MOST = 64
BUDGET = Budget(epsilon=0.5, delta=1e-5, max_uses=4)
RARE = 40.0
"""The age of the only patient with the rare disease."""


def centres() -> dict[str, dict[str, np.ndarray]]:
    """Six of 30, 31, … patients; in the fourth somebody has a rare disease."""
    rng = np.random.default_rng(1)
    found = {}
    for index in range(6):
        size = 30 + index
        found[f"centre-{index}"] = {
            "age": rng.integers(20, 90, size).astype(float),
            "time": rng.integers(1, 20, size),
            "event": rng.integers(0, 2, size),
            "rare": np.zeros(size),
        }
    found["centre-3"]["rare"][0], found["centre-3"]["age"][0] = 1, RARE
    found["centre-3"]["time"][0] = 0  # so that everybody is at risk with this patient
    return found


CENTRES = centres()
NAMES = tuple(CENTRES)


def study(**options: Any) -> Study:
    return Study(CENTRES, most=MOST, **options)


def desk(rows: Any = CENTRES["centre-3"], name: str = "centre-3", **options: Any) -> Desk:
    return Desk(name, rows, MemoryStore(), centres=NAMES, most=MOST, **options)


def outcome(centre: Desk, statistic: Statistic[Any]) -> str:
    """All that an asker sees of one centre: that it answers, or how it refuses."""
    try:
        centre.answer(Question(statistic, NAMES, 1))
    except BASecAggError as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    except Exception as crash:
        return f"{type(crash).__name__}"
    return "answered"


GOOD = Question(count("age", most=MOST), NAMES, 1).recipe


def fewer(records: int) -> dict[str, np.ndarray]:
    return {name: values[:records] for name, values in CENTRES["centre-3"].items()}


# --- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [4, 20, 32])
def test_whether_a_centre_answers_does_not_depend_on_how_many_records_it_has(most: int) -> None:
    seen = {outcome(desk(fewer(n)), count("age", most=most)) for n in (0, 3, 15, 33)}
    assert len(seen) == 1


def test_an_asker_does_not_choose_where_a_centre_is_clipped() -> None:
    """Σ min(n, b) for every b is how many centres have b records or more: the sizes, one by one."""
    asked = desk(fewer(33))
    for most in (1, 32, MOST - 1, MOST + 1):
        with pytest.raises(QuestionRefused, match=f"what was agreed on is {MOST}"):
            asked.answer(Question(count("age", most=most), NAMES, 1))


def test_clipped_where_the_asker_likes_the_sizes_of_all_centres_follow() -> None:
    """The control: centres that take any bound, one question for each."""

    def clipped(most: int) -> float:
        question = Question(count("age", most=most), NAMES, 1)
        desks = [
            Desk(name, CENTRES[name], MemoryStore(), centres=NAMES, most=most) for name in NAMES
        ]
        return question.decode(np.sum([each.answer(question) for each in desks], axis=0))

    with pytest.warns(BASecAggWarning, match="more records than"):
        sums = [clipped(most) for most in range(1, 41)]
    at_least = -np.diff(np.diff([0, *sums]))  # centres of exactly so many records
    assert np.repeat(np.arange(1, 40), at_least.astype(int)).tolist() == [30, 31, 32, 33, 34, 35]


def answers(sizes: tuple[int, ...], statistic: Statistic[Any], number: int) -> np.ndarray:
    """The sum of the answers of centres with so many records, element by element, as it is opened."""
    question = Question(statistic, NAMES, number)
    rows = [{"one": np.ones(size)} for size in sizes]
    desks = [desk(each, name=name) for name, each in zip(NAMES, rows, strict=True)]
    return np.sum([each.answer(question) for each in desks], axis=0)


def told_apart_by_elements() -> bool:
    """Whether sums tell which centres have odd sizes, though their sum is the same.

    In a range as wide as this a count lies across elements, and the upper one would be the sum of ⌊n/2ʲ⌋.
    """
    found = []
    for power in (17, 18, 22, 23, 24):  # around where an element ends: 2⁻¹⁶ and 2⁻²²
        statistic = mean("one", -(2.0**power), 2.0**power, most=MOST)
        worlds = [
            np.array([answers(sizes, statistic, number) for number in range(1, 21)])
            for sizes in ((30, 31, 32, 33, 34, 35), (32, 32, 32, 33, 33, 33))
        ]
        deviation = worlds[0][:, 1:].std(axis=0) + worlds[1][:, 1:].std(axis=0)
        apart = np.abs(worlds[0].mean(axis=0) - worlds[1].mean(axis=0))[1:]
        # Of the first moment alone: the second is n/2²ᵖ, another function of the same sizes.
        found.append((apart > deviation)[1::3].any())
    return any(found)


def test_the_elements_of_a_sum_say_no_more_than_the_sum() -> None:
    assert not told_apart_by_elements()


def test_without_coins_the_elements_tell_centres_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(
        desk_module.encoding, "split", lambda v, b, bits, coins: split(v, b, bits, 0 * coins)
    )
    assert told_apart_by_elements()


def told_apart_by_rounding() -> bool:
    """Whether sums differ though sizes add up to the same: a range so wide that ones are less than a unit.

    A centre's number is n/d units. Rounded, their sum would be how many centres have d/2 records or more.
    """
    unit, seen = 2.0**-28, []
    for divisor in range(60, 72):
        statistic = mean("one", -divisor / unit, divisor / unit, most=MOST)
        totals = [
            join(answers(sizes, statistic, 1)[1:], statistic.bounds, 24).tolist()
            for sizes in ((30, 31, 32, 33, 34, 35), (32, 32, 32, 33, 33, 33))
        ]
        seen.append(totals[0] != totals[1])
    return any(seen)


def test_rounding_says_no_more_than_the_sum() -> None:
    assert not told_apart_by_rounding()


def test_rounded_as_a_whole_centres_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    whole = lambda statistic, rows, unit: statistic.of_rows(rows)  # noqa: E731
    monkeypatch.setattr(desk_module, "_summed", whole)
    assert told_apart_by_rounding()


def test_where_records_are_computed_alone_no_function_sees_the_centre() -> None:
    centre, alone = desk(), replace(CHOSEN, by_record=True)
    centre.approve(alone)
    answer = centre.answer(Question(alone, NAMES, 1))
    assert join(answer[1:], alone.bounds, 24).tolist() == [0]  # no record is 33 records


SLOPES = [100.0, 1e5]


@pytest.mark.parametrize("slope", SLOPES)
def test_whether_a_centre_answers_does_not_depend_on_the_coefficients(
    slope: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights far below the largest became 0, and the logarithm of none an error: ages by bisection."""
    step = cox_step([Covariate("age", 0, 100)], np.array([slope]), most=MOST)
    for rows in (CENTRES["centre-3"], fewer(3), fewer(0)):
        centre = desk(rows)
        centre.approve(step)
        assert outcome(centre, step) == "answered"
    assert not caplog.records  # not even inside


def test_hazards_of_nought_and_one_leave_no_record_out(caplog: pytest.LogCaptureFixture) -> None:
    """A record that was left out by overflow would be a filter of the asker's making."""
    for step in (900.0, -900.0):
        assert outcome(desk(), hazard_step(MODEL, np.full(4, step))) == "answered"
        assert outcome(desk(), hazard_gradient(MODEL, np.full(4, step), clip=1.0)) == "answered"
    assert not caplog.records


@pytest.mark.parametrize("slope", SLOPES)
def test_weights_against_the_largest_of_all_would_add_up_to_nothing(slope: float) -> None:
    """The control: what one would divide by."""
    age, last = CENTRES["centre-3"]["age"], CENTRES["centre-3"]["time"] >= 15
    assert last.any()
    with np.errstate(under="ignore"):
        assert np.exp(slope * (age - age.max()))[last].sum() < 1e-300


# --- functions --------------------------------------------------------------------------------


def only_thirty_three(rows: Any) -> np.ndarray:
    return np.array([float(np.sum(rows["age"])) if len(rows["age"]) == 33 else 0.0])


CHOSEN = Statistic("sum of ages", only_thirty_three, np.array([6400.0]), lambda total: total[0])


def test_a_function_that_no_centre_approved_is_not_run() -> None:
    with pytest.raises(QuestionRefused, match="approved"):
        study().ask(CHOSEN)


def test_how_far_a_record_moves_the_sum_is_not_the_askers_word() -> None:
    with pytest.raises(QuestionRefused, match="approved"):
        study(budget=BUDGET).ask_privately(replace(CHOSEN, per_record=0.1))


def test_who_approves_a_function_answers_it_whatever_it_says() -> None:
    """The control, and what a centre should know before it approves: a sum of all can be about one alone."""
    alone = float(np.sum(CENTRES["centre-3"]["age"]))
    asked, lie = study(budget=BUDGET), replace(CHOSEN, name="a lie", per_record=0.1)
    for each in asked.desks.values():
        each.approve(CHOSEN)
        each.approve(lie)
    assert asked.ask(CHOSEN) == pytest.approx(alone)
    assert asked.audit().only_sums  # of which centres are in a sum, not of what it says
    assert asked.ask_privately(lie) == pytest.approx(alone, abs=5)


def test_what_is_run_is_what_the_centre_approved_not_what_the_asker_has() -> None:
    """The same text, name and bounds: the hash does not see what a function finds in its module."""
    centre = desk()
    mine = Statistic("by a global", by_a_global, np.array([100.0]), lambda total: total[0])
    theirs = replace(mine, of_rows=changed(by_a_global, FACTOR=7.0))
    centre.approve(mine)
    assert mine.digest == theirs.digest
    asked = Question(theirs, NAMES, 1)
    assert join(centre.answer(asked)[1:], mine.bounds, asked.bits).tolist() == [33.0]
    with pytest.raises(ParameterError, match="another by a global of the same text"):
        centre.approve(theirs)


FACTOR = 1.0


def by_a_global(rows: Any) -> np.ndarray:
    return np.array([FACTOR * len(rows["age"])])


def changed(function: FunctionType, **variables: Any) -> FunctionType:
    """The same function in a module where these are different."""
    return FunctionType(function.__code__, function.__globals__ | variables)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another name"},
        {"bounds": np.array([6401.0])},
        {"per_record": 1.0},
        {"by_record": True},
        {"of_rows": by_a_global},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_is_of_name_text_bounds_and_per_record(change: Any) -> None:
    centre = desk()
    centre.approve(CHOSEN)
    assert outcome(centre, CHOSEN) == "answered"
    assert "approved" in outcome(centre, replace(CHOSEN, **change))


def test_the_hash_is_of_what_a_function_closes_over() -> None:
    def made(factor: float, extra: Any = None) -> Statistic[Any]:
        def of_rows(rows: Any, extra: Any = extra) -> np.ndarray:
            return np.array([factor * len(rows["age"])])

        return Statistic("closed", of_rows, np.array([100.0]), lambda total: total)

    assert made(1.0).digest == made(1.0).digest
    assert len({made(1.0).digest, made(2.0).digest, made(1.0, 3).digest}) == 3
    with pytest.raises(ParameterError, match="no plain value"):
        made(object()).digest  # noqa: B018


def test_a_function_without_a_text_has_no_hash() -> None:
    with pytest.raises(ParameterError, match="no text of its function"):
        Statistic("C code", len, np.array([1.0]), lambda total: total).digest  # noqa: B018


def test_another_version_of_the_files_is_named_as_the_reason() -> None:
    question = Question(count("age", most=MOST), NAMES, 1)
    object.__setattr__(question, "recipe", GOOD.replace(files_digest(), "0" * 64))
    with pytest.raises(QuestionRefused, match="another version of basecagg"):
        desk().answer(question)


def test_the_parts_of_a_statistic_are_approved_one_by_one() -> None:
    own = replace(CHOSEN, by_record=True)
    both, centre = together(count("age", most=MOST), own), desk()
    assert "approved" in outcome(centre, both)
    with pytest.raises(ParameterError, match="one by one"):
        centre.approve(both)
    centre.approve(own)
    assert outcome(centre, both) == "answered"


def test_a_sum_over_records_is_not_rounded_as_a_whole_because_of_what_stands_beside_it() -> None:
    centre, step = desk(), cox_step([Covariate("age", 0, 100)], np.zeros(1), most=MOST)
    centre.approve(step)
    assert outcome(centre, step) == "answered"
    assert "asked for apart" in outcome(centre, together(count("age", most=MOST), step))


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "[" * 100_000,
        "{}",
        '{"together": []}',
        '{"built-in": "count"}',
        '{"own": "count", "sha256": ""}',
        GOOD.replace('"count"', '"exec"'),
        GOOD.replace('"age"', "7"),
        GOOD.replace('"name"', '"of_rows"'),
        GOOD.replace(str(MOST), f"{MOST}.0"),
        GOOD.replace("{", '{"per_record": 0.1, ', 1),
    ],
)
def test_a_recipe_that_is_none_is_refused(recipe: str) -> None:
    question = Question(count("age", most=MOST), NAMES, 1)
    assert question.recipe == GOOD
    object.__setattr__(question, "recipe", recipe)
    with pytest.raises(QuestionRefused):
        desk().answer(question)


@pytest.mark.parametrize(
    "change",
    [
        {"of_rows": only_thirty_three},
        {"per_record": 1e-3},
        {"bounds": np.array([2.0**20])},
        {"notes": lambda rows: 1 / 0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_of_a_built_in_statistic_nothing_is_taken_but_its_name_and_parameters(change: Any) -> None:
    honest = count("age", most=MOST)
    noise = private_sums(honest, BUDGET, len(NAMES), 2, bits=element_bits(len(NAMES)))
    same = {"budget": BUDGET, "entropy": bytes}
    for mechanism in (None, noise):
        asked = [
            Question(each, NAMES, 1, mechanism) for each in (honest, replace(honest, **change))
        ]
        given = [desk(**same).answer(each).tolist() for each in asked]
        assert given[0] == given[1]


def test_cox_of_an_event_that_one_centre_has_is_not_answered() -> None:
    with pytest.raises(QuestionRefused, match="approved"):
        study().ask(OF_ONE)


OF_ONE = cox_step([Covariate("age", 0, 100)], np.zeros(1), most=MOST, event="rare")


def test_a_centre_that_approves_such_a_model_tells_who_is_at_risk_in_it() -> None:
    """The control: at β = 0 the likelihood is −ln of those at risk, and the gradient has their mean age."""
    asked = study()
    for each in asked.desks.values():
        each.approve(OF_ONE)
    told = asked.ask(OF_ONE)
    assert round(np.exp(-told.log_likelihood)) == 33
    assert RARE - told.gradient[0] == pytest.approx(CENTRES["centre-3"]["age"].mean())


def test_a_model_is_approved_for_all_coefficients_and_no_other_column() -> None:
    centre, covariates = desk(), [Covariate("age", 0, 100)]
    centre.approve(cox_step(covariates, np.zeros(1), most=MOST))
    centre.approve(cox_step(covariates, np.ones(1), most=MOST))  # which is the same model
    assert outcome(centre, cox_step(covariates, np.ones(1), most=MOST)) == "answered"
    others = [
        OF_ONE,
        cox_step(covariates, np.zeros(1), most=MOST, time="age"),
        cox_step([Covariate("age", 0, 50)], np.zeros(1), most=MOST),
        cox_step([Covariate("rare", 0, 100)], np.zeros(1), most=MOST),
    ]
    assert all("approved" in outcome(centre, each) for each in others)


# --- what a refusal says ----------------------------------------------------------------------


def shows_a_patient(rows: Any) -> np.ndarray:
    raise ValueError(f"somebody is {np.max(rows['age'], initial=17)} years old")


def only_the_old(rows: Any) -> np.ndarray:
    if len(rows["age"]) and np.max(rows["age"]) < 80:
        raise ValueError(f"the oldest is {np.max(rows['age'])} years old")
    return np.array([float(len(rows["age"]))])


SHOWING = Statistic("shows", shows_a_patient, np.array([100.0]), lambda total: total[0])
OLD = Statistic("old", only_the_old, np.array([100.0]), lambda total: total[0])


def test_the_text_of_an_exception_stays_in_the_centre(caplog: pytest.LogCaptureFixture) -> None:
    centre = desk()
    centre.approve(SHOWING)
    with pytest.raises(QuestionRefused) as refusal:
        centre.answer(Question(SHOWING, NAMES, 1))
    assert str(refusal.value) == CANNOT
    assert refusal.value.__context__ is refusal.value.__cause__ is None
    assert "somebody is 17.0 years old" in caplog.text  # it did happen, and the centre can read it


@pytest.mark.parametrize("statistic", [count("height", most=MOST), SHOWING], ids=["column", "own"])
def test_an_exact_question_that_the_columns_do_not_answer_is_refused_whatever_the_values(
    statistic: Statistic[Any],
) -> None:
    for rows in (CENTRES["centre-3"], fewer(1), fewer(0)):
        centre = desk(rows)
        centre.approve(statistic)
        assert outcome(centre, statistic) == f"QuestionRefused: {CANNOT}"


def test_a_function_that_fails_by_value_is_answered_and_only_the_centre_knows() -> None:
    """All patients are young, so that each of them fails: were that refused, ages would follow."""
    young = CENTRES["centre-3"] | {"age": np.full(33, 30.0)}
    for rows in (CENTRES["centre-3"], young):
        centre = desk(rows)
        centre.approve(OLD)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert outcome(centre, OLD) == "answered"
        assert ["leaves 33 of 33" in str(each.message) for each in told] == [True] * (rows is young)
        assert not any("years old" in str(each.message) for each in told)


def test_a_note_to_the_centre_stays_there_even_where_warnings_are_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = {"age": [30.0, np.nan]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(desk(rows), mean("age", 0, 100, most=MOST)) == "answered"
    assert "1 of 2 values in column 'age' are missing" in caplog.text


def test_a_record_with_two_values_in_a_column_does_not_count_twice() -> None:
    twice = {"age": np.ones((3, 2))}
    assert outcome(desk(twice), count("age", most=MOST)) == f"QuestionRefused: {CANNOT}"


@pytest.mark.parametrize(
    "made",
    [
        lambda: count("age", most=0),
        lambda: mean("age", 5, 5, most=MOST),
        lambda: mean("age", 0, np.inf, most=MOST),
        lambda: histogram("age", [0, np.nan, 100], most=MOST),
        lambda: histogram("age", [], most=MOST),
        lambda: kaplan_meier([2, 1], most=MOST),
        lambda: cox_step([Covariate("age", 9, 0)], np.zeros(1), most=MOST),
        lambda: cox_step([Covariate("age", 0, 9)], np.array([np.nan]), most=MOST),
        lambda: hazard_step(MODEL, np.full(4, np.inf)),
        lambda: hazard_gradient(MODEL, np.zeros(3), clip=1.0),
        lambda: hazard_gradient(MODEL, np.zeros(4), clip=0.0),
        lambda: replace(MODEL, times=(3, 3)),
        lambda: replace(CHOSEN, per_record=np.inf),
        lambda: replace(CHOSEN, bounds=np.array([[1.0]])),
    ],
)
def test_parameters_that_no_rows_suit_make_no_statistic(made: Any) -> None:
    with pytest.raises(ParameterError):
        made()


def test_bounds_do_not_change_after_they_were_approved() -> None:
    bounds = np.array([6400.0])
    mine = replace(CHOSEN, bounds=bounds)
    bounds[0] = 1.0
    assert mine.bounds.tolist() == [6400.0]
    with pytest.raises(ValueError, match="read-only"):
        mine.bounds[0] = 1.0


VALUES = st.one_of(
    st.floats(), st.integers(), st.sampled_from(["", "x", "1e400", None, True, 10**400, 1j, b"7"])
)
MODEL = HazardModel((2, 5, 9), (Covariate("age", 0, 100),), MOST)
BUILT_IN = [
    count("age", most=MOST),
    mean("age", 0, 100, most=MOST),
    histogram("age", [0, 50, 100], most=MOST, outside="count"),
    kaplan_meier([2, 5, 9], most=MOST, time="age"),
    cox_step([Covariate("age", 0, 100)], np.array([0.3]), most=MOST),
    cox_step([Covariate("event", 0, 1)], np.array([-50.0]), most=MOST, time="age"),
    hazard_step(MODEL, np.array([900.0, -900.0, 0.0, 5.0])),
    hazard_gradient(MODEL, np.full(4, 1e300), clip=1.0),
    moments(MODEL),
]


@pytest.mark.parametrize("statistic", BUILT_IN, ids=lambda each: each.name)
@given(ages=st.lists(VALUES, max_size=6))
def test_no_value_keeps_a_centre_from_answering(statistic: Statistic[Any], ages: list[Any]) -> None:
    """Whatever stands in a column. What cannot be counted is left out, by itself."""
    others = {name: np.resize(fewer(6)[name], len(ages)) for name in ("time", "event")}
    column = np.empty(len(ages), object)
    column[:] = ages
    centre, logged = desk(others | {"age": column}), []
    centre.approve(statistic)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore", BASecAggWarning)
        patched.setattr(desk_module._LOG, "warning", lambda *said, **how: logged.append(said))
        assert outcome(centre, statistic) == "answered"
    assert not logged


# --- memory, names, and noise -------------------------------------------------------------------------


def test_another_study_of_fewer_centres_does_not_give_the_difference() -> None:
    stores = {name: MemoryStore() for name in NAMES}
    fewer_centres = {name: CENTRES[name] for name in NAMES[1:]}
    whole = Study(CENTRES, most=MOST, stores=stores).ask(count("age", most=MOST))
    with pytest.raises(QuestionRefused, match="single somebody out"):
        Study(fewer_centres, most=MOST, stores=stores).ask(count("age", most=MOST))
    # The control: centres that do not remember.
    rest = Study(fewer_centres, most=MOST).ask(count("age", most=MOST))
    assert whole - rest == len(CENTRES[NAMES[0]]["age"])


def test_invented_centres_make_no_crowd() -> None:
    names = ("centre-3", "x1", "x2", "x3", "x4")
    with pytest.raises(QuestionRefused, match="x1"):
        desk().answer(Question(count("age", most=MOST), names, 1))
    known = Desk("centre-3", CENTRES["centre-3"], MemoryStore(), centres=names, most=MOST)
    known.answer(Question(count("age", most=MOST), names, 1))  # whom it knows, it answers with


def test_how_many_may_tell_their_noise_is_not_the_askers_word() -> None:
    """Fewer silent ones, less noise from each: with two of six on the asker's side too little is left."""
    statistic, bits = count("age", most=MOST), element_bits(len(NAMES))
    noise = private_sums(statistic, BUDGET, len(NAMES), 1, bits=bits)
    with pytest.raises(QuestionRefused, match="noise"):
        desk(budget=BUDGET, silent=2).answer(Question(statistic, NAMES, 1, noise))
    desk(budget=BUDGET, silent=1).answer(Question(statistic, NAMES, 1, noise))
    more = private_sums(statistic, BUDGET, len(NAMES), 5, bits=bits)
    desk(budget=BUDGET, silent=2).answer(Question(statistic, NAMES, 1, more))


# --- one record, whatever the parameters --------------------------------------------------------


@pytest.mark.parametrize("low", [0.1, 50.0, 1e300])
def test_however_narrow_the_range_one_record_moves_a_mean_by_no_more_than_it_says(
    low: float,
) -> None:
    """The middle of two neighbouring numbers is one of them, so the other is two halves away."""
    narrow = mean("age", low, float(np.nextafter(low, np.inf)), most=MOST)
    assert narrow.per_record is not None
    for age in (0.0, low, 2 * low, 1e308):
        assert np.linalg.norm(narrow.of_rows({"age": [age]})) <= narrow.per_record * (1 + 1e-12)


def test_one_word_in_a_column_leaves_out_its_own_record_only() -> None:
    """A list with a word in it became an array of words, and "True" is no number."""
    diabetes = [True, False, True, True]
    question = Question(mean("diabetes", 0, 1, most=MOST), NAMES, 1)
    found = []
    for rows in ({"diabetes": diabetes}, {"diabetes": [*diabetes, "unknown"]}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BASecAggWarning)
            found.append(desk(rows, entropy=bytes).answer(question).tolist())
    assert found[0] == found[1]
