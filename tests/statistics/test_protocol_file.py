"""A study protocol says everything, strictly; and each of its analyses is what the statistic itself gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up import made_up
from network import protocol_text

from basecagg.errors import DataError, QuestionRefused
from basecagg.statistics import Study, count, cox_step, mean
from basecagg.statistics.analyses import ANALYSES
from basecagg.statistics.protocol_file import parse

MOST = 64
COLUMNS = """
[columns.time]
low = 0
high = 40
[columns.event]
levels = [0, 1]
[columns.age]
low = 0
high = 100
[columns.diabetes]
levels = [0, 1]
meaning = "has diabetes"
"""
EVERYTHING = {
    "count": 'column = "age"',
    "mean": 'column = "age"',
    "compare": 'column = "age"\nby = "diabetes"',
    "table": 'columns = ["diabetes", "event"]',
    "mantel-haenszel": 'exposure = "diabetes"\noutcome = "event"\nstrata = "event"',
    "quantiles": 'column = "age"\nstep = 1',
    "regression": 'family = "logistic"\noutcome = "event"\ncovariates = ["age"]',
    "survival": "times = { from = 1, to = 24 }",
    "survival by group": 'times = [6, 12, 24]\nby = "diabetes"',
    "cox": 'covariates = ["age", "diabetes"]',
    "weighted means": 'outcome = "event"\ntreatment = "diabetes"\ncovariates = ["age"]',
}
CENTRES = made_up(6, least=10)


def ask(compute: str, words: str, more: str = "") -> str:
    return f'[[ask]]\nname = "{compute}"\ncompute = "{compute}"\n{words}\n{more}\n'


def text(asked: str = "", **more: Any) -> str:
    asked = asked or ask("count", 'column = "age"')
    return protocol_text(CENTRES, most=MOST, columns=COLUMNS, asked=asked, **more)


def test_everything_that_a_protocol_may_ask_for() -> None:
    assert EVERYTHING.keys() == ANALYSES.keys()
    protocol = parse(text("".join(ask(*each) for each in EVERYTHING.items())))
    study = Study(CENTRES, most=MOST)
    for desk in study.desks.values():
        desk.only = protocol.answered
        for asked in protocol.analyses:
            for each in asked.sums:
                desk.approve(each)
    asked_hashes = set()

    def listen(statistic: Any) -> Any:
        asked_hashes.add(statistic.digest)
        return study.ask(statistic)

    for asked in protocol.analyses:
        outcome = asked.run(listen)
        numbers = [v for row in outcome.get("table", [{}]) for v in row.values()]
        assert outcome
        assert all(isinstance(each, float | int | str) for each in numbers)
    # No analysis asks for anything but what was approved, and for all of that.
    assert {(each, False) for each in asked_hashes} == protocol.answered
    assert protocol.size == max(
        each.bounds.size * 3 + 1 for a in protocol.analyses for each in a.sums
    )


def test_a_desk_answers_what_the_protocol_asks_and_nothing_else() -> None:
    protocol = parse(text(ask("cox", 'covariates = ["age"]') + ask("mean", 'column = "age"')))
    study = Study(CENTRES, most=MOST)
    for desk in study.desks.values():
        desk.only = protocol.answered
    assert study.ask(mean("age", 0, 100, most=MOST)).records > 0
    for other in (
        mean("age", 0, 99, most=MOST),
        mean("time", 0, 40, most=MOST),
        count("age", most=MOST),
    ):
        with pytest.raises(QuestionRefused, match="not in the study protocol"):
            study.ask(other)
    ages = parse(text(ask("cox", 'covariates = ["age"]'))).columns["age"].span
    with pytest.raises(QuestionRefused):  # a Cox model is approved besides
        study.ask(cox_step([ages], np.zeros(1), most=MOST))


BUDGET = "[budget]\nepsilon = 3.0\ndelta = 1e-5\nuses = 1\n"


def test_noise_needs_a_budget_and_a_statistic_that_can_have_it() -> None:
    noisy = ask("count", 'column = "age"', "noise = true")
    with pytest.raises(DataError, match=r"no \[budget\]"):
        parse(text(noisy))
    protocol = parse(text(noisy, more=BUDGET))
    assert protocol.budget is not None
    assert protocol.analyses[0].private
    with pytest.raises(DataError, match="nobody knows how much one record changes cox"):
        parse(text(ask("cox", 'covariates = ["age"]', "noise = true"), more=BUDGET))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("most = 64", "most = true", "most = True"),
        ("most = 64", "", "lacks 'most'"),
        ("most = 64", "most = 64\nmore = 1", "'more'"),
        ('column = "age"', 'column = "agee"', "none of the protocol's columns"),
        ('column = "age"', 'column = "age"\nsteps = 1', "'steps'"),
        ('compute = "count"', 'compute = "counts"', "'counts'"),
        ("low = 0\nhigh = 100", "low = 0", "neither levels nor"),
        ("low = 0\nhigh = 100", "low = 100\nhigh = 0", "ascend"),
        ("levels = [0, 1]", "levels = [1, 0]", "ascend"),
        ("[study]", "[study", "no TOML"),
        ('"centre-05"', '"centre-04"', "each once"),
    ],
)
def test_a_slip_of_the_pen_is_refused(old: str, new: str, said: str) -> None:
    asked = ask("count", 'column = "age"') + ask("table", 'columns = ["event"]')
    asked += ask("mean", 'column = "age"')
    right = text(asked)
    assert old in right
    parse(right)
    with pytest.raises(DataError, match=said):
        parse(right.replace(old, new, 1))
