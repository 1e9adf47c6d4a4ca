"""The small parts: models as vectors, metrics in slots, the courier, the folder, and what is asked of flwr."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import context_of, make_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from hypothesis import given
from hypothesis import strategies as st
from small_app import make_app

from basecagg.errors import (
    ChannelError,
    DataError,
    LocalProtocolError,
    ParameterError,
    StorageError,
    WrongEpoch,
)
from basecagg.flower import loop
from basecagg.flower.contract import Contract
from basecagg.flower.layout import Layout, only_arrays
from basecagg.flower.loop import Courier
from basecagg.flower.node import OpenNode
from basecagg.flower.node_folder import locate
from basecagg.flower.visits import (
    LETTERS,
    ORDER,
    REPORT,
    NodeReport,
    Order,
    pack_letters,
    read_order,
    read_report,
    unpack_letters,
    write,
)
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Refusal

FEDERATION = "0f" * 16


# --- models as vectors ---


def model() -> ArrayRecord:
    return ArrayRecord(
        {
            "w": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "batches": Array(np.array(7, dtype=np.int64)),
            "b": Array(np.array(0.5, dtype=np.float32)),
        }
    )


def test_a_model_comes_back_as_it_was() -> None:
    layout = Layout.of(model())
    vector = layout.flatten(model())
    assert layout.size == vector.size == 7
    back = layout.unflatten(vector)
    assert list(back) == ["w", "batches", "b"]
    for key, array in model().items():
        np.testing.assert_array_equal(back[key].numpy(), array.numpy())
        assert back[key].dtype == array.dtype


def test_whole_numbers_are_not_learned() -> None:
    layout = Layout.of(model())
    assert int(layout.unflatten(np.zeros(7, np.float32))["batches"].numpy()) == 7


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_another_model_is_refused(change: str) -> None:
    other = model()
    if change == "missing":
        del other["w"]
    else:
        other["w"] = Array(np.zeros((3, 3), np.float32))
    with pytest.raises(DataError, match="array 'w' is"):
        Layout.of(model()).flatten(other)


def test_half_precision_is_refused() -> None:
    with pytest.raises(DataError, match="float16"):
        Layout.of(ArrayRecord([np.zeros(2, np.float16)]))


def test_training_returns_one_record_of_arrays() -> None:
    with pytest.raises(DataError, match="2 ArrayRecords"):
        only_arrays(RecordDict({"a": model(), "b": model()}))


# --- metrics ---


def contract(**train: float) -> Contract:
    return Contract(train, {}, weight="n")


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(-5, 5)), min_size=1, max_size=8))
def test_slots_give_the_average(clients: list[tuple[int, float]]) -> None:
    ours = contract(loss=5.0)
    encoded = [ours.encode(np.zeros(3), {"loss": loss}, None, 4.0) for _, loss in clients]
    assert np.abs(encoded).max() <= 4.0
    weights = [weight for weight, _ in clients]
    means = sum(w * e for w, e in zip(weights, encoded, strict=True)) / sum(weights)
    trained, evaluated, cut = ours.decode(np.asarray(means), 4.0)
    expected = sum(w * loss for w, loss in clients) / sum(weights)
    assert trained is not None
    assert trained["loss"] == pytest.approx(expected, abs=1e-9)
    assert (evaluated, cut) == (None, 0.0)


@pytest.mark.parametrize(("loss", "largest", "cut"), [(-7.0, 0.0, 1), (0.5, 4.1, 1), (0.5, 3.9, 0)])
def test_what_is_cut_is_counted(loss: float, largest: float, cut: int) -> None:
    update = np.array([0.0, -largest])
    part, flag = contract(loss=1.0).encode(update, {"loss": loss}, None, 4.0)
    assert (part, flag) == (max(4.0 * loss, -4.0), 4.0 * cut)


@pytest.mark.parametrize("found", [{"n": 3}, {"loss": "low"}, {"loss": float("nan")}])
def test_a_metric_that_is_not_there_is_named(found: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no finite number 'loss'"):
        contract(loss=1.0).encode(np.zeros(1), found, None, 4.0)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_number_of_examples_is_in_no_slot(few: int, many: int) -> None:
    """It never changes: as a slot it was solved for every client from a dozen sums."""
    sent = [
        contract(loss=1.0).encode(np.ones(2), {"loss": 0.3, "n": n}, None, 4.0) for n in (few, many)
    ]
    np.testing.assert_array_equal(*sent)


def test_nobody_trains_without_the_evaluation_that_the_epoch_binds() -> None:
    """Were it left out, a server that lets one node alone evaluate would open that node's metrics."""
    both = Contract({}, {"mse": 1.0}, weight="n")
    with pytest.raises(DataError, match="no finite number 'mse'"):
        both.encode(np.zeros(1), {}, None, 4.0)


def test_a_contract_is_the_one_that_the_epoch_binds() -> None:
    written = contract(loss=1.0).to_bytes()
    bound = Contract.digest_of(written)
    assert Contract.from_bytes(written, bound) == contract(loss=1.0)
    with pytest.raises(WrongEpoch, match="not the one that the epoch binds"):
        Contract.from_bytes(contract(loss=1e30).to_bytes(), bound)


# --- visits ---


def test_orders_and_reports_come_back_as_they_were() -> None:
    order = Order(stage="visit", federation=FEDERATION, version=3, task="train", resume=True)
    assert read_order(RecordDict({ORDER: write(order)})) == order
    report = NodeReport(name=str(2**64 - 1), ready=True, activity="done", signing_key=bytes(32))
    assert read_report(RecordDict({REPORT: write(report)})) == report


def test_letters_come_back_as_they_were() -> None:
    letters = [Refusal("A", "first"), Refusal("B", "second" * 50)]
    content = RecordDict({LETTERS: pack_letters(letters)})
    assert [len(frame) for frame in unpack_letters(content)] == [
        int(n) for n in pack_letters(letters)["lengths"].numpy()
    ]
    assert unpack_letters(RecordDict()) == []


def test_letters_of_a_wrong_length_are_refused() -> None:
    record = pack_letters([Refusal("A", "first")])
    record["lengths"] = Array(np.array([3], np.uint32))
    with pytest.raises(ChannelError, match="announced"):
        unpack_letters(RecordDict({LETTERS: record}))


def test_unknown_facts_are_refused() -> None:
    with pytest.raises(ChannelError, match="one version of basecagg"):
        read_report(RecordDict({REPORT: ConfigRecord({"loss": 0.1})}))
    with pytest.raises(ChannelError, match="mods="):
        read_report(RecordDict({"metrics": MetricRecord({"loss": 0.1})}))


# --- the courier ---


def test_a_node_has_one_message_at_a_time(tmp_path: Path) -> None:
    grid = make_grid(1, make_app([]), tmp_path)
    courier, (node_id,) = Courier(grid, ttl=60), grid.nodes
    assert courier.send(node_id, RecordDict(), "train")
    with pytest.raises(LocalProtocolError, match="one at a time"):
        courier.send(node_id, RecordDict(), "train")


def test_node_ids_keep_all_their_bits(tmp_path: Path) -> None:
    grid = make_grid(3, make_app([]), tmp_path)
    assert Courier(grid, ttl=60).present() == set(grid.nodes)
    assert all(type(node_id) is int and node_id > 2**63 for node_id in grid.nodes)
    assert any(int(float(node_id)) != node_id for node_id in grid.nodes)


def test_a_message_that_is_never_answered_is_given_up(tmp_path: Path) -> None:
    now = 0.0
    grid = make_grid(1, make_app([]), tmp_path, fault=lambda *_: "late")
    courier, (node_id,) = Courier(grid, ttl=60, clock=lambda: now), grid.nodes
    courier.send(node_id, RecordDict(), "train")
    assert courier.receive() == []
    now = 1000.0
    assert courier.receive() == [(node_id, None)]
    assert not courier.is_busy(node_id)


def test_a_message_that_flower_does_not_take_is_noticed(tmp_path: Path) -> None:
    grid = make_grid(1, make_app([]), tmp_path)
    grid.push_messages = lambda messages: [None]  # type: ignore[method-assign,list-item]
    (node_id,) = grid.nodes
    assert not Courier(grid, ttl=60).send(node_id, RecordDict(), "train")


def test_a_superlink_that_restarts_halfway_has_not_taken_the_message(tmp_path: Path) -> None:
    grid = make_grid(1, make_app([]), tmp_path)

    def push(messages: object) -> list[str]:
        raise ObjectPushError("object", 1, "session")

    grid.push_messages = push  # type: ignore[method-assign,assignment]
    (node_id,) = grid.nodes
    courier = Courier(grid, ttl=60)
    assert not courier.send(node_id, RecordDict(), "train")
    assert not courier.is_busy(node_id)


# --- the loop ---


@pytest.mark.parametrize(
    ("chosen", "simulated", "pause"), [(None, True, 0.1), (None, False, 1.0), (0.0, False, 0.0)]
)
def test_looks_for_replies_are_seldom_where_they_cost(
    monkeypatch: pytest.MonkeyPatch, chosen: float | None, simulated: bool, pause: float
) -> None:
    pauses: list[float] = []
    coordinator: Any = SimpleNamespace(
        version=0,
        arrays=ArrayRecord(),
        nodes={},
        farewell=list,
        end=str,
        require_future=lambda versions: None,
    )
    courier: Any = SimpleNamespace(is_busy=lambda node_id: False, is_simulated=simulated)
    silent = loop.Loop(
        *(1, coordinator, courier, lambda present: 1, None, random.Random(0), chosen),
        sleep=pauses.append,
    )
    steps = iter([False, False, True])

    def step() -> bool:
        coordinator.version = int(heard := next(steps))
        return heard

    monkeypatch.setattr(silent, "step", step)
    silent.run(ArrayRecord())
    assert pauses == [pause, pause]


# --- the folder ---


def test_a_node_config_names_the_folder(tmp_path: Path) -> None:
    folder = locate(context_of(5, 0, tmp_path), FEDERATION)
    assert folder.path == tmp_path / "0" / FEDERATION
    assert folder.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("config", "floor"),
    [
        ({}, LocalFloor()),
        ({"min-per-version": 2}, LocalFloor(min_per_version=2)),
        ({"max-epsilon": 4, "max-delta": 1e-6}, LocalFloor(max_epsilon=4.0, max_delta=1e-6)),
        ({"consistency": "certified"}, LocalFloor(consistency="certified")),
    ],
)
def test_a_node_config_says_what_the_node_insists_on(
    tmp_path: Path, config: dict[str, Any], floor: LocalFloor
) -> None:
    context = context_of(5, 0, tmp_path)
    context.node_config.update(config)
    assert locate(context, FEDERATION).floor == floor


def test_a_node_config_raises_the_floor(tmp_path: Path) -> None:
    context = context_of(5, 0, tmp_path)
    assert locate(context, FEDERATION).floor == LocalFloor()
    context.node_config.update({"correctness": "agreed", "consistency": "certified"})
    floor = LocalFloor(consistency="certified", correctness="agreed")
    assert locate(context, FEDERATION).floor == floor
    for name, value in (("correctness", "certified"), ("min-buffer", "3")):
        context.node_config[name] = value
        with pytest.raises(ParameterError, match=f"'{value}' in the node config must be"):
            locate(context, FEDERATION)
        del context.node_config[name]


def test_a_simulation_has_a_folder_for_each_run_and_node(tmp_path: Path) -> None:
    context = context_of(2**64 - 1, 0, None, **{"basecagg-state-dir": str(tmp_path)})
    assert locate(context, FEDERATION).path == tmp_path / "1" / str(2**64 - 1) / FEDERATION


def test_what_a_node_insists_on_holds_wherever_its_folder_is(tmp_path: Path) -> None:
    context = context_of(5, 0, None, **{"basecagg-state-dir": str(tmp_path)})
    context.node_config["min-buffer"] = 7
    assert locate(context, FEDERATION).floor == LocalFloor(buffer_size=7)


def test_a_budget_needs_a_folder_that_outlives_runs(tmp_path: Path) -> None:
    """One that a run names is another one in the next run, with a ledger that knows of nothing."""
    context = context_of(5, 0, None, **{"basecagg-state-dir": str(tmp_path)})
    context.node_config["max-epsilon"] = 4.0
    with pytest.raises(DataError, match="no place for its keys"):
        locate(context, FEDERATION)


def test_without_a_folder_the_text_says_how_to_give_one() -> None:
    with pytest.raises(DataError, match="--node-config"):
        locate(context_of(5, 0, None), FEDERATION)


@pytest.mark.parametrize("name", ["", "..", "../../etc", "0F" * 16, "0f" * 17])
def test_a_server_cannot_choose_another_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="not the name"):
        locate(context_of(5, 0, tmp_path), name)


def test_a_node_is_open_once(tmp_path: Path) -> None:
    folder = locate(context_of(5, 0, tmp_path), FEDERATION)
    with OpenNode(folder), pytest.raises(StorageError, match="in use by another process"):
        OpenNode(folder)


def test_a_node_keeps_the_first_operator_it_is_told(tmp_path: Path) -> None:
    folder = locate(context_of(5, 0, tmp_path), FEDERATION)
    with OpenNode(folder) as node:
        first = node.introduce("5", b"k" * 32)
    with OpenNode(folder) as node:
        assert node.introduce("5", b"k" * 32) == first
        with pytest.raises(Exception, match="another operator"):
            node.introduce("5", b"x" * 32)


# --- the package ---


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


def test_a_missing_flwr_is_answered_with_its_install_command() -> None:
    done = python("import sys; sys.modules['flwr'] = None\nimport basecagg.flower")
    assert "pip install '.[flower]'" in done.stderr


def test_flwr_is_imported_by_this_room_only() -> None:
    script = "import sys, basecagg, basecagg.cli; print('flwr' in sys.modules)"
    assert python(script).stdout.strip() == "False"


def test_the_names_are_there() -> None:
    import basecagg.flower as room

    names: Any = room.__all__
    assert names == ["Budget", "BufferedSecAgg", "basecagg_mod"]
