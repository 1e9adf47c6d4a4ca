"""What a node is sent beside the model's numbers is the same for all: the epoch binds it.

A server that gave everybody else a learning rate of 0 would read one node's update in the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, make_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from small_app import initial_arrays, make_app, small_strategy

from basecagg.errors import LocalProtocolError
from basecagg.flower import BufferedSecAgg, basecagg_mod
from basecagg.flower.visits import ORDER, REPORT

CONFIG = {"lr": 0.1, "steps": [1, 2], "name": "x", "raw": b"\x00", "flag": True}
CHANGING = {"basecagg-config": "changing"}
Tamper = Callable[[RecordDict], None]


def start_arrays() -> ArrayRecord:
    """With a whole number, as BatchNorm's count of batches: it is in no hash of the model's numbers."""
    return ArrayRecord(dict(initial_arrays()) | {"seen": Array(np.array([7]))})


def other_rate(content: RecordDict) -> None:
    content["config"] = ConfigRecord(dict(content.config_records["config"]) | {"lr": 0.0})


def other_type(content: RecordDict) -> None:
    content["config"] = ConfigRecord(dict(content.config_records["config"]) | {"flag": 1})


def no_config(content: RecordDict) -> None:
    del content["config"]


def other_round(content: RecordDict) -> None:
    content["config"] = ConfigRecord(dict(content.config_records["config"]) | {"server-round": 99})


def another_record(content: RecordDict) -> None:
    content["more"] = ConfigRecord({"lr": 0.0})


def other_whole_number(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord(
        dict(content.array_records["arrays"]) | {"seen": Array(np.array([8]))}
    )


def other_names(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord(
        {f"_{k}": a for k, a in content.array_records["arrays"].items()}
    )


def other_key(content: RecordDict) -> None:
    content["model"] = content.array_records["arrays"]
    del content["arrays"]
    content[ORDER] = ConfigRecord(dict(content.config_records[ORDER]) | {"arrays_key": "model"})


TAMPERS: list[Tamper] = [
    other_rate,
    other_type,
    no_config,
    other_round,
    another_record,
    other_whole_number,
    other_names,
    other_key,
]


class Seen:
    """What the apps of all nodes were shown, and what nodes report."""

    def __init__(self, folder: Path, tamper: Tamper | None = None, task: str = "train") -> None:
        self.shown: list[tuple[int, str]] = []
        self.problems: set[str] = set()
        self.grid = make_grid(4, _without_seen([basecagg_mod, self._note]), folder)
        self.victim = next(iter(self.grid.nodes))
        self._tamper, self._task = tamper, task
        self.grid.before.append(self._change)
        self.grid.after.append(self._listen)

    def _note(self, message: Message, context: Context, call_next: Any) -> Message:
        own = {k: str(sorted(r.items())) for k, r in message.content.config_records.items()}
        arrays = {k: sorted(r) for k, r in message.content.array_records.items()}
        whole = [
            int(record["seen"].numpy()[0])
            for record in message.content.array_records.values()
            if "seen" in record
        ]
        self.shown.append((context.node_id, f"{own} {arrays} {whole}"))
        return call_next(message, context)

    def _change(self, node_id: int, message: Message) -> None:
        tasked = message.content.config_records[ORDER].get("task") == self._task
        if self._tamper is not None and node_id == self.victim and tasked:
            self._tamper(message.content)

    def _listen(self, _: int, reply: Message) -> None:
        if not reply.has_error():
            self.problems.add(str(reply.content[REPORT].get("problem", "")))  # type: ignore[union-attr]


def _without_seen(mods: list[Any]) -> Any:
    """The small app, which has no use for the whole number and gives it back as it was."""

    def keep(message: Message, context: Context, call_next: Any) -> Message:
        (record,) = message.content.array_records.values()
        weights = [array.numpy() for name, array in record.items() if name != "seen"]
        content = RecordDict({"arrays": ArrayRecord(weights)})
        inner = Message(metadata=message.metadata, content=content)  # type: ignore[call-overload]
        answer = call_next(inner, context)
        if "arrays" in answer.content:
            trained = answer.content.array_records["arrays"].to_numpy_ndarrays()
            names = [name for name in record if name != "seen"]
            own = {name: Array(each) for name, each in zip(names, trained, strict=True)}
            answer.content["arrays"] = ArrayRecord(own | {"seen": record["seen"]})
        return answer

    return make_app([*mods, keep])


def run(grid: FakeGrid, strategy: BufferedSecAgg | None = None, versions: int = 2) -> None:
    configs = [ConfigRecord(dict(CONFIG)) for _ in range(2)]
    (strategy or small_strategy(buffer_size=2, min_available_nodes=4)).start(
        grid=grid,
        initial_arrays=start_arrays(),
        num_rounds=versions,
        train_config=configs[0],
        evaluate_config=configs[1],
    )


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda each: each.__name__)
def test_an_app_sees_nothing_beside_the_model_that_the_epoch_does_not_bind(
    tmp_path: Path, tamper: Tamper
) -> None:
    seen = Seen(tmp_path, tamper)
    run(seen.grid)
    assert {node for node, _ in seen.shown} == seen.grid.nodes.keys() - {seen.victim}
    assert any(problem.startswith("WrongModel: ") for problem in seen.problems)


def test_nor_does_an_evaluation(tmp_path: Path) -> None:
    seen = Seen(tmp_path, other_rate, task="evaluate")
    options: Any = {"fraction_evaluate": 1.0, "evaluate_metrics": {"mse": 200.0}}
    run(seen.grid, small_strategy(buffer_size=2, min_available_nodes=4, **options))
    assert {node for node, _ in seen.shown} == seen.grid.nodes.keys() - {seen.victim}


def test_all_nodes_see_the_same_when_nobody_cheats(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    run(seen.grid)
    assert {node for node, _ in seen.shown} <= set(seen.grid.nodes)
    assert {text for _, text in seen.shown} == {
        str({"config": str(sorted((CONFIG | {"server-round": version}).items()))})
        + " {'arrays': ['0', '1', 'seen']} [7]"
        for version in (1, 2)
    }
    assert seen.problems == {""}


# --- a config that changes from version to version ---


class Decaying(BufferedSecAgg):
    """As Flower's FedAvg with a learning rate that decays."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


def decaying() -> BufferedSecAgg:
    return Decaying(
        buffer_size=2, min_available_nodes=4, training="attached", poll_interval=0.0, max_failures=1
    )


def test_a_config_that_changes_must_be_allowed_in_writing(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match=r"configure_train.*basecagg-config='changing'"):
        run(Seen(tmp_path).grid, decaying())


def test_one_that_is_allowed_is_shown_as_it_comes(tmp_path: Path) -> None:
    """The control as well: without the rule, what one node alone is told reaches its app."""
    seen = Seen(tmp_path, other_rate)
    for node in seen.grid.nodes.values():
        node.context.run_config.update(CHANGING)
    run(seen.grid, decaying(), versions=3)
    shown = [text for node, text in seen.shown if node == seen.victim]
    assert shown
    assert all("('lr', 0.0)" in text for text in shown)
    assert any("('lr', 0.05)" in text for _, text in seen.shown)


def test_what_a_node_was_told_outweighs_what_a_run_allows(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    for node in seen.grid.nodes.values():
        node.context.run_config.update(CHANGING)
        node.context.node_config["basecagg-config"] = "bound"
    with pytest.raises(LocalProtocolError, match="basecagg-config"):
        run(seen.grid, decaying())
