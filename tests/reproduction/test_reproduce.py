"""`basecagg reproduce`: every experiment runs in seconds on digits, and says what its figures say."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
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
from reproduction.report import Claim
from reproduction.simulated import final_accuracy, gap


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


WITHOUT_CLAIMS = {"flower"}
"""They measure what no paper has claimed of this code."""
CLAIMS_OF_ALL_ROWS = {"privacy-records", "protocols"}
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


def compared(gap: float, seeds: int = 3, apart: float = 0.0) -> dict[str, Any]:
    """`apart` is what the gaps of two seeds differ by."""
    return {
        f"{method}/{weighting}/{seed}": run_of(
            0.97 - (gap + apart * (seed - 1) if method == "basecagg" else 0)
        )
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
        (compared(0.001, apart=0.0005), "reproduced"),  # −0.1 ± 0.12 points
        (compared(0.001, apart=0.004), "undecided"),  # −0.1 ± 0.99 points: may be more than 0.5
    ],
)
def test_a_gap_and_its_interval_decide_about_accuracy(
    results: Mapping[str, Any], verdict: str
) -> None:
    as_good, by_age, _ = accuracy.MNIST.report(results, "full").claims
    assert (as_good.verdict, by_age.verdict) == (verdict, verdict)


def with_keys(results: dict[str, Any], gap: float, apart: float = 0.0) -> dict[str, Any]:
    """`gap` is what keys lose beside FedBuff with the first seed, and `apart` is added with every other."""
    seeds = sum(key.startswith("fedbuff/polynomial/") for key in results)
    runs = {f"keys/polynomial/{seed}": run_of(0.97 - gap - apart * seed) for seed in range(seeds)}
    return results | runs


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (with_keys(compared(0.0), 0.001), "holds"),
        (with_keys(compared(0.0), 0.02), "does not hold"),
        (with_keys(compared(0.0), -0.003, apart=0.004), "undecided"),
        (with_keys(compared(0.0, seeds=1), 0.001), "undecided"),
        (with_keys(compared(0.004), -0.003), "does not hold"),  # 0.7 points from long masks
    ],
)
def test_keys_must_be_near_fedbuff_and_near_long_masks(
    results: Mapping[str, Any], verdict: str
) -> None:
    page = accuracy.MNIST.report(results, "full")
    assert page.claims[-1].verdict == verdict
    assert page.claims[-1].beyond
    assert [line["method"] for line in page.lines][-1] == "BASecAgg, masks from keys"
    assert [claim.verdict for claim in page.claims[:-1]] == [
        claim.verdict for claim in accuracy.MNIST.report(without_keys(results), "full").claims
    ]


def without_keys(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run for key, run in results.items() if not key.startswith("keys/")}


def test_runs_with_keys_differ_from_long_ones_in_masks_and_weights_alone() -> None:
    long, keys = (accuracy.MNIST_STEPS.compared(m, "polynomial", 1) for m in ("basecagg", "keys"))
    changes = {"masks": "long", "weights": "field", "weight_levels": 64, "modulus": None}
    assert replace(keys, **changes) == long
    p = keys.protocol_parameters(61_706)
    assert (p.masks, p.weights, p.field_size, p.word_bytes) == ("keys", "own", 16760833, 3)
    assert long.protocol_parameters(61_706).masks == "long"


@pytest.mark.parametrize(("less", "verdict"), [(0.0, "reproduced"), (0.02, "not reproduced")])
def test_weighing_by_age_must_not_cost_accuracy(less: float, verdict: str) -> None:
    results = compared(0.0)
    for key in [key for key in results if "polynomial" in key]:
        results[key] = run_of(0.97 - less)
    assert accuracy.MNIST.report(results, "full").claims[-1].verdict == verdict


def test_gaps_are_taken_seed_by_seed() -> None:
    """Runs come as they end, in any order, and some later."""
    results = {f"a/{seed}": run_of(0.9 + seed / 100) for seed in (3, 1, 2)}
    results |= {f"b/{seed}": run_of(0.89 + seed / 100) for seed in (1, 2, 3, 4)}
    found = gap(results, "a", "b")
    assert found.mean == pytest.approx(1.0)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)
    assert not gap({"a/1": run_of(0.9), "b/1": run_of(0.9)}, "a", "b").within(10)


def test_trials_are_shown_beside_the_runs_and_change_no_verdict() -> None:
    long_training = {"E = 60, batches of 50/1": run_of(0.5)}
    page = accuracy.MNIST.report({**compared(0.001), **long_training}, "full")
    assert [claim.verdict for claim in page.claims] == ["reproduced"] * 3
    (table,) = page.tables.values()
    shown = [(line["E, local steps"], line["batch"], line["accuracy, %"]) for line in table]
    assert shown == [(4, 50, "97.00"), (60, 50, "50.00")]
    assert "accuracy-mnist-trials" in page.figures


def test_trials_say_what_staleness_costs_and_what_diverged() -> None:
    name = "E = 2, batches of 10"
    diverged = {"curve": [[0, 0.0, 0, 0.1]], "stopped": "the loss is not a number", "seconds": 1.0}
    results = compared(0.001) | {
        f"{name}/1": run_of(0.4),
        f"{name}, no staleness/1": run_of(0.5),
        f"{name}, η_l = 0.2/1": diverged,
    }
    page = accuracy.CIFAR10_LARGE.report(results, "full")
    (table,) = page.tables.values()
    assert sorted(line["accuracy, %"] for line in table) == ["40.00", "50.00", "diverged"]
    assert any("reach 50.0 % if no update is stale, and 40.0 % with" in note for note in page.notes)
    assert any(
        note.startswith("Departs from the paper: η_l = 0.03, not 0.1") for note in page.notes
    )


def test_seeds_that_were_added_are_told_with_what_was_found_before() -> None:
    def told(results: Mapping[str, Any]) -> list[str]:
        notes = accuracy.CIFAR10_LARGE.report(results, "full").notes
        return [note for note in notes if "seeds were planned" in note]

    results = compared(0.001, seeds=5, apart=0.008)
    before = {key: run for key, run in results.items() if not key.endswith("/4")}
    claims = accuracy.CIFAR10_LARGE.report(before, "full").claims
    left_open = [claim.found for claim in claims if claim.verdict == "undecided"]
    assert left_open
    (note,) = told(results)
    assert f"{len(left_open)} of {len(claims)} claims" in note
    assert all(found in note for found in left_open)
    assert told(before) == []


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


# --- beyond the paper -----------------------------------------------------------------------------


def gone_beyond(seeds: int = 3) -> dict[str, Any]:
    """Every run of BASecAgg made all its versions, and was as good as all the others."""
    runs = {}
    for part, seed in product(beyond.PARTS, range(1, seeds + 1)):
        for value in part.values:
            config = beyond.config(part, "basecagg", value, seed, "full")
            last, k = config.versions, config.buffer_size
            curve = [[v, float(v), k * v, 0.8 if v > last / 2 else 0.1] for v in range(last + 1)]
            runs[f"{part.name}/basecagg/{value}/{seed}"] = {"curve": curve}
    return runs


def beyond_claim(results: Mapping[str, Any], figure: str) -> Claim:
    claims = beyond.BEYOND.report(results, "full").claims
    return next(claim for claim in claims if claim.figure == figure)


def test_equal_curves_decide_about_recovery() -> None:
    results = gone_beyond()
    assert beyond_claim(results, "beyond-dropout").verdict == "reproduced"
    assert "9 of 9 runs" in beyond_claim(results, "beyond-dropout").found
    curve = results["dropout/basecagg/0.2/2"]["curve"]
    curve[1][3] += 1e-6
    assert beyond_claim(results, "beyond-dropout").verdict == "partly"
    assert "8 of 9 runs" in beyond_claim(results, "beyond-dropout").found
    curve[1:] = [[*point[:3], 0.1] for point in curve[1:]]
    assert beyond_claim(results, "beyond-dropout").verdict == "not reproduced"
    assert beyond_claim(gone_beyond(seeds=1), "beyond-dropout").verdict == "undecided"


def test_recovery_is_undecided_until_d_holders_were_gone() -> None:
    results = {key: run for key, run in gone_beyond().items() if "dropout/basecagg/0.3" not in key}
    assert beyond_claim(results, "beyond-dropout").verdict == "undecided"


def test_runs_that_went_to_their_end_decide_about_the_largest_buffer() -> None:
    results = gone_beyond()
    claim = beyond_claim(results, "beyond-buffer")
    assert claim.verdict == "reproduced"
    assert "3 of 3 runs made all their 10 versions" in claim.found
    assert "K = 100: 80.00 % after 1,000 updates" in claim.found
    assert "90% not reached by the mean over seeds, in some version by 0 of 3 seeds" in claim.found
    results["buffer/basecagg/100/1"]["curve"][-1][3] = 0.91
    assert "by 1 of 3 seeds" in beyond_claim(results, "beyond-buffer").found
    del results["buffer/basecagg/100/1"]["curve"][-1]
    assert beyond_claim(results, "beyond-buffer").verdict == "partly"
    for seed in (2, 3):
        del results[f"buffer/basecagg/100/{seed}"]["curve"][-1]
    assert beyond_claim(results, "beyond-buffer").verdict == "not reproduced"
    del results["buffer/basecagg/100/3"]
    assert beyond_claim(results, "beyond-buffer").verdict == "undecided"
    for seed in (1, 2):
        del results[f"buffer/basecagg/100/{seed}"]
    assert beyond_claim(results, "beyond-buffer").found == "K = N was not run."


def test_the_largest_buffer_is_that_of_all_users() -> None:
    part = next(part for part in beyond.PARTS if part.name == "buffer")
    config = beyond.config(part, "basecagg", part.values[-1], 1, "full")
    assert config.buffer_size == config.users


def test_users_at_once_are_compared_by_the_time_to_the_target() -> None:
    results = gone_beyond()
    found = beyond_claim(results, "beyond-concurrency").found
    assert "C = 100: 80.00 % after 2,500 updates" in found
    for seed in (1, 2, 3):
        results[f"concurrency/basecagg/20/{seed}"]["curve"][10][3] = 0.95
        results[f"concurrency/basecagg/50/{seed}"]["curve"][7][3] = 0.95
    claim = beyond_claim(results, "beyond-concurrency")
    assert "C = 50: 80.00 % after 1,250 updates" in claim.found
    assert "and 125 simulated seconds, 90% after 7 s" in claim.found
    assert claim.why.endswith("C = 50 is soonest")


# --- the sweep ------------------------------------------------------------------------------------


def test_the_best_go_on_and_the_papers_choice_with_them() -> None:
    ladder = sweep.Ladder(accuracy.SMOKE, (sweep.Rung(225, 1), sweep.Rung(2, 2)))
    contenders = partial(sweep.contenders, sweep.MNIST_SWEEP, ladder)
    ranked = {choice: index / 1000 for index, choice in enumerate(sweep.GRID)}
    results = {f"0/{choice.key}/1": run_of(score) for choice, score in ranked.items()}
    assert contenders(0, {}) == list(sweep.GRID)
    best = sorted(sweep.GRID, key=lambda choice: -ranked[choice])[:2]
    assert contenders(1, results) == [*best, sweep.MNIST_SWEEP.papers]


def test_the_paper_is_right_only_if_its_choice_wins() -> None:
    papers, claim = sweep.MNIST_SWEEP.papers, partial(sweep.claim, sweep.MNIST_SWEEP)
    rival = papers._replace(local_rate=0.1)
    assert claim({papers: 98.0, rival: 97.0}, 3).verdict == "reproduced"
    assert claim({papers: 97.8, rival: 98.0}, 3).verdict == "partly"
    assert claim({papers: 90.0, rival: 98.0}, 3).verdict == "not reproduced"
    assert claim({papers: 98.0, rival: 97.0}, 1).verdict == "undecided"


def test_on_cifar10_one_value_of_the_papers_choice_is_changed_at_a_time() -> None:
    papers = (1.0, 0.1, 5e-4, 1.0)
    tried = [job.key.split("/")[1:5] for job in sweep.CIFAR10.jobs(Order(), {})]
    apart = [sum(float(v) != p for v, p in zip(values, papers, strict=True)) for values in tried]
    assert sorted(apart) == [0] + [1] * (2 + 4 + 2 + 4)


def test_validation_never_sees_what_is_trained_on_nor_the_test() -> None:
    task = built_in_task("mlp", "digits")
    split = sweep.held_out(task).dataset
    assert len(split.test_y) == round(0.2 * len(task.dataset.train_y))
    assert len(split.test_y) + len(split.train_y) == len(task.dataset.train_y)
    rows = [tuple(row.flatten().tolist()) for part in (split.train_x, split.test_x) for row in part]
    known = [tuple(row.flatten().tolist()) for row in task.dataset.train_x]
    assert sorted(rows) == sorted(known)
