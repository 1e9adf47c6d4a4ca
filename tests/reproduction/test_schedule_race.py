"""Races to a target: who runs, when one is over, and what the table says about them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from reproduction import schedules
from reproduction.jobs import Order, Size
from reproduction.schedules import SCHEDULES, Finish, Race, lines_of, races, run_race


def test_every_method_runs_once_for_each_setting() -> None:
    quick = races("quick")
    assert len({race.key for race in quick}) == len(quick)
    assert {race.method for race in quick} == set(schedules.METHODS)
    in_rounds = [race for race in quick if race.method == "fedavg"]
    assert {(race.concurrency, race.buffer_size) for race in in_rounds} == {(10, 7), (20, 15)}
    buffered = {(r.concurrency, r.buffer_size) for r in quick if r.method == "basecagg"}
    assert buffered == {(10, 5), (10, 10), (20, 5), (20, 10)}
    for race in races("full"):
        race.config("full")


def test_a_race_stops_at_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "TARGET", 0.2)
    finish = run_race(Race("fedbuff", "half-normal", 10, 5, 1), "quick")
    assert finish.reached
    assert finish.score >= 0.2
    assert finish.versions < 600
    assert finish.curve[-1] == (finish.seconds, finish.score)


def test_a_race_that_is_not_won_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schedules._LAST_VERSION, "fedbuff", 1)
    finish = run_race(Race("fedbuff", "half-normal", 10, 5, 1), "quick")
    assert not finish.reached
    assert finish.versions == 1


def fake(race: Race) -> Finish:
    seconds = {"fedavg": 100.0, "fedasync": 60.0}.get(race.method, 25.0)
    return Finish(True, 10, 2, 0.9, [(0.0, 0.1), (seconds, 0.9)])


def test_gains_are_against_rivals_of_the_same_concurrency() -> None:
    lines = lines_of({race: fake(race) for race in races("quick")})
    ours = [line for line in lines if line["method"] == "basecagg"]
    assert {line["faster than fedavg"] for line in ours} == {4.0}
    assert {line["faster than fedasync"] for line in ours} == {2.4}


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def count(race: Race, size: Size) -> Finish:
        ran.append(race.key)
        return fake(race)

    monkeypatch.setattr(schedules, "run_race", count)
    SCHEDULES.run(Order("quick"), tmp_path)
    publication = SCHEDULES.run(Order("quick"), tmp_path)
    assert len(ran) == len(races("quick"))
    assert len(publication.figures) == 3
