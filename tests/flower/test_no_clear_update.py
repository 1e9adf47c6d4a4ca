"""No way to use the strategy lets an update leave a node in clear, unless "none" was written down."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import flwr.server.strategy as older
import flwr.serverapp.strategy as flowers
import numpy as np
import pytest
from fake_grid import FakeGrid, make_grid
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import Server, SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp.strategy import FedAvg, Strategy
from small_app import data_of, initial_arrays, make_app, small_strategy, times

from basecagg.errors import DataError, LocalProtocolError, ParameterError
from basecagg.flower import BufferedSecAgg, basecagg_mod
from basecagg.flower.node import OpenNode

PLAUSIBLE = {
    "noise_multiplier": 0.01,
    "num_sampled_clients": 4,
    "clipping_norm": 9.0,
    "clip_norm": 9.0,
}
"""What Flower's wrappers must be told; one that asks for something new fails here and is looked at."""
WRITTEN = {"basecagg-protection": "none"}


class BarrierGrid(FakeGrid):
    """A grid on which Flower's own strategies run too; it keeps all arrays of what nodes say."""

    heard: list[list[Any]]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        ids = self.push_messages(list(messages))
        return list(self.pull_messages(ids))


def grid_of(folder: Path, mods: list[Any], trainings: list[Any], **run_config: Any) -> BarrierGrid:
    return listening(
        make_app(mods, lambda _, before, after: trainings.append(after)), folder, run_config
    )


def listening(app: ClientApp, folder: Path, run_config: Any) -> BarrierGrid:
    grid = make_grid(4, app, folder)
    for node in grid.nodes.values():
        node.context.run_config.update(run_config)
    barrier = BarrierGrid(grid.nodes)
    barrier.heard = []
    barrier.after.append(lambda _, reply: barrier.heard.append(numbers_in(reply)))
    return barrier


def numbers_in(reply: Message) -> list[Any]:
    """At once: Flower's older strategies empty the records that they have read."""
    arrays = [] if reply.has_error() else reply.content.array_records.values()
    return [array.numpy().ravel() for record in arrays for array in record.values()]


def clear_updates(grid: BarrierGrid, trainings: Iterable[Any]) -> int:
    """Replies with a trained model: any array in which one of its numbers stands as it was trained."""
    trained = np.concatenate([np.zeros(0, np.float32), *trainings])
    found = 0
    for numbers in grid.heard:
        floats = [each for each in numbers if each.dtype.kind == "f"]
        found += any(np.isin(each, trained).any() for each in floats)
    return found


# --- every public method, every wrapper ---


def public_methods(strategy: Any) -> list[str]:
    methods = inspect.getmembers(strategy, callable)
    return [name for name, _ in methods if not name.startswith("_")]


def wrappers(module: Any = flowers) -> list[type]:
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    return [each for each in classes if "strategy" in inspect.signature(each).parameters]


def wrapped(kind: type, inner: Any) -> Any:
    """A wrapper with a plausible value for everything that it must be told."""
    required = {
        name: inner if name == "strategy" else PLAUSIBLE[name]
        for name, each in inspect.signature(kind).parameters.items()
        if each.default is inspect.Parameter.empty
    }
    return kind(**required)


def use(strategy: Any, name: str, grid: BarrierGrid) -> None:
    """Call a method as Flower would, send what it gives back, and hand it the replies."""
    arrays, method = initial_arrays(), getattr(strategy, name)
    values = {
        "grid": grid,
        "initial_arrays": arrays,
        "arrays": arrays,
        "config": ConfigRecord(),
        "server_round": 1,
        "num_rounds": 1,
        "replies": [],
    }
    wanted = inspect.signature(method).parameters
    answer = method(**{key: value for key, value in values.items() if key in wanted})
    if name.startswith("configure"):
        replies = grid.send_and_receive(answer)
        getattr(strategy, name.replace("configure", "aggregate"))(1, replies)


Build = Callable[[BufferedSecAgg], Any]
WAYS: dict[str, Build] = {
    "bare": lambda strategy: strategy,
    **{kind.__name__: partial(wrapped, kind) for kind in wrappers()},
}


def test_flower_ships_the_wrappers_that_are_tried() -> None:
    assert len(wrappers()) >= 4
    assert len(wrappers(older)) >= 6
    assert {"start", "configure_train", "aggregate_train"} <= set(public_methods(small_strategy()))


@pytest.mark.parametrize("mods", [[], [basecagg_mod]], ids=["no mod", "mod"])
@pytest.mark.parametrize("way", list(WAYS))
def test_no_public_method_lets_an_update_out_in_clear(
    tmp_path: Path, way: str, mods: list[Any]
) -> None:
    build = WAYS[way]
    for name in public_methods(build(small_strategy())):
        trainings: list[Any] = []
        grid = grid_of(tmp_path / name, mods, trainings)
        strategy = build(small_strategy(buffer_size=2))
        # ZeroDivisionError is Flower's own: adaptive clipping divides by the number of replies.
        with suppress(LocalProtocolError, ZeroDivisionError):
            use(strategy, name, grid)
        assert not clear_updates(grid, trainings), name
        assert bool(trainings) == (name == "start" and way == "bare" and bool(mods)), name


def test_the_same_finds_updates_once_none_is_written_down(tmp_path: Path) -> None:
    trainings: list[Any] = []
    grid = grid_of(tmp_path, [basecagg_mod], trainings, **WRITTEN)
    use(small_strategy(buffer_size=2, protection="none"), "start", grid)
    assert clear_updates(grid, trainings) >= 2


def test_the_same_finds_updates_of_flowers_own_strategy(tmp_path: Path) -> None:
    trainings: list[Any] = []
    grid = grid_of(tmp_path, [], trainings)
    use(wrapped(flowers.DifferentialPrivacyServerSideFixedClipping, FedAvg()), "start", grid)
    assert clear_updates(grid, trainings) == 4


@pytest.mark.parametrize("kind", wrappers())
@pytest.mark.parametrize("protection", ["basecagg", "none"])
def test_a_wrapper_is_refused_in_words(tmp_path: Path, kind: type, protection: Any) -> None:
    strategy = wrapped(kind, small_strategy(protection=protection))
    with pytest.raises(LocalProtocolError, match="call its start"):
        use(strategy, "start", grid_of(tmp_path, [], []))


# --- Flower's older strategies, with a loop and messages of their own ---

OLDER: dict[str, Build] = {
    "bare": lambda strategy: strategy,
    **{kind.__name__: partial(wrapped, kind) for kind in wrappers(older)},
}


def older_app(mods: list[Any], trainings: list[Any]) -> ClientApp:
    class Trains(NumPyClient):
        def get_parameters(self, config: Any) -> Any:
            return initial_arrays().to_numpy_ndarrays()

        def fit(self, parameters: Any, config: Any) -> Any:
            rng = np.random.default_rng()
            trained = [each + rng.normal(size=each.shape).astype(np.float32) for each in parameters]
            trainings.append(np.concatenate(trained))
            return trained, 10, {}

    def make(context: Context) -> Client:
        return Trains().to_client()

    return ClientApp(make, mods=mods)


def run_older(strategy: Any, grid: BarrierGrid) -> None:
    """A round as Flower's older server runs it."""
    manager = SimpleClientManager()
    for node_id in grid.nodes:
        manager.register(GridClientProxy(node_id, grid, run_id=1))
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)  # the grid is not for threads
    server.fit(num_rounds=1, timeout=None)


@pytest.mark.parametrize("mods", [[], [basecagg_mod]], ids=["no mod", "mod"])
@pytest.mark.parametrize("way", list(OLDER))
def test_no_older_wrapper_lets_an_update_out_in_clear(
    tmp_path: Path, way: str, mods: list[Any]
) -> None:
    trainings: list[Any] = []
    grid = listening(older_app(mods, trainings), tmp_path, {})
    with pytest.raises(LocalProtocolError, match="call its start"):
        run_older(OLDER[way](small_strategy(buffer_size=2)), grid)
    assert not clear_updates(grid, trainings)
    assert not trainings


@pytest.mark.parametrize("way", list(OLDER))
def test_no_method_of_an_older_wrapper_trains(tmp_path: Path, way: str) -> None:
    strategy = OLDER[way](small_strategy(buffer_size=2))
    values = {"parameters": ndarrays_to_parameters([]), "server_round": 1, "client_manager": None}
    for name in ("initialize_parameters", "configure_fit", "evaluate"):
        method = getattr(strategy, name)
        wanted = inspect.signature(method).parameters
        with pytest.raises(LocalProtocolError, match="call its start"):
            method(**{key: value for key, value in values.items() if key in wanted})


@pytest.mark.parametrize(("mods", "found"), [([], 4), ([basecagg_mod], 0)], ids=["no mod", "mod"])
def test_the_same_finds_updates_of_an_older_strategy(
    tmp_path: Path, mods: list[Any], found: int
) -> None:
    """Without ours in it. A node that has the mod lets nothing out for it either."""
    trainings: list[Any] = []
    grid = listening(older_app(mods, trainings), tmp_path, {})
    initial = ndarrays_to_parameters(initial_arrays().to_numpy_ndarrays())
    inner = older.FedAvg(initial_parameters=initial)
    run_older(wrapped(older.DifferentialPrivacyServerSideFixedClipping, inner), grid)
    assert clear_updates(grid, trainings) == found


# --- subclasses ---


@pytest.mark.parametrize("name", ["aggregate_train", "aggregate_evaluate"])
def test_an_override_that_would_be_ignored_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        type("Mine", (BufferedSecAgg,), {name: lambda self, *_: None})


def test_a_second_strategy_among_the_bases_is_refused() -> None:
    with pytest.raises(ParameterError, match="FedAvg"):
        type("Both", (BufferedSecAgg, FedAvg), {})


def test_it_is_a_strategy_of_flower_and_inherits_nothing_that_trains() -> None:
    assert issubclass(BufferedSecAgg, Strategy)
    assert not issubclass(BufferedSecAgg, FedAvg)


# --- the node ---


def ask(folder: Path, kind: str, node: Any = None, **run_config: Any) -> Message:
    grid = grid_of(folder, [basecagg_mod], [], **run_config)
    node_id, fake = next(iter(grid.nodes.items()))
    fake.context.node_config.update(node or {})
    message = Message(RecordDict({"arrays": initial_arrays()}), node_id, kind)
    (reply,) = grid.send_and_receive([message])
    return reply


def test_a_node_trains_for_another_strategy_only_if_that_was_written_down(tmp_path: Path) -> None:
    reply = ask(tmp_path, "train")
    assert reply.has_error()
    assert "basecagg-protection" in reply.error.reason
    assert "arrays" in ask(tmp_path, "train", **WRITTEN).content
    assert "arrays" in ask(tmp_path, "train", node=WRITTEN).content


def test_what_a_node_was_told_outweighs_what_a_run_says(tmp_path: Path) -> None:
    strict = {"basecagg-protection": "basecagg"}
    assert ask(tmp_path, "train", node=strict, **WRITTEN).has_error()


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_node_that_insists_on_a_budget_tells_nothing_beside_it(tmp_path: Path, kind: str) -> None:
    """Neither a trained model nor what it finds in its data; and whoever starts a run cannot allow it."""
    limit = {"max-epsilon": 4.0}
    reply = ask(tmp_path, kind, node=limit, **WRITTEN)
    assert reply.has_error()
    assert "max-epsilon" in reply.error.reason


def test_such_a_node_can_allow_it_itself(tmp_path: Path) -> None:
    allowed = WRITTEN | {"max-epsilon": 4.0}
    assert set(ask(tmp_path, "evaluate", node=allowed).content) == {"metrics"}


def test_a_misspelt_permission_is_none(tmp_path: Path) -> None:
    assert ask(tmp_path, "train", **{"basecagg-protection": "None"}).has_error()


def gradient_by_evaluations(folder: Path, **run_config: Any) -> Any:
    """A node's gradient at zero by plain evaluations of twelve models around it; None if they are refused."""
    grid = grid_of(folder, [basecagg_mod], [], **run_config)
    node_id = next(iter(grid.nodes))
    found = []
    for number in range(6):
        steps = [np.eye(6, dtype=np.float32)[number] * step for step in (0.1, -0.1)]
        messages = [
            Message(RecordDict({"arrays": ArrayRecord([x[:5], x[5:]])}), node_id, "evaluate")
            for x in steps
        ]
        replies = [grid.send_and_receive([message])[0] for message in messages]
        if any(reply.has_error() for reply in replies):
            return None
        up, down = (float(reply.content["metrics"]["mse"]) for reply in replies)
        found.append((up - down) / 0.2)
    return np.array(found)


def test_evaluations_for_another_strategy_give_no_gradient_away(tmp_path: Path) -> None:
    assert gradient_by_evaluations(tmp_path) is None


def test_they_would_if_that_was_written_down(tmp_path: Path) -> None:
    x, y = data_of(0)
    residual = -y
    exact = 2 * np.append(times(x.T, residual), residual.sum()) / len(y)
    found = gradient_by_evaluations(tmp_path, **WRITTEN)
    np.testing.assert_allclose(found, exact, rtol=0.01)


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_a_node_answers_another_strategy_only_if_that_was_written_down(
    tmp_path: Path, kind: str
) -> None:
    app = make_app([basecagg_mod])

    @app.query()
    def count(message: Message, context: Context) -> Message:
        return Message(RecordDict({"rows": MetricRecord({"rows": 17})}), reply_to=message)

    for run_config, refused in (({}, True), (WRITTEN, False)):
        grid = listening(app, tmp_path, run_config)
        content = RecordDict({"arrays": initial_arrays()})
        (reply,) = grid.send_and_receive([Message(content, next(iter(grid.nodes)), kind)])
        assert reply.has_error() == refused
        assert not refused or "basecagg-protection" in reply.error.reason


def test_evaluation_for_another_strategy_passes_if_that_was_written_down(tmp_path: Path) -> None:
    assert set(ask(tmp_path, "evaluate", **WRITTEN).content) == {"metrics"}
    assert set(ask(tmp_path, "evaluate", node=WRITTEN).content) == {"metrics"}


# --- what an exception says ---


@pytest.mark.parametrize("kind", [ValueError, DataError])
def test_the_text_of_an_apps_exception_stays_on_the_node(
    tmp_path: Path, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(message: Message, context: Context, call_next: Any) -> Message:
        raise kind("patient 4711")

    grid = listening(make_app([basecagg_mod, fails]), tmp_path, WRITTEN)
    message = Message(RecordDict({"arrays": initial_arrays()}), next(iter(grid.nodes)), "evaluate")
    (reply,) = grid.send_and_receive([message])
    assert reply.has_error()
    assert kind.__name__ in reply.error.reason
    assert "4711" not in reply.error.reason
    assert "patient 4711" in caplog.text


def test_nor_does_what_went_wrong_beneath_the_mod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk names folders of this node."""

    def full(self: Any, *_: Any) -> None:
        raise OSError(28, "No space left on device", "/home/anna/4711")

    monkeypatch.setattr(OpenNode, "__init__", full)
    grid, reasons = grid_of(tmp_path, [basecagg_mod], []), list[str]()
    grid.after.append(lambda _, reply: reasons.append(reply.error.reason))
    with pytest.raises(LocalProtocolError, match="no node can take part"):
        small_strategy(buffer_size=2).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=1
        )
    assert reasons
    assert all("OSError" in reason and "4711" not in reason for reason in reasons)
    assert "/home/anna/4711" in caplog.text
