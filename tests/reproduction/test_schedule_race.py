"""Races to a target: who runs, when one is over, and what the table says about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from basecagg.learning import built_in_task
from reproduction import schedules
from reproduction.jobs import Order, Size
from reproduction.schedules import (
    SCHEDULES,
    Finish,
    Race,
    claim,
    data_claim,
    lines_of,
    races,
    run_race,
)


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
    assert len(publication.figures) == 4
    assert [each.verdict for each in publication.claims] == ["undecided", "undecided"]


# --- verdicts follow the figures ------------------------------------------------------------------

FULL = races("full")


def raced(seconds: Callable[[Race], float], updates: Callable[[Race], int]) -> dict[Race, Finish]:
    return {
        race: Finish(True, updates(race), 2, 0.9, [(0.0, 0.1), (seconds(race), 0.9)])
        for race in FULL
    }


def is_best(race: Race) -> bool:
    return race.method in schedules.BUFFERED and (race.concurrency, race.buffer_size) == (40, 5)


def gained(
    best: Mapping[str, float], rounds: Callable[[Race], float] = lambda race: 100.0
) -> dict[Race, Finish]:
    """The buffered methods gain this with C = 40 and K = 5, and twice as much as FedAvg otherwise."""

    def seconds(race: Race) -> float:
        if race.method == "fedavg":
            return rounds(race)
        return 100.0 / (best[race.method] if is_best(race) else 2.0)

    return raced(seconds, lambda race: 100)


def test_both_methods_at_their_best_decide_about_the_gain() -> None:
    def verdict(finishes: Mapping[Race, Finish]) -> str:
        return claim(lines_of(finishes)).verdict

    both = {"fedbuff": 4.0, "basecagg": 4.0}
    assert verdict(gained(both)) == "reproduced"
    assert verdict(gained({**both, "basecagg": 3.7})) == "not reproduced"
    assert verdict(gained({**both, "fedbuff": 3.7})) == "not reproduced"
    # with C = 10 FedAvg is sooner than with the C of the best cell
    assert verdict(gained(both, lambda race: 80.0 if race.concurrency == 10 else 100.0)) == "partly"
    two_seeds = {race: finish for race, finish in gained(both).items() if race.seed < 3}
    assert verdict(two_seeds) == "undecided"
    lost = {
        race: finish._replace(reached=not is_best(race)) for race, finish in gained(both).items()
    }
    assert verdict(lost) == "not reproduced"


def test_a_seed_that_one_cell_lacks_settles_nothing() -> None:
    finishes = gained({"fedbuff": 4.0, "basecagg": 4.0})
    del finishes[next(race for race in FULL if is_best(race) and race.seed == 3)]
    assert claim(lines_of(finishes)).verdict == "undecided"


def test_all_cells_are_told_beside_the_best() -> None:
    found = claim(lines_of(gained({"fedbuff": 6.0, "basecagg": 4.0}, slow_with_c_10))).found
    assert (
        "FedBuff at most 6.0 times (half-normal speeds, C = 40, K = 5), median 2.0 times" in found
    )
    assert "3.8 or more in 2 of 18 cells, slower than FedAvg in 6;" in found
    assert (
        "FedAvg with C = 10, K = 7: FedBuff 2.4 times (C = 40, K = 5), BASecAgg 1.6 times" in found
    )


def slow_with_c_10(race: Race) -> float:
    """FedAvg is so soon with C = 10 that a buffer with that C is slower."""
    return 40.0 if race.concurrency == 10 else 100.0


def grown(factors: Mapping[str, float]) -> dict[Race, Finish]:
    """Updates from C = 10 to C = 40."""

    def updates(race: Race) -> int:
        return round(100 * factors.get(race.method, 1.0) ** (race.concurrency == 40))

    return raced(lambda race: float(race.buffer_size), updates)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ({"fedavg": 4.0, "fedbuff": 1.2, "basecagg": 1.9}, "reproduced"),
        ({"fedavg": 4.0, "fedbuff": 1.2, "basecagg": 2.1}, "partly"),
        ({"fedavg": 4.0, "fedbuff": 1.2, "basecagg": 4.1}, "not reproduced"),
        ({"fedavg": 1.5, "fedbuff": 1.2, "basecagg": 1.2}, "not reproduced"),
    ],
)
def test_growth_with_c_decides_about_data(factors: Mapping[str, float], verdict: str) -> None:
    finishes = grown(factors)
    assert data_claim(finishes).verdict == verdict
    assert (
        f"BASecAgg, K = 5, 100 → 100 → {100 * factors['basecagg']:.0f}"
        in data_claim(finishes).found
    )
    two_seeds = {race: finish for race, finish in finishes.items() if race.seed < 3}
    assert data_claim(two_seeds).verdict == "undecided"


def test_every_seed_counts_for_data_and_a_race_that_is_lost_does_not_pass() -> None:
    finishes = grown({"fedavg": 4.0})
    one = Race("basecagg", "log-normal", 40, 5, 2)
    assert data_claim(finishes).verdict == "reproduced"
    assert data_claim({**finishes, one: finishes[one]._replace(updates=250)}).verdict == "partly"
    never = {
        replace(one, buffer_size=k): finishes[one]._replace(reached=False) for k in (5, 10, 20)
    }
    lost = data_claim({**finishes, **never})
    assert lost.verdict == "not reproduced"
    assert "BASecAgg, K = 5, not always there" in lost.found


def test_the_lead_tells_the_setting() -> None:
    lead = SCHEDULES.report(
        {race.key: finish._asdict() for race, finish in grown({}).items()}, "full"
    ).lead
    config = FULL[0].config("full")
    assert (config.partition, config.dirichlet_alpha, config.local_epochs) == ("dirichlet", 0.5, 1)
    assert "digits" in lead
    assert "Dirichlet(0.5), E = 1 epoch" in lead
    assert f"{len(built_in_task('mlp', 'digits').dataset.test_y)} test images" in lead
