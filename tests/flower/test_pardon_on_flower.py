"""A node spoils a sum: its honest members are left out of the next for a while, by the ServerApp's clock."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from audit import noting_sums
from fake_grid import make_grid
from flwr.app import ArrayRecord, Context, Message
from small_app import initial_arrays, make_app, small_strategy

from basecagg.flower import basecagg_mod, coordinator, loop, strategy
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol.effects import Abandoned, Released
from lying import SIGN, lie_if_marked

ANN, BOB, LIAR, LATE = range(4)
"""Nodes by their place, and three more behind them train; four holders follow, who do not."""
TRAINING, HOLDERS = 7, 4
PATIENCE = 5.0


class StandsStillError(Exception):
    """Nothing has happened for much longer than the server's patience."""


class Clock:
    """A hundredth of a second passes at every look at it, however busy the machine is."""

    def __init__(self) -> None:
        self._ticks = count()
        self.now = 0.0

    def __call__(self) -> float:
        self.now = next(self._ticks) / 100
        return self.now


def train_to_version_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ann, Bob and the liar fill the first buffer; then Ann, Bob and a latecomer have updates for another.

    The liar and three more, who have dealt masks, never come back from training.
    """
    with noting_sums(Abandoned) as spoiled, noting_sums(Released) as opened:
        nodes = train(folder, monkeypatch, spoiled)
    assert len(spoiled) == 1
    members = {name.contributor for released in opened for name in released.members}
    assert members == {str(nodes[each]) for each in (ANN, BOB, LATE)}


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, spoiled: list[Abandoned]) -> list[int]:
    """One version. Returns the nodes by their places."""
    clock = Clock()
    monkeypatch.setattr(loop, "_FAREWELL", 0.05)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)
    monkeypatch.setattr(strategy, "Loop", partial(loop.Loop, clock=clock))
    monkeypatch.setattr(contributor_module, "hide", lie_if_marked)

    def lies(message: Message, context: Context, call_next: Any) -> Message:
        answer: Message = call_next(message, context)
        if context.node_id == nodes[LIAR]:
            arrays = [array - SIGN for array in answer.content["arrays"].to_numpy_ndarrays()]
            answer.content["arrays"] = ArrayRecord(arrays)
        return answer

    def away(node_id: int, message: Message) -> str | None:
        there = {ANN, BOB, LATE} if spoiled else {ANN, BOB, LIAR}
        trains = "arrays" in message.content and nodes.index(node_id) not in there
        return "late" if trains else None

    def look_around() -> list[int]:
        if not spoiled:
            burned_at.append(clock.now)
        elif clock.now > burned_at[-1] + 20 * PATIENCE:
            raise StandsStillError
        return nodes

    burned_at: list[float] = []
    app = make_app([basecagg_mod, lies])
    grid = make_grid(TRAINING + HOLDERS, app, folder, fault=away)
    nodes = list(grid.nodes)
    grid.get_node_ids = look_around  # type: ignore[method-assign]
    options: dict[str, Any] = {
        "holders": nodes[TRAINING:],
        "holders_train": False,
        "concurrency": TRAINING,
        "min_available_nodes": len(nodes),
        "answer_timeout": PATIENCE,
    }
    small_strategy(**options).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    return nodes


def test_members_of_a_spoiled_sum_are_left_out_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_to_version_1(tmp_path, monkeypatch)


def test_a_server_app_whose_clock_ran_only_while_a_sum_is_opened_would_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    tick = coordinator.Coordinator.tick

    def sleepy(self: coordinator.Coordinator, now: float) -> None:
        if self.server is not None and self.server.machine.is_opening:
            tick(self, now)

    monkeypatch.setattr(coordinator.Coordinator, "tick", sleepy)
    with pytest.raises(StandsStillError):
        train_to_version_1(tmp_path, monkeypatch)
