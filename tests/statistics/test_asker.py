"""An asker who wants one centre's numbers: everything that it can choose in a question, it chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from basecagg.errors import BASecAggError, QuestionRefused
from basecagg.protections.budget import Budget
from basecagg.statistics import (
    Covariate,
    Desk,
    Question,
    Statistic,
    Study,
    count,
    cox_step,
    mean,
    private_sums,
)
from basecagg.statistics.fixed_point import element_bits
from basecagg.storage.memory import MemoryStore

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
    return Study(CENTRES, **options)


def desk(rows: Any = CENTRES["centre-3"], name: str = "centre-3", **options: Any) -> Desk:
    return Desk(name, rows, MemoryStore(), **options)


def outcome(centre: Desk, statistic: Statistic[Any]) -> str:
    """All that an asker sees of one centre: that it answers, or how it refuses."""
    try:
        centre.answer(Question(statistic, NAMES, 1))
    except BASecAggError as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    except Exception as crash:
        return f"{type(crash).__name__}"
    return "answered"


def fewer(records: int) -> dict[str, np.ndarray]:
    return {name: values[:records] for name, values in CENTRES["centre-3"].items()}


# --- bounds -----------------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, reason="refuses by value: its count follows by bisection")
@pytest.mark.parametrize("most", [4, 20, 32])
def test_whether_a_centre_answers_does_not_depend_on_how_many_records_it_has(most: int) -> None:
    seen = {outcome(desk(fewer(n)), count("age", most=most)) for n in (0, 3, 15, 33)}
    assert len(seen) == 1


@pytest.mark.xfail(strict=True, reason="the bound is the asker's: clipped counts tell sizes apart")
def test_an_asker_does_not_choose_where_a_centre_is_clipped() -> None:
    """Σ min(n, b) for every b is how many centres have b records or more: the sizes, one by one."""
    asked = desk(fewer(33))
    for most in (1, 32, MOST - 1, MOST + 1):
        with pytest.raises(QuestionRefused):
            asked.answer(Question(count("age", most=most), NAMES, 1))


def answers(sizes: tuple[int, ...], statistic: Statistic[Any], number: int) -> np.ndarray:
    """The sum of the answers of centres with so many records, element by element, as it is opened."""
    question = Question(statistic, NAMES, number)
    rows = [{"one": np.ones(size)} for size in sizes]
    desks = [desk(each, name=name) for name, each in zip(NAMES, rows, strict=True)]
    return np.sum([each.answer(question) for each in desks], axis=0)


def told_apart_by_elements() -> bool:
    """Whether sums tell which centres have odd sizes, though their sum is the same.

    In a range as wide as this a count lies across two elements, and the upper one is the sum of ⌊n/2ʲ⌋.
    """
    found = []
    for power in range(14, 23):
        statistic = mean("one", -(2.0**power), 2.0**power, most=MOST)
        worlds = [
            np.array([answers(sizes, statistic, number) for number in range(1, 31)])
            for sizes in ((30, 31, 32, 33, 34, 35), (32, 32, 32, 33, 33, 33))
        ]
        deviation = worlds[0][:, 1:].std(axis=0) + worlds[1][:, 1:].std(axis=0)
        apart = np.abs(worlds[0].mean(axis=0) - worlds[1].mean(axis=0))[1:]
        # Of the first moment alone: the second is n/2²ᵖ, another function of the same sizes.
        found.append((apart > deviation)[[1, 4]].any())
    return any(found)


@pytest.mark.xfail(strict=True, reason="halves of a number are summed apart, and carries are seen")
def test_the_elements_of_a_sum_say_no_more_than_the_sum() -> None:
    assert not told_apart_by_elements()


@pytest.mark.xfail(strict=True, reason="a Cox step at large coefficients fails by value")
@pytest.mark.parametrize("slope", [100.0, 1e5])
def test_whether_a_centre_answers_does_not_depend_on_the_coefficients(slope: float) -> None:
    """Weights far below the largest became 0, and the logarithm of none an error: ages by bisection."""
    step = cox_step([Covariate("age", 0, 100)], np.array([slope]), most=MOST)
    assert outcome(desk(), step) == outcome(desk(fewer(0)), step) == "answered"


# --- functions --------------------------------------------------------------------------------


def only_thirty_three(rows: Any) -> np.ndarray:
    return np.array([float(np.sum(rows["age"])) if len(rows["age"]) == 33 else 0.0])


CHOSEN = Statistic("sum of ages", only_thirty_three, np.array([6400.0]), lambda total: total[0])


@pytest.mark.xfail(
    strict=True, reason="a centre runs any function, and it tells one from all others"
)
def test_a_function_that_no_centre_approved_is_not_run() -> None:
    with pytest.raises(QuestionRefused, match="approved"):
        study().ask(CHOSEN)


@pytest.mark.xfail(strict=True, reason="the asker says how far a record moves the sum")
def test_how_far_a_record_moves_the_sum_is_not_the_askers_word() -> None:
    with pytest.raises(QuestionRefused, match="approved"):
        study(budget=BUDGET).ask_privately(replace(CHOSEN, per_record=0.1))


@pytest.mark.xfail(strict=True, reason="what looks like a built-in statistic is run as it comes")
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


@pytest.mark.xfail(
    strict=True, reason="an event in one centre only makes Cox a statistic of that centre"
)
def test_cox_of_an_event_that_one_centre_has_is_not_answered() -> None:
    """At β = 0 the likelihood is −ln of those at risk there, and the gradient has their mean age."""
    step = cox_step([Covariate("age", 0, 100)], np.zeros(1), most=MOST, event="rare")
    try:
        told = study().ask(step)
    except QuestionRefused:
        return
    size = round(np.exp(-told.log_likelihood))
    age = RARE - told.gradient[0]
    assert (size, age) != (33, pytest.approx(CENTRES["centre-3"]["age"].mean()))


# --- what a refusal says ----------------------------------------------------------------------


def shows_a_patient(rows: Any) -> np.ndarray:
    raise ValueError(f"the first patient is {rows['age'][0]} years old")


@pytest.mark.xfail(strict=True, reason="the text of an exception leaves the centre")
def test_the_text_of_an_exception_stays_in_the_centre() -> None:
    showing = Statistic("shows", shows_a_patient, np.array([1.0]), lambda total: total)
    centre = desk()
    with pytest.raises(QuestionRefused) as refusal:
        centre.answer(Question(showing, NAMES, 1))
    assert "years old" not in str(refusal.value)
    assert refusal.value.__context__ is refusal.value.__cause__ is None


# --- names, and noise -------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, reason="names that nobody knows make a sum large enough")
def test_invented_centres_make_no_crowd() -> None:
    names = ("centre-3", "x1", "x2", "x3", "x4")
    with pytest.raises(QuestionRefused, match="x1"):
        desk().answer(Question(count("age", most=MOST), names, 1))


@pytest.mark.xfail(strict=True, reason="the asker says how many centres tell it their noise")
def test_how_many_may_tell_their_noise_is_not_the_askers_word() -> None:
    """Fewer silent ones, less noise from each: with two of six on the asker's side too little is left."""
    statistic, bits = count("age", most=MOST), element_bits(len(NAMES))
    noise = private_sums(statistic, BUDGET, len(NAMES), 1, bits=bits)
    with pytest.raises(QuestionRefused, match="noise"):
        desk(budget=BUDGET).answer(Question(statistic, NAMES, 1, noise))
