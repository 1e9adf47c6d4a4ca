"""`basecagg reproduce`: every experiment runs in seconds on digits, and says what its figures say."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import basecagg
from basecagg.cli import main
from basecagg.learning import built_in_task
from reproduction import accuracy, beyond, costs, levels, sweep
from reproduction.catalogue import EXPERIMENTS, find
from reproduction.command import in_words
from reproduction.jobs import Order, Progress
from reproduction.simulated import final_accuracy


def test_without_a_checkout_one_line_says_where_the_experiments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "basecagg.commands.reproduce", raising=False)
    monkeypatch.setattr(basecagg, "__file__", str(tmp_path / "lib" / "site" / "basecagg" / "x.py"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["reproduce", "theorem"])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "in a checkout of basecagg" in done.stderr


WITHOUT_CLAIMS = {"protocols", "flower"}
"""They measure what no paper has claimed of this code."""
CLAIMS_OF_ALL_ROWS = {"privacy-records"}
"""Its claims compare rows that the shortest form does not have."""


@pytest.mark.filterwarnings("default:::flwr")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_in_seconds_and_is_not_run_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "flower":
        pytest.importorskip("flwr")
    monkeypatch.setattr(costs, "SHORT_SECONDS", 0.05)
    arguments = ["reproduce", name, "--smoke", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["lines"]
    assert ("claims" in content) == (name not in WITHOUT_CLAIMS | CLAIMS_OF_ALL_ROWS)
    assert any((tmp_path / "plots").glob(f"{name.partition('-')[0]}*.png"))
    ledger = (tmp_path / f"{name}-smoke.jsonl").read_text()
    find(name).run(Order("smoke"), tmp_path)
    assert (tmp_path / f"{name}-smoke.jsonl").read_text() == ledger


def test_every_run_of_the_full_forms_can_begin() -> None:
    order = Order()
    for name in EXPERIMENTS:
        jobs = find(name).jobs(order, {})
        assert len({job.key for job in jobs}) == len(jobs) >= 2
    for levels_of in (levels.MNIST, levels.CIFAR10):
        assert {"2^0/1", "2^16/1", "2^34/1"} <= {job.key for job in levels_of.jobs(order, {})}
    assert len(beyond.jobs(order, {})) == 3 * (2 * 4 + 4 + 5 + 5 + 4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "run"), (30, "30 s"), (600, "10 min"), (5400, "1.5 h")],
)
def test_the_time_left_is_told(seconds: float | None, text: str) -> None:
    assert text in in_words(Progress(1, 3, "run", seconds))


# --- verdicts follow the figures ------------------------------------------------------------------


def run_of(score: float, **more: Any) -> dict[str, Any]:
    curve = [[0, 0.0, 0, 0.1], *([version, 0.0, version, score] for version in range(1, 21))]
    return {"curve": curve, "seconds": 60.0, **more}


def compared(gap: float, seeds: int = 3) -> dict[str, Any]:
    return {
        f"{method}/{weighting}/{seed}": run_of(0.97 - (gap if method == "basecagg" else 0))
        for method in accuracy.METHODS
        for weighting in accuracy.WEIGHTINGS
        for seed in range(seeds)
    }


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (compared(0.001), "reproduced"),
        (compared(0.02), "not reproduced"),
        (compared(0.001, seeds=1), "undecided"),
        (compared(0.02, seeds=1), "undecided"),
    ],
)
def test_a_gap_decides_about_accuracy(results: Mapping[str, Any], verdict: str) -> None:
    claims = accuracy.MNIST.report(results, "full").claims
    assert [claim.verdict for claim in claims] == [verdict, verdict]


def test_trials_are_shown_beside_the_runs_and_change_no_verdict() -> None:
    long_training = {"E = 60, batches of 50/1": run_of(0.5)}
    page = accuracy.MNIST.report({**compared(0.001), **long_training}, "full")
    assert [claim.verdict for claim in page.claims] == ["reproduced", "reproduced"]
    (table,) = page.tables.values()
    shown = [(line["E, local steps"], line["batch"], line["accuracy, %"]) for line in table]
    assert shown == [(4, 50, "97.00"), (60, 50, "50.00")]
    assert "accuracy-mnist-trials" in page.figures


def test_the_end_of_a_run_is_the_mean_of_its_last_versions() -> None:
    run = {"curve": [[version, 0.0, 0, version / 100] for version in range(0, 101, 1)]}
    assert final_accuracy(run) == pytest.approx(0.955)
    assert final_accuracy(run, last=1) == pytest.approx(1.0)


def at_levels(scores: Mapping[int, float], seeds: int = 3) -> dict[str, Any]:
    errors = {
        "elements": 100,
        "clipped": 0,
        "wrapped": 10,
        "squared_rounding": 1.0,
        "squared_wraparound": 4.0,
        "squared_signal": 100.0,
    }
    runs = {
        f"2^{e}/{seed}": run_of(score, **{"field errors": errors})
        for e, score in scores.items()
        for seed in range(seeds)
    }
    return {"fedbuff/1": run_of(0.97), **runs}


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ({0: 0.8, 16: 0.97, 34: 0.5}, "reproduced"),
        ({0: 0.8, 8: 0.969, 16: 0.97, 34: 0.5}, "partly"),  # one of a plateau
        ({0: 0.97, 16: 0.97, 34: 0.5}, "partly"),
        ({0: 0.8, 8: 0.99, 16: 0.9, 34: 0.5}, "not reproduced"),
    ],
)
def test_both_ends_and_the_middle_decide_about_levels(
    scores: Mapping[int, float], verdict: str
) -> None:
    publication = levels.MNIST.report(at_levels(scores), "full")
    assert publication.claims[0].verdict == verdict
    assert publication.lines[0]["rounding error"] == pytest.approx(0.1)
    assert publication.lines[0]["wrap-around error"] == pytest.approx(0.2)
    assert publication.lines[0]["wrapped, %"] == pytest.approx(10)


def test_levels_of_one_seed_settle_nothing() -> None:
    results = at_levels({0: 0.8, 16: 0.97, 34: 0.5}, seeds=1)
    assert levels.MNIST.report(results, "full").claims[0].verdict == "undecided"


# --- the sweep ------------------------------------------------------------------------------------


def test_the_best_go_on_and_the_papers_choice_with_them() -> None:
    ladder = sweep.Ladder(accuracy.SMOKE, (sweep.Rung(225, 1), sweep.Rung(2, 2)))
    ranked = {choice: index / 1000 for index, choice in enumerate(sweep.GRID)}
    results = {f"0/{choice.key}/1": run_of(score) for choice, score in ranked.items()}
    assert sweep.contenders(ladder, 0, {}) == list(sweep.GRID)
    best = sorted(sweep.GRID, key=lambda choice: -ranked[choice])[:2]
    assert sweep.contenders(ladder, 1, results) == [*best, sweep.PAPERS]


def test_the_paper_is_right_only_if_its_choice_wins() -> None:
    rival = sweep.PAPERS._replace(local_rate=0.1)
    assert sweep.claim({sweep.PAPERS: 98.0, rival: 97.0}, 3).verdict == "reproduced"
    assert sweep.claim({sweep.PAPERS: 97.8, rival: 98.0}, 3).verdict == "partly"
    assert sweep.claim({sweep.PAPERS: 90.0, rival: 98.0}, 3).verdict == "not reproduced"
    assert sweep.claim({sweep.PAPERS: 98.0, rival: 97.0}, 1).verdict == "undecided"


def test_validation_never_sees_what_is_trained_on_nor_the_test() -> None:
    task = built_in_task("mlp", "digits")
    split = sweep.held_out(task).dataset
    assert len(split.test_y) == round(0.2 * len(task.dataset.train_y))
    assert len(split.test_y) + len(split.train_y) == len(task.dataset.train_y)
    rows = [tuple(row.flatten().tolist()) for part in (split.train_x, split.test_x) for row in part]
    known = [tuple(row.flatten().tolist()) for row in task.dataset.train_x]
    assert sorted(rows) == sorted(known)
