"""Many runs: each once, in processes or not, and a stop loses only what was running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reproduction.jobs import Job, Order, Progress, run_jobs, seconds_left
from reproduction.ledger import Ledger


def double(number: int) -> dict[str, Any]:
    return {"doubled": 2 * number, "process": os.getpid()}


def fail_at_two(number: int) -> dict[str, Any]:
    if number == 2:
        raise RuntimeError("stopped")
    return double(number)


def jobs(work: Any = double) -> list[Job]:
    return [Job(f"job/{number}", work, number, cost=number + 1) for number in range(4)]


def test_a_stopped_experiment_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(RuntimeError, match="stopped"):
        run_jobs(jobs(fail_at_two), Order(), Ledger(path))
    assert set(Ledger(path).results) == {"job/0", "job/1"}
    told: list[Progress] = []
    run_jobs(jobs(), Order(tell=told.append), Ledger(path))
    assert {key: result["doubled"] for key, result in Ledger(path).results.items()} == {
        "job/0": 0,
        "job/1": 2,
        "job/2": 4,
        "job/3": 6,
    }
    assert [progress.done for progress in told] == [2, 3, 4]
    assert told[-1].seconds_left == 0


def test_runs_go_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run_jobs(jobs(), Order(workers=2), ledger)
    assert {result["doubled"] for result in ledger.results.values()} == {0, 2, 4, 6}
    assert os.getpid() not in {result["process"] for result in ledger.results.values()}


def test_the_time_left_follows_the_costs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert seconds_left(jobs(), ledger, workers=1) is None
    ledger.add("job/0", {"seconds": 2.0})  # of cost 1: the others cost 2 + 3 + 4
    assert seconds_left(jobs(), ledger, workers=1) == 18.0
    assert seconds_left(jobs(), ledger, workers=2) == 9.0
