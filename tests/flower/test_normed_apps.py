"""BatchNorm under stale sums on Flower: variances stay variances, whatever the protection."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_sums
from fake_grid import make_grid
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small_app import small_strategy

from basecagg.flower import basecagg_mod, coordinator, layout, lesson
from basecagg.protocol.effects import Released

SEEN = np.float32(0.01)
"""The variance of every node's activations; BatchNorm supposes 1 at first."""
MEAN, VARIANCE, COUNT = "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
PROTECTIONS = pytest.mark.parametrize("protection", ["basecagg", "none"])


def initial() -> ArrayRecord:
    return ArrayRecord(
        {
            "weight": Array(np.zeros(3, np.float32)),
            MEAN: Array(np.zeros(2, np.float32)),
            VARIANCE: Array(np.ones(2, np.float32)),
            COUNT: Array(np.array(0)),
        }
    )


def normalised(arrays: ArrayRecord) -> Any:
    """What a BatchNorm layer makes of its input: the square root of what is below zero is no number."""
    return 1 / np.sqrt(arrays[VARIANCE].numpy() + np.float32(1e-5))


def make_app(mods: list[Any], read: list[Any]) -> ClientApp:
    """Twenty batches of training, and no two trainings alike."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        read.append((arrays[VARIANCE].numpy(), normalised(arrays)))
        noise = np.random.default_rng().normal(0, 0.001, 3).astype(np.float32)
        kept = np.float32(0.9**20)
        moved = {
            "weight": arrays["weight"].numpy() + noise,
            MEAN: kept * arrays[MEAN].numpy() + (1 - kept),
            VARIANCE: kept * arrays[VARIANCE].numpy() + (1 - kept) * SEEN,
        }
        record = ArrayRecord({key: Array(value) for key, value in moved.items()})
        record[COUNT] = Array(np.array(20))
        return Message(RecordDict({"arrays": record}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"a": 1.0})}), reply_to=message)

    return app


class Run:
    """Eight nodes, K = 2, fifty versions unless said; two of them take six to ten versions to train."""

    def __init__(self, folder: Path, protection: Any, versions: int = 50, **options: Any) -> None:
        self.read: list[Any] = []
        self.tested: list[Any] = []
        self.sums: list[Released] = []
        mods = [basecagg_mod] if protection == "basecagg" else []
        grid = make_grid(8, make_app(mods, self.read), folder, fault=self._slow)
        self._slowest = sorted(grid.nodes)[:2]
        self._versions, self._chooser = versions, random.Random(5)
        strategy = small_strategy(
            protection=protection,
            buffer_size=2,
            concurrency=8,
            consistency="honest-server",
            max_colluders=1,
            max_staleness=10,
            min_available_nodes=8,
            **({"global_rate": 1.0} | options),
        )
        with noting_sums() as self.sums:
            self.result = strategy.start(
                grid=grid, initial_arrays=initial(), num_rounds=versions, evaluate_fn=self._test
            )

    def _slow(self, node_id: int, message: Message) -> str | None:
        if "arrays" not in message.content:
            return None
        base = message.content["config"]["server-round"] - 1
        lasts = 6 + (base + node_id) % 5 if node_id in self._slowest else 0
        trains = len(self.tested) - 1 < min(base + lasts, self._versions)
        return "late" if trains or self._chooser.random() < 0.3 else None

    def _test(self, version: int, arrays: ArrayRecord) -> None:
        self.tested.append((arrays[VARIANCE].numpy(), normalised(arrays)))

    @property
    def oldest(self) -> int:
        return max(s.version - base for s in self.sums for base in s.base_versions)

    def require_readable(self) -> None:
        for variances, outputs in (*self.read, *self.tested):
            assert (variances >= 0).all()
            assert np.isfinite(outputs).all()
        assert (self.result.arrays[VARIANCE].numpy() >= 0).all()


@pytest.fixture
def warnings_of_flower(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(
        coordinator.LOG, "warning", lambda text, *values: texts.append(text % values)
    )
    return texts


@PROTECTIONS
def test_stale_sums_leave_variances_positive(
    tmp_path: Path, protection: Any, warnings_of_flower: list[str]
) -> None:
    run = Run(tmp_path, protection)
    assert run.oldest == 10
    run.require_readable()
    assert min(variances.min() for variances, _ in run.read) > 0
    assert not any("below zero" in text for text in warnings_of_flower)
    reached = run.result.arrays[VARIANCE].numpy()
    assert (np.abs(reached - SEEN) < 0.05).all()


@PROTECTIONS
def test_a_variance_below_zero_is_counted_and_read_as_zero(
    tmp_path: Path,
    protection: Any,
    warnings_of_flower: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control of the test above, with whole changes; what apps read is finite all the same."""
    monkeypatch.setattr(layout, "damped", lambda change, max_staleness: change)
    run = Run(tmp_path, protection, versions=15)
    run.require_readable()
    assert min(variances.min() for variances, _ in run.read) == 0
    assert any("2 running variances of BatchNorm are below zero" in t for t in warnings_of_flower)


def test_an_app_that_read_the_vector_as_it_is_would_find_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the reading."""
    monkeypatch.setattr(layout, "damped", lambda change, max_staleness: change)
    for module in (coordinator, lesson):
        monkeypatch.setattr(module, "as_app_reads", lambda arrays: arrays)
    with pytest.raises(RuntimeWarning, match="invalid value encountered in sqrt"):
        Run(tmp_path, "basecagg")


@PROTECTIONS
@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_no_optimiser_scales_the_statistics(
    tmp_path: Path, protection: Any, optimiser: str, warnings_of_flower: list[str]
) -> None:
    options = {"server_optimiser": optimiser, "global_rate": None}
    run = Run(tmp_path, protection, **options)
    run.require_readable()
    assert not any("below zero" in text for text in warnings_of_flower)
    reached = run.result.arrays[VARIANCE].numpy()
    assert (np.abs(reached - SEEN) < 0.05).all()


def test_an_optimiser_that_did_not_know_the_statistics_would_miss_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: adam moves every number by about its rate, wherever it has to go."""
    monkeypatch.setattr(layout.Layout, "averaged", ())
    run = Run(tmp_path, "none", server_optimiser="adam", global_rate=None)
    reached = run.result.arrays[VARIANCE].numpy()
    assert (np.abs(reached - SEEN) > 0.2).all()


def test_arrays_of_other_names_are_left_alone() -> None:
    record = ArrayRecord([np.full(2, -1.0, np.float32)])
    found = layout.Layout.of(record)
    assert found.below_zero(found.flatten(record)) == 0
    start, trained = np.ones(2, np.float32), np.zeros(2, np.float32)
    np.testing.assert_array_equal(found.difference(start, trained, 9), start)
    assert (layout.as_app_reads(record)["0"].numpy() == -1).all()
