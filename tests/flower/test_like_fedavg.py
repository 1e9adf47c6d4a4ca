"""What a user of FedAvg expects of a strategy: its arguments, its hooks, its log, and other mods beside it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_sums
from fake_grid import FakeGrid, make_grid
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from small_app import initial_arrays, make_app, small_strategy

from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.flower import BufferedSecAgg, basecagg_mod, loop

PROTECTIONS = ["basecagg", "none"]
SMALL: dict[str, Any] = {
    "buffer_size": 3,
    "concurrency": 4,
    "training": "attached",
    "poll_interval": 0.0,
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 0.05)


def grid_of(folder: Path, protection: str = "basecagg", *mods: Any, nodes: int = 4) -> FakeGrid:
    ours = [] if protection == "none" else [basecagg_mod]
    return make_grid(nodes, make_app([*ours, *mods]), folder)


def start(strategy: BufferedSecAgg, grid: FakeGrid, **options: Any) -> Any:
    usual = {"num_rounds": 2, "initial_arrays": initial_arrays()}
    return strategy.start(grid=grid, **(usual | options))


# --- the configure hook ---


class Decaying(BufferedSecAgg):
    """As in Flower's own how-to: the rate halves with every second round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Any:
        if server_round % 2 == 0:
            config["lr"] = float(config["lr"]) * 0.5  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_a_subclass_configures_every_version(tmp_path: Path, protection: Any) -> None:
    grid, rates = grid_of(tmp_path, protection), {}
    for node in grid.nodes.values():
        node.context.run_config["basecagg-config"] = "changing"

    def note(_: int, message: Message) -> None:
        config = message.content.get("config")
        if config is not None:
            assert isinstance(config, ConfigRecord)
            rates.setdefault(config["server-round"], set()).add(config["lr"])

    grid.before.append(note)
    given = ConfigRecord({"lr": 0.8})
    start(Decaying(protection=protection, **SMALL), grid, num_rounds=5, train_config=given)
    decayed = {1: 0.8, 2: 0.4, 3: 0.4, 4: 0.2, 5: 0.2}
    assert rates
    assert all(rates[each] == {decayed[each]} for each in rates)
    assert dict(given) == {"lr": 0.8}


def test_a_hook_can_change_nothing_but_the_config(tmp_path: Path) -> None:
    class Model(BufferedSecAgg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return super().configure_train(server_round, ArrayRecord(), config, grid)

    class Own(BufferedSecAgg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return [Message(arrays, node_id, "train") for node_id in grid.get_node_ids()]

    class Nothing(BufferedSecAgg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return []

    for index, kind in enumerate((Model, Own, Nothing)):
        with pytest.raises(LocalProtocolError, match="can change the config and nothing else"):
            start(kind(**SMALL), grid_of(tmp_path / str(index)))


# --- weights ---


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_updates_are_weighted_by_examples_that_are_never_sent(
    tmp_path: Path, protection: Any
) -> None:
    """Every node trains to the same: then the sum is that update times Σ n_i / weigh_examples."""
    examples: dict[str, int] = {}

    def same(message: Message, context: Context, call_next: Any) -> Message:
        answer = call_next(message, context)
        count = 10 * (1 + int(context.node_config["partition-id"]))
        examples[str(context.node_id)] = count
        nudge = count * 1e-4  # the same update twice would be refused
        arrays = [np.full(5, -1 - nudge, np.float32), np.full(1, -1 - nudge, np.float32)]
        answer.content["arrays"] = ArrayRecord(arrays)
        answer.content["metrics"] = MetricRecord({"num-examples": count})
        return answer

    grid = grid_of(tmp_path, protection, same)
    with noting_sums() as sums:
        strategy = small_strategy(protection=protection, weigh_examples=20)
        start(strategy, grid, num_rounds=1)
    members = [examples[name.contributor] for name in sums[0].members]
    mean = sums[0].weighted_sum[:6] / sum(sums[0].weights)
    expected = np.mean([n / 20 * (1 + n * 1e-4) for n in members])
    np.testing.assert_allclose(mean, expected, rtol=1e-3)


def test_weights_that_make_no_sense_are_refused() -> None:
    for wrong in (0, -1.0, float("inf")):
        with pytest.raises(ParameterError, match="weigh_examples"):
            small_strategy(weigh_examples=wrong)
    with pytest.raises(ParameterError, match="fraction_train"):
        small_strategy(fraction_train=0.0)


# --- evaluation ---


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_any_fraction_lets_every_member_evaluate(tmp_path: Path, protection: Any) -> None:
    strategy = small_strategy(
        protection=protection,
        fraction_evaluate=0.5,
        min_evaluate_nodes=2,
        evaluate_metrics={"mse": 200.0},
    )
    result = start(strategy, grid_of(tmp_path, protection))
    assert set(result.evaluate_metrics_clientapp) == {1, 2}


def test_more_evaluations_than_members_cannot_be_had() -> None:
    with pytest.raises(ParameterError, match="min_evaluate_nodes = 4"):
        small_strategy(fraction_evaluate=1.0, min_evaluate_nodes=4, evaluate_metrics={"mse": 200.0})


# --- the log ---


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_the_log_is_laid_out_as_fedavgs(
    tmp_path: Path, protection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = small_strategy(
        protection=protection, train_metrics={"loss": 100.0} if protection != "none" else None
    )
    with caplog.at_level(logging.INFO, "flwr"):
        start(
            strategy,
            grid_of(tmp_path, protection),
            train_config=ConfigRecord({"lr": 0.1}),
            evaluate_fn=lambda version, _: MetricRecord({"version": version}),
        )
    said = [record.getMessage() for record in caplog.records]
    expected = [
        "Starting BufferedSecAgg strategy:",
        "\t├── Number of rounds: 2",
        "\t├── ArrayRecord (",
        f"\t├──> Protection: {protection}",
        "\t└──> Global evaluation: {'version': 0}",
        "[ROUND 1/2] after ",
        "\t├──> Aggregated MetricRecord (train): {'loss': ",
        "\t└──> Global evaluation: {'version': 1}",
        "[ROUND 2/2] after ",
        "Strategy execution finished in ",
        "Final results:",
        "\tGlobal Arrays:",
    ]
    lines = iter(said)
    for start_of_line in expected:
        assert any(line.startswith(start_of_line) for line in lines), start_of_line


# --- mods beside ours ---

LOCAL_DP = LocalDpMod(1.0, 0.0, 1.0, 1e-5)
MODS: dict[str, Any] = {
    "fixedclipping_mod": fixedclipping_mod,
    "adaptiveclipping_mod": adaptiveclipping_mod,
    "LocalDpMod": LOCAL_DP,
    "message_size_mod": message_size_mod,
    "arrays_size_mod": arrays_size_mod,
}
BEFORE = {"message_size_mod", "arrays_size_mod"}
"""What may stand before ours; the others look for one model in every message and are refused there."""
NORM = ConfigRecord({"clipping_norm": 1.0})


def app_with(mods: list[Any], way: str) -> ClientApp:
    """All mods for the whole app, or all for its train function."""
    plain = make_app([])
    train = plain._registered_funcs["train.default"]
    if way == "app":
        app = ClientApp(mods=mods)
        app.train()(train)
    else:
        app = ClientApp()
        app.train(mods=mods)(train)
    return app


@pytest.mark.parametrize("way", ["app", "function"])
@pytest.mark.parametrize("name", list(MODS))
def test_mods_after_ours_work_on_what_is_then_masked(tmp_path: Path, name: str, way: str) -> None:
    grid = make_grid(4, app_with([basecagg_mod, MODS[name]], way), tmp_path)
    with noting_sums() as sums:
        start(small_strategy(), grid, train_config=NORM)
    assert len(sums) == 2
    if name == "LocalDpMod":
        mean = sums[0].weighted_sum[:6] / sum(sums[0].weights)
        assert np.linalg.norm(mean) <= 1.001  # clipped to 1 on every node before it was masked


@pytest.mark.parametrize("way", ["app", "function"])
@pytest.mark.parametrize("name", list(MODS))
def test_mods_before_ours_work_or_are_refused_in_words(tmp_path: Path, name: str, way: str) -> None:
    grid = make_grid(4, app_with([MODS[name], basecagg_mod], way), tmp_path)
    if name in BEFORE:
        start(small_strategy(), grid, train_config=NORM)
        return
    with pytest.raises(LocalProtocolError, match="before any mod that looks at arrays"):
        start(small_strategy(), grid, train_config=NORM)


def test_clipping_without_a_norm_is_refused_in_words(tmp_path: Path) -> None:
    grid = make_grid(4, app_with([basecagg_mod, fixedclipping_mod], "app"), tmp_path)
    with pytest.raises(LocalProtocolError, match="failed with DataError"):
        start(small_strategy(max_failures=2), grid)


@pytest.mark.parametrize("without", ["train", "evaluate"])
def test_a_function_without_the_mod_says_nothing_in_clear(tmp_path: Path, without: str) -> None:
    """Were an evaluation sent to it, its metrics would come back as they are."""
    plain = make_app([])
    app = ClientApp()
    mods = {kind: [] if kind == without else [basecagg_mod] for kind in ("train", "evaluate")}
    app.train(mods=mods["train"])(plain._registered_funcs["train.default"])
    app.evaluate(mods=mods["evaluate"])(plain._registered_funcs["evaluate.default"])
    grid = make_grid(4, app, tmp_path)
    replies: list[Message] = []
    grid.after.append(lambda _, reply: replies.append(reply))
    strategy = small_strategy(
        fraction_evaluate=1.0, evaluate_metrics={"mse": 200.0}, max_failures=3
    )
    with pytest.raises(LocalProtocolError):
        start(strategy, grid)
    assert replies
    clear = [r for r in replies if not r.has_error() and "metrics" in r.content]
    assert not clear
