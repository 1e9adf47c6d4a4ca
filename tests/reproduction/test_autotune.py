"""The auto-tuning experiment in seconds: bad starts lose, tuned ones regain most of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from reproduction.autotune import AUTOTUNE, BAD, GOOD, LOST, report
from reproduction.jobs import Order


def test_the_experiment_in_seconds(tmp_path: Path) -> None:
    publication = AUTOTUNE.run(Order("smoke"), tmp_path)
    lines = {(line["start"], line["tuned"]): line for line in publication.lines}
    assert set(lines) == {
        (GOOD, False),
        *((name, tuned) for name in BAD for tuned in (False, True)),
    }
    for name in BAD:
        lost, still = (float(lines[name, tuned]["points from 2^16"]) for tuned in (False, True))
        assert lost <= -LOST, name
        assert still >= lost / 2, name
        assert int(lines[name, True]["epochs"]) >= 2
        assert lines[name, False]["epochs"] == "1"
    assert set(publication.figures) == {"autotune"}
    again = AUTOTUNE.run(Order("smoke"), tmp_path)
    assert again.lines == publication.lines


def result(score: float) -> dict[str, Any]:
    return {"curve": [[version, 0.0, 10 * version, score] for version in range(11)]}


def results(seeds: int = 3, **scores: float) -> dict[str, Any]:
    """Runs of every seed: the good start, and every bad one untuned and tuned."""
    runs = {}
    for seed in range(1, seeds + 1):
        runs[f"{GOOD}/untuned/{seed}"] = result(scores["good"])
        for name in BAD:
            runs[f"{name}/untuned/{seed}"] = result(scores["untuned"])
            runs[f"{name}/tuned/{seed}"] = result(scores["tuned"])
    return runs


@pytest.mark.parametrize(
    ("untuned", "tuned", "verdict"),
    [
        (0.90, 0.970, "reproduced"),
        (0.90, 0.966, "reproduced"),
        (0.90, 0.964, "not reproduced"),
        (0.95, 0.970, "not reproduced"),
    ],
)
def test_the_verdict_follows_the_figures(untuned: float, tuned: float, verdict: str) -> None:
    found = report(results(good=0.97, untuned=untuned, tuned=tuned), "full")
    assert found.claims[0].verdict == verdict


@pytest.mark.parametrize(
    ("apart", "verdict"), [(0.0, "reproduced"), (0.001, "reproduced"), (0.01, "undecided")]
)
def test_seeds_that_are_far_apart_leave_it_undecided(apart: float, verdict: str) -> None:
    """The mean is that of the good start each time."""
    runs = results(good=0.97, untuned=0.90, tuned=0.97)
    runs[f"{BAD[0]}/tuned/1"] = result(0.97 - apart)
    runs[f"{BAD[0]}/tuned/3"] = result(0.97 + apart)
    claim = report(runs, "full").claims[0]
    assert claim.verdict == verdict
    assert ("reaches lower" in claim.why) == (verdict == "undecided")


def test_what_all_seeds_found_is_shown() -> None:
    runs = results(good=0.97, untuned=0.90, tuned=0.97)
    for seed, (version, clip, levels) in enumerate(
        [(4, 0.0625, 2**25), (4, 0.0625, 2**25), (8, 0.125, 2**24)], 1
    ):
        first = {"first_version": 0, "clip": 4.0, "update_levels": 1}
        second = {"first_version": version, "clip": clip, "update_levels": levels}
        runs[f"{BAD[0]}/tuned/{seed}"]["epochs"] = [first, second]
    found = {(line["start"], line["tuned"]): line for line in report(runs, "full").lines}
    line = found[BAD[0], True]
    columns = ("found B", "found c_l", "from version", "epochs")
    assert [line[column] for column in columns] == ["0.0625 … 0.125", "2^24 … 2^25", "4 … 8", "2"]
    assert [found[GOOD, False][column] for column in columns] == ["–", "–", "–", "1"]


def test_the_setting_is_that_of_the_runs() -> None:
    lead = report(results(good=0.97, untuned=0.90, tuned=0.97), "full").lead
    for words in ("N = 100 users, 20 of them hold shares", "E = 48 local steps", "75 versions"):
        assert words in lead


def test_a_start_that_is_not_bad_makes_it_partly() -> None:
    runs = results(good=0.97, untuned=0.90, tuned=0.97)
    mild = {key: result(0.96) for key in runs if key.startswith(f"{BAD[0]}/untuned/")}
    assert report(runs | mild, "full").claims[0].verdict == "partly"


def test_one_seed_does_not_settle_it() -> None:
    claim = report(results(seeds=1, good=0.97, untuned=0.90, tuned=0.97), "full").claims[0]
    assert claim.verdict == "undecided"
    assert "3 seeds are needed" in claim.why
