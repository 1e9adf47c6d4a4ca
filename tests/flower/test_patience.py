"""Too few nodes, numbers that are none, apps that fail: said, counted, named, and given up in the end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_sums
from fake_grid import FakeGrid, flat, make_grid
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.wire import unpack
from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.flower import BufferedSecAgg, basecagg_mod, loop
from basecagg.flower.loop import Courier
from basecagg.flower.node_view import NodeView
from basecagg.flower.visits import NodeReport, unpack_letters
from basecagg.protocol.effects import Abandoned
from basecagg.protocol.messages import ShortRequest
from basecagg.protocol.opening import Burned
from basecagg.protocol.recovery import Recovery

PROTECTIONS = ["basecagg", "none"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 0.05)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


def mods_of(protection: str) -> list[Any]:
    return [] if protection == "none" else [basecagg_mod]


def start(strategy: BufferedSecAgg, grid: FakeGrid, versions: int = 2) -> Any:
    return strategy.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=versions)


# --- K and the nodes that are there ---


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize(("nodes", "chosen"), [(2, 2), (7, 4), (24, 10)])
def test_a_default_buffer_fits_the_nodes_that_are_there(
    tmp_path: Path, protection: Any, nodes: int, chosen: int
) -> None:
    grid = make_grid(nodes, make_app(mods_of(protection)), tmp_path)
    strategy = BufferedSecAgg(
        protection=protection,
        training="attached",
        poll_interval=0.0,
        min_available_nodes=nodes,
        holders=min(nodes, 4) if protection == "basecagg" else None,
    )
    with noting_sums() as sums:
        start(strategy, grid, versions=1)
    assert len(sums[0].members) == chosen


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_waiting_for_nodes_is_said(
    tmp_path: Path, protection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Two are there, three fill a buffer; the third comes when that has been said."""
    grid = make_grid(3, make_app(mods_of(protection)), tmp_path)
    late = list(grid.nodes)[-1]
    grid.offline.add(late)

    def look_around() -> list[int]:
        if "waiting: 2 of 3 nodes" in caplog.text:
            grid.offline.clear()
        return [node_id for node_id in grid.nodes if node_id not in grid.offline]

    grid.get_node_ids = look_around  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "flwr"):
        start(small_strategy(buffer_size=3, protection=protection), grid, versions=1)
    assert not grid.offline


def test_waiting_for_holders_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Four of six are there while a sum waits for five; the others come when that has been said."""
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    away = list(grid.nodes)[:2]

    def look_around() -> list[int]:
        if "waiting: 4 of 5 holders to open a sum" in caplog.text:
            grid.offline.clear()
        return [node_id for node_id in grid.nodes if node_id not in grid.offline]

    def vanish(node_id: int, message: Message) -> None:
        frames = unpack_letters(message.content)
        asked = any(isinstance(unpack(f, len(f)), ShortRequest) for f in frames)
        if asked and "holders to open" not in caplog.text:
            grid.offline.update(away)

    grid.get_node_ids = look_around  # type: ignore[method-assign]
    grid.fault = vanish  # type: ignore[assignment]
    strategy = small_strategy(min_available_nodes=6, max_dropouts=1, retries=1000)
    with caplog.at_level(logging.INFO, "flwr"):
        start(strategy, grid, versions=1)
    assert "holders to open" in caplog.text
    assert not grid.offline


@pytest.mark.parametrize("most", [0, 2])
def test_when_no_other_sum_is_allowed_the_run_ends(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is started again: no sum of that version will ever be asked for."""
    monkeypatch.setattr(Recovery, "_open", lambda recovery: Burned("as if they disagreed"))
    grid = make_grid(4, make_app([basecagg_mod]), tmp_path)
    options = {"max_burns": most, "server_state": tmp_path / "server.db"}
    with (
        noting_sums(Abandoned) as burned,
        pytest.raises(LocalProtocolError, match=rf"allows {most + 1} .*max_burns = {most}"),
    ):
        start(small_strategy(**options), grid)
    assert [abandoned.version for abandoned in burned] == [0] * (most + 1)
    with (
        noting_sums(Abandoned) as burned,
        pytest.raises(LocalProtocolError, match=rf"max_burns = {most}"),
    ):
        start(small_strategy(**options), grid)
    assert not burned


@pytest.mark.parametrize("most", [-1, 2**16])
def test_odd_numbers_of_burns_are_refused(most: int) -> None:
    with pytest.raises(ParameterError, match="max_burns"):
        small_strategy(max_burns=most)


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("options", [{"buffer_size": 10}, {"min_available_nodes": 9}])
def test_what_can_never_be_is_refused_in_a_simulation(
    tmp_path: Path, protection: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Courier, "is_simulated", True)
    monkeypatch.setattr(loop, "_GATHER", 0.05)
    grid = make_grid(2, make_app(mods_of(protection)), tmp_path)
    with pytest.raises(ParameterError, match=r"2 of (10|9) nodes"):
        start(small_strategy(protection=protection, **options), grid)


# --- one policy for what goes wrong on a node ---


def broken_app(protection: str, broken: Any, kind: str) -> ClientApp:
    """An app of which some nodes train to something that cannot be used."""

    def breaking(message: Message, context: Context, call_next: Any) -> Message:
        answer: Message = call_next(message, context)
        if not broken(context.node_id):
            return answer
        content = answer.content
        if kind == "raises":
            raise ValueError("as if")
        if kind == "NaN":
            key, record = next(iter(content.array_records.items()))
            content[key] = ArrayRecord([a * np.nan for a in record.to_numpy_ndarrays()])
        elif kind == "no arrays":
            return Message(RecordDict({"note": MetricRecord({"n": 1})}), reply_to=message)
        elif kind == "another shape":
            content["arrays"] = ArrayRecord([np.zeros(3, np.float32)])
        return answer

    return make_app([*mods_of(protection), breaking])


KINDS = ["raises", "NaN", "no arrays", "another shape"]


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_broken_node_ends_nothing(
    tmp_path: Path, protection: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim: list[int] = []
    grid = make_grid(6, broken_app(protection, lambda node_id: node_id in victim, kind), tmp_path)
    victim.append(next(iter(grid.nodes)))
    result = start(small_strategy(protection=protection, concurrency=6), grid, versions=3)
    assert np.isfinite(flat(result.arrays)).all()
    assert f"node {victim[0]}" in caplog.text


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_when_every_app_fails_the_run_ends_and_names_them(
    tmp_path: Path, protection: Any, kind: str
) -> None:
    grid = make_grid(4, broken_app(protection, lambda _: True, kind), tmp_path)
    with pytest.raises(LocalProtocolError, match="4 times in a row") as caught:
        start(small_strategy(protection=protection, max_failures=4), grid)
    assert sum(str(node_id) in str(caught.value) for node_id in grid.nodes) >= 2


@pytest.mark.parametrize("way", ["raises", "dies"])
@pytest.mark.parametrize(
    ("protection", "evaluates"), [("basecagg", 0), ("basecagg", 1), ("none", 1)]
)
def test_a_node_that_only_trains_badly_is_given_up(
    tmp_path: Path, protection: Any, evaluates: int, way: str
) -> None:
    """It holds shares and evaluates well: none of that makes up for trainings that come to nothing."""
    tried: list[int] = []

    def fails(message: Message, context: Context, call_next: Any) -> Message:
        if message.metadata.message_type == "train" and context.node_id == victim:
            tried.append(context.node_id)
            raise ValueError("as if")
        return call_next(message, context)  # type: ignore[no-any-return]

    def dies(node_id: int, message: Message) -> Error | None:
        trains = node_id == victim and "arrays" in message.content
        if way == "raises" or not trains or message.metadata.message_type != "train":
            return None
        tried.append(node_id)
        return Error(1, "as if its process had died")

    grid = make_grid(6, make_app([*mods_of(protection), fails]), tmp_path, fault=dies)
    victim = next(iter(grid.nodes))
    options = {"evaluate_metrics": {"mse": 200.0}} if evaluates else {}
    strategy = small_strategy(
        protection=protection, concurrency=6, fraction_evaluate=evaluates, max_failures=3, **options
    )
    # Enough for its third time: it is asked again after a pause, and versions without masks are made at once.
    start(strategy, grid, versions=10 if protection == "basecagg" else 200)
    assert len(tried) == 3


def test_a_node_that_never_ends_its_training_is_given_up() -> None:
    view, report, now = NodeView(1, "1"), NodeReport(activity="running"), 0.0
    for _ in range(3):
        assert not view.is_hopeless(3)
        view.doing = "train"
        for _ in range(2):
            view.note_activity(report, now, interval=1, patience=10)
            now += 21
    assert view.is_hopeless(3)


def test_a_node_that_recovers_is_trained_again(tmp_path: Path) -> None:
    calls = 0

    def sick(node_id: int) -> bool:
        nonlocal calls
        calls += 1
        return calls <= 8

    grid = make_grid(4, broken_app("basecagg", sick, "raises"), tmp_path)
    assert np.isfinite(flat(start(small_strategy(max_failures=5), grid).arrays)).all()


# --- metrics without protection ---


def test_a_missing_metric_makes_no_mean_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of all is 4; one leaves it out, and one reports more than was asked for."""

    def odd(message: Message, context: Context, call_next: Any) -> Message:
        answer = call_next(message, context)
        metrics = {"num-examples": 10, "loss": 4.0}
        place = list(grid.nodes).index(context.node_id)
        if place == 0:
            del metrics["loss"]
        elif place == 1:
            metrics["loss"] = float("nan")
        answer.content["metrics"] = MetricRecord(metrics)
        return answer

    grid = make_grid(6, make_app([odd]), tmp_path)
    strategy = small_strategy(protection="none", buffer_size=6, concurrency=6)
    result = start(strategy, grid, versions=2)
    assert result.train_metrics_clientapp[1]["loss"] == 4.0
    assert "2 of 6 members are left out of the mean" in caplog.text


def test_an_update_beyond_the_clip_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def huge(message: Message, context: Context, call_next: Any) -> Message:
        answer = call_next(message, context)
        arrays = [a + 1e6 for a in answer.content["arrays"].to_numpy_ndarrays()]
        answer.content["arrays"] = ArrayRecord(arrays)
        return answer

    start(small_strategy(), make_grid(4, make_app([basecagg_mod, huge]), tmp_path), versions=1)
    assert "version 1: 100 % of the buffer had numbers beyond the clip" in caplog.text


def test_nothing_is_said_of_updates_within_the_clip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(small_strategy(), make_grid(4, make_app([basecagg_mod]), tmp_path), versions=1)
    assert "clip" not in caplog.text


@pytest.mark.parametrize("colluders", [0, -1])
def test_no_colluders_cannot_be_asked_for(colluders: int) -> None:
    with pytest.raises(ParameterError, match=r"max_colluders = -?\d must be at least 1"):
        small_strategy(max_colluders=colluders)
    assert small_strategy(max_colluders=None, holders=6).settings.max_colluders is None
