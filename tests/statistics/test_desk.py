"""A centre answers what hides it, and refuses what would single it out."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up import COVARIATES, MONTHS, MOST, made_up

from basecagg.errors import (
    BASecAggWarning,
    BudgetSpent,
    DataError,
    ParameterError,
    QuestionRefused,
)
from basecagg.planning.budget import Budget
from basecagg.statistics import (
    Desk,
    HazardModel,
    Question,
    Statistic,
    count,
    cox_step,
    histogram,
    kaplan_meier,
    mean,
    moments,
    private_sums,
)
from basecagg.statistics.encoding import element_bits, join
from basecagg.storage.in_memory import MemoryStore

CENTRES = made_up()
NAMES = tuple(sorted(CENTRES))
ME = NAMES[0]
COUNT = count("time", most=MOST)


def of_rows(rows: Any) -> np.ndarray:
    return np.array([np.sum(rows["age"]) / 100])


OWN_SUM = Statistic("own", of_rows, np.array([float(MOST)]), float, per_record=1.0)
BUDGET = Budget(epsilon=3.0, delta=1e-5, max_uses=2)


def desk(store: MemoryStore | None = None, **options: Any) -> Desk:
    options = {"rows": CENTRES[ME], "centres": NAMES, "most": MOST, "budget": BUDGET} | options
    centre = Desk(ME, store=store or MemoryStore(), **options)
    centre.approve(OWN_SUM)
    return centre


def noisy(members: tuple[str, ...] = NAMES, statistic: Statistic[Any] = COUNT) -> Question:
    bits = element_bits(len(members))
    return Question(
        statistic, members, 1, private_sums(statistic, BUDGET, len(members), 2, bits=bits)
    )


def test_an_answer_is_whole_numbers_with_the_questions_own_in_front() -> None:
    answer = desk().answer(Question(COUNT, NAMES, 7))
    assert answer[0] == 7
    assert (answer == np.rint(answer)).all()


def test_a_sum_of_few_centres_is_refused_and_of_enough_is_not() -> None:
    with pytest.raises(QuestionRefused, match="4 centres: centre-00 answers in sums of 5 or more"):
        desk().answer(Question(COUNT, NAMES[:4], 1))
    desk().answer(Question(COUNT, NAMES[:5], 1))
    desk(least=4).answer(Question(COUNT, NAMES[:4], 1))


def test_few_centres_are_refused_with_noise_too() -> None:
    with pytest.raises(QuestionRefused, match="4 centres"):
        desk().answer(noisy(NAMES[:4]))


def test_who_is_not_asked_does_not_answer() -> None:
    with pytest.raises(QuestionRefused, match="not among"):
        desk().answer(Question(COUNT, NAMES[1:], 1))


def test_other_centres_than_before_are_refused_and_the_same_are_not() -> None:
    centre = desk()
    centre.answer(Question(COUNT, NAMES, 1))
    centre.answer(Question(COUNT, NAMES, 2))
    centre.answer(Question(kaplan_meier(MONTHS, most=MOST), NAMES, 3))
    with pytest.raises(QuestionRefused, match="single somebody out"):
        centre.answer(Question(COUNT, NAMES[:-1], 4))


def test_it_is_remembered_across_a_restart() -> None:
    store = MemoryStore()
    desk(store).answer(Question(COUNT, NAMES, 1))
    with pytest.raises(QuestionRefused, match="single somebody out"):
        desk(store).answer(Question(COUNT, NAMES[:-1], 2))
    desk(MemoryStore()).answer(Question(COUNT, NAMES[:-1], 2))  # one that remembers nothing would


def test_nothing_is_answered_from_an_older_copy() -> None:
    store = MemoryStore()
    store.rolled_back = True
    for question in (Question(COUNT, NAMES, 1), noisy()):
        with pytest.raises(QuestionRefused, match="older copy"):
            desk(store).answer(question)


def test_noisy_answers_are_charged_and_may_be_about_other_centres() -> None:
    store = MemoryStore()
    centre = desk(store)
    centre.answer(Question(COUNT, NAMES, 1))
    centre.answer(noisy())
    centre.answer(noisy(NAMES[:-1]))
    assert centre.ledger.uses == 2
    for one in (centre, desk(store)):
        with pytest.raises(BudgetSpent):
            one.answer(noisy())


def test_what_is_refused_costs_nothing() -> None:
    centre = desk()
    with pytest.raises(QuestionRefused):
        centre.answer(noisy(NAMES[:4]))
    assert centre.ledger.uses == 0


def test_two_noisy_answers_differ_and_two_exact_ones_do_not() -> None:
    first, second = (desk().answer(noisy(statistic=kaplan_meier(MONTHS, most=MOST))) for _ in "ab")
    assert (first[1:] != second[1:]).any()
    exact = [desk().answer(Question(COUNT, NAMES, 1))[1:] for _ in "ab"]
    assert join(exact[0], COUNT.bounds, 24) == join(exact[1], COUNT.bounds, 24)


def test_a_column_that_is_missing_is_told_only_without_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tall = mean("height", 0, 300, most=MOST)
    with pytest.raises(QuestionRefused, match="cannot answer the question from its rows"):
        desk().answer(Question(tall, NAMES, 1))
    assert "no column 'height'" in caplog.text  # which the centre reads, and nobody else
    caplog.clear()
    assert desk().answer(noisy(statistic=tall)).shape == (4,)
    assert "no column 'height'" in caplog.text


def test_with_noise_one_record_more_than_agreed_changes_no_more_than_any_other() -> None:
    """Were nothing answered for it, the whole centre would be in the difference of two neighbours."""
    rows = CENTRES[ME]
    cells = histogram("age", [0, 100], most=len(rows["age"]) - 1)
    fewer = {name: values[1:] for name, values in rows.items()}
    question, same = noisy(statistic=cells), bytes(32)
    with pytest.warns(BASecAggWarning, match="more records than the"):
        whole, less = (
            desk(rows=each, most=len(fewer["age"]), entropy=lambda count: same).answer(question)
            for each in (rows, fewer)
        )
    assert question.noise is not None
    assert np.linalg.norm(whole - less) <= question.noise.levels * cells.per_record


def test_without_noise_more_records_than_agreed_are_clipped_and_only_the_centre_is_told() -> None:
    with pytest.warns(BASecAggWarning, match=f"{ME}: has more records than the 2 agreed on"):
        answer = desk(most=2).answer(Question(count("time", most=2), NAMES, 1))
    assert join(answer[1:], np.array([2.0]), 24).tolist() == [2]


def test_noise_that_the_centre_did_not_grant_is_refused() -> None:
    """Whoever asks could name less noise, another ε, or a change that is smaller than a record's."""
    asked = noisy().noise
    assert asked is not None
    less = [
        replace(asked, privacy=replace(asked.privacy, noise=asked.privacy.noise / 2)),
        replace(asked, privacy=replace(asked.privacy, clip_norm=0.5)),
        replace(asked, privacy=replace(asked.privacy, sampling_rate=0.01)),
        replace(asked, silent=0),
        private_sums(COUNT, replace(BUDGET, epsilon=30.0), len(NAMES), 2, bits=24),
        private_sums(COUNT, BUDGET, 2 * len(NAMES), 2, bits=24),
    ]
    centre = desk()
    for noise in less:
        with pytest.raises((QuestionRefused, ParameterError)):
            centre.answer(Question(COUNT, NAMES, 1, noise))
    with pytest.raises(QuestionRefused, match="not the noise"):
        desk(budget=None).answer(noisy())
    assert centre.ledger.uses == 0
    centre.answer(noisy())


def test_names_that_read_alike_are_not_the_same_centres() -> None:
    centre = desk(least=2, centres=(ME, "north", "south", "north\nsouth"))
    centre.answer(Question(COUNT, (ME, "north", "south"), 1))
    with pytest.raises(QuestionRefused, match="single somebody out"):
        centre.answer(Question(COUNT, (ME, "north\nsouth"), 2))


def test_with_noise_a_record_that_is_no_number_changes_nothing_and_is_not_shown() -> None:
    rows = {name: np.append(values, 1.0) for name, values in CENTRES[ME].items()}
    rows["age"] = np.array([*CENTRES[ME]["age"], "secret"], object)
    question, same = noisy(statistic=mean("age", 0, 100, most=MOST)), bytes(32)
    with_it = desk(rows=rows, entropy=lambda count: same)
    with pytest.warns(BASecAggWarning, match="no numbers") as told:
        answer = with_it.answer(question)
    assert answer.tolist() == desk(entropy=lambda count: same).answer(question).tolist()
    assert "secret" not in str(told[0].message)


@pytest.mark.parametrize(
    ("age", "statistic"),
    [
        (np.nan, mean("age", 0, 100, most=MOST)),
        (np.nan, histogram("age", [0, 50, 100], most=MOST)),
        (300.0, moments(HazardModel((12, 24), COVARIATES, MOST))),
        (np.nan, OWN_SUM),
    ],
    ids=["mean", "histogram", "moments", "own"],
)
def test_with_noise_a_record_that_does_not_suit_changes_nothing(
    age: float, statistic: Statistic[Any]
) -> None:
    """Were the whole centre left out for it, everybody could see that it is there."""
    rows = {name: np.append(values, 1.0) for name, values in CENTRES[ME].items()}
    rows["age"] = rows["age"].astype(float)
    rows["age"][-1] = age
    question = noisy(statistic=statistic)
    same = bytes(32)
    centre = desk(rows=rows, entropy=lambda count: same)
    with pytest.warns(BASecAggWarning, match=f"{ME}: "):
        with_it = centre.answer(question)
    without = desk(entropy=lambda count: same).answer(question)
    assert with_it.tolist() == without.tolist()


def test_a_sum_in_which_somebody_answered_another_question_is_noticed() -> None:
    desks = {
        name: Desk(name, rows, MemoryStore(), centres=NAMES, most=MOST)
        for name, rows in CENTRES.items()
    }
    asked, other = Question(COUNT, NAMES, 3), Question(COUNT, NAMES, 4)
    answers = [desks[name].answer(asked) for name in NAMES[1:]]
    assert asked.decode(np.sum([*answers, desks[ME].answer(asked)], axis=0)) > 0
    with pytest.raises(DataError, match="another question"):
        asked.decode(np.sum([*answers, desks[ME].answer(other)], axis=0))


def test_members_stand_in_order_and_once() -> None:
    for members in (NAMES[::-1], (ME, ME)):
        with pytest.raises(ParameterError, match="in order"):
            Question(COUNT, members, 1)


def test_a_vector_of_the_wrong_length_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    wrong, centre = replace(OWN_SUM, bounds=np.ones(2)), desk()
    centre.approve(wrong)
    with pytest.raises(QuestionRefused, match="cannot answer"):
        centre.answer(Question(wrong, NAMES, 1))
    assert "its bounds are (2,)" in caplog.text


def test_columns_of_different_lengths_are_no_rows(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(QuestionRefused, match="cannot answer"):
        desk(rows={"time": [1, 2], "age": [1]}).answer(Question(COUNT, NAMES, 1))
    assert "different lengths" in caplog.text


def test_a_questions_number_fits_into_an_element() -> None:
    for number in (0, -1, 2**24):
        with pytest.raises(ParameterError, match="does not fit"):
            Question(COUNT, NAMES, number)


def test_cox_with_noise_is_refused_with_the_reason() -> None:
    step = cox_step(COVARIATES, np.zeros(2), most=MOST)
    with pytest.raises(ParameterError, match="no noise makes it private"):
        private_sums(step, BUDGET, len(NAMES), 2, bits=24)


# --- two questions at the same time ---------------------------------------------------------------


def test_two_desks_over_one_store_pay_from_one_budget() -> None:
    store = MemoryStore()
    first, second = desk(store), desk(store)
    first.answer(noisy())
    second.answer(noisy())
    for centre in (first, second):
        with pytest.raises(BudgetSpent):
            centre.answer(noisy())
    assert desk(MemoryStore()).answer(noisy()) is not None  # the control: a store of its own


def test_two_exact_questions_at_the_same_time_are_not_both_answered(monkeypatch) -> None:
    """Both have been let in before either is answered."""
    centre, both, refused = desk(), threading.Barrier(2, timeout=30.0), list[QuestionRefused]()
    compute = centre._vector

    def slow(question: Question) -> Any:
        both.wait()
        return compute(question)

    monkeypatch.setattr(centre, "_vector", slow)

    def ask(members: tuple[str, ...], number: int) -> None:
        try:
            centre.answer(Question(COUNT, members, number))
        except QuestionRefused as refusal:
            refused.append(refusal)

    asked = [(NAMES, 1), (NAMES[:-1], 2)]
    threads = [threading.Thread(target=ask, args=each) for each in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
