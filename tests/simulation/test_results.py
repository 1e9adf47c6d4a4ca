"""What a run gives back: rows, a frame, text for terminal and notebook, time to a score, progress, sweeps."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate, sweep
from basecagg.errors import DataError, MissingPartError, ParameterError
from basecagg.learning import FlatModel, LocalTraining, train_locally
from basecagg.simulation.sweep import Sweep


def run(config: SimulationConfig | None = None, **options: Any) -> SimulationResult:
    return simulate(config or tiny_config(versions=6), task=tiny_task(), **options)


def test_a_row_for_each_version() -> None:
    result = run(tiny_config("basecagg", versions=6, evaluate_every=2, dropout=0.3))
    rows = result.rows()
    assert [row["version"] for row in rows] == list(range(7))
    assert [row["score"] is None for row in rows] == [False, True] * 3 + [False]
    assert [row["members"] for row in rows] == [0] + [4] * 6
    frame = pytest.importorskip("pandas") and result.frame()
    assert list(frame.columns) == list(rows[0])
    assert frame["updates"].tolist() == [row["updates"] for row in rows]


def test_without_pandas_the_reason_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPartError, match=r"pip install pandas\); rows\(\) gives the same"):
        run().frame()


def test_every_trained_update_is_in_a_sum_waits_or_is_lost() -> None:
    late = tiny_config("fedavg", concurrency=6, versions=8)  # a round ends with 4 of 6
    result = run(late)
    last = result.versions[-1]
    assert last.lost > 0
    assert last.updates == 4 * 8 + last.lost  # a round leaves nobody waiting
    prompt = run(tiny_config(versions=8)).versions[-1]
    assert prompt.lost == 0
    assert prompt.updates == 4 * 8
    assert f"{last.updates}, of which {last.lost} were lost" in str(result)


def test_the_time_to_a_score() -> None:
    result = run()
    scores = [version.score or 0.0 for version in result.versions]
    best = max(scores)
    assert result.time_to(best) == result.versions[scores.index(best)].time
    assert result.time_to(1.1) is None
    assert result.time_to(0.0) == 0.0


def test_it_prints_in_80_columns_and_in_a_notebook() -> None:
    private = tiny_config("basecagg-dp", epsilon=5.0, max_uses=8)
    result = run(private)
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    for said in ("accuracy", "MB per user", "ε spent", "burned", f"{result.score:.4g}"):
        assert said in text
    assert repr(result) == text
    html = result._repr_html_()
    assert html.startswith("<pre")
    assert "ε spent" in html


def test_progress_is_one_line_and_says_what_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    run(tiny_config("fedavg", concurrency=6, versions=8), progress=True)
    written = capsys.readouterr().out
    assert written.count("\n") == 1
    last = written.split("\r")[-1]
    assert last.startswith("fedavg: 8 of 8 versions, score 0.")
    assert " lost" in last
    run(progress=False)
    assert capsys.readouterr().out == ""


# --- sweeps ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept() -> Sweep:
    grid = {"local_rate": [0.01, 0.2], "method": ["fedbuff", "basecagg"]}
    return sweep(tiny_config(), grid, seeds=(1, 2, 3), task=tiny_task(), progress=False)


def test_a_sweep_is_every_combination_with_every_seed(swept: Sweep) -> None:
    assert len(swept.runs) == 2 * 2 * 3
    one = swept.runs[4]
    assert (dict(one.values), one.seed) == ({"local_rate": 0.01, "method": "basecagg"}, 2)
    alone = run(tiny_config("basecagg", local_rate=0.01, seed=2))
    assert np.array_equal(one.result.model, alone.model)
    assert swept.rows()[4]["score"] == alone.score


def test_intervals_are_students(swept: Sweep) -> None:
    scores = [run.result.score for run in swept.runs if run.values["local_rate"] == 0.2][:3]
    found = swept.score(local_rate=0.2, method="fedbuff")
    half = 4.302653 * np.std(scores, ddof=1) / math.sqrt(3)  # t of 2 degrees at 97.5 %
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.high == pytest.approx(np.mean(scores) + half, abs=1e-6)
    assert found.low == pytest.approx(np.mean(scores) - half, abs=1e-6)
    times = swept.time_to(0.5, local_rate=0.2)
    assert times is not None
    assert times.mean > 0
    assert swept.time_to(1.1, local_rate=0.2) is None
    with pytest.raises(ParameterError, match="no run of this sweep has"):
        swept.score(local_rate=7.0)


def test_a_sweep_prints_a_line_for_each_combination(swept: Sweep) -> None:
    lines = str(swept).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 80
    assert re.search(r"0.01 +basecagg +3 +\d+\.\d ± \d+\.\d %", lines[2])


def test_a_sweep_says_where_it_is_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def go(versions: int = 4) -> Sweep:
        rates = {"local_rate": [0.1, 0.2]}
        config = tiny_config(versions=versions)
        return sweep(config, rates, seeds=[5], task=tiny_task(), folder=tmp_path / "s")

    first = go()
    assert "run 2 of 2: 4 of 4 versions" in capsys.readouterr().out
    assert (tmp_path / "s" / "local_rate=0.1" / "seed-5" / "totals.json").exists()
    again = go()
    for one, other in zip(first.runs, again.runs, strict=True):
        assert np.array_equal(one.result.model, other.result.model)
    with pytest.raises(DataError, match="another configuration"):
        go(versions=5)


@pytest.mark.parametrize(
    ("grid", "seeds"), [({"local_rate": []}, [1]), ({"local_rate": [0.1]}, [])]
)
def test_an_empty_sweep_is_refused(grid: dict[str, list[float]], seeds: list[int]) -> None:
    with pytest.raises(ParameterError, match="a sweep needs a seed"):
        sweep(tiny_config(), grid, seeds, task=tiny_task())


def test_a_setting_that_cannot_be_is_refused_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="local_rate"):
        sweep(tiny_config(), {"local_rate": [0.1, -1.0]}, task=tiny_task(), folder=tmp_path / "s")
    assert not (tmp_path / "s").exists()


# --- another device -------------------------------------------------------------------------------


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DataError, match="torch finds no such device here"):
        run(tiny_config(device="cuda"))


def test_a_state_apart_from_numpys_numbers_trains_alike() -> None:
    """As on another device: the state is a copy. There is no such device here to try it on."""
    task, every = tiny_task(), np.arange(48)
    here, apart = task.build_model(1), task.build_model(1)
    apart._numbers, apart._apart = apart._numbers.copy(), True
    training = LocalTraining(learning_rate=0.1, steps=5)

    def update(model: FlatModel) -> np.ndarray:
        start = here.vector() if model is here else first
        return train_locally(task, model, start, every, training, seed=3, user=0).delta

    first = here.vector()
    assert np.array_equal(update(here), update(apart))
    assert np.array_equal(apart.vector(), here.vector())
    apart.load(first)
    assert np.array_equal(apart.vector(), first)
