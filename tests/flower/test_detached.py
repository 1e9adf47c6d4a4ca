"""Training in a process of its own: the node goes on answering, and a process that dies is noticed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_plain_updates, noting_sums, require_exact
from fake_grid import make_grid
from flwr.app import Message, MetricRecord
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.wire import unpack
from basecagg.flower import BufferedSecAgg, basecagg_mod, detached, loop
from basecagg.flower.node_view import NodeView
from basecagg.flower.visits import REPORT, unpack_letters
from basecagg.protocol.messages import Answer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def wait_for(folder: Path) -> detached.TrainingStatus:
    end = time.monotonic() + 20
    while (outcome := detached.look(folder)).state == "running" and time.monotonic() < end:
        time.sleep(0.01)
    return outcome


def test_a_process_of_its_own_leaves_its_update(tmp_path: Path) -> None:
    detached.launch(tmp_path, lambda: np.full(3, os.getpid(), np.float64))
    outcome = wait_for(tmp_path)
    assert outcome.state == "done"
    assert outcome.update is not None
    assert outcome.update[0] != os.getpid()
    detached.clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_it_goes_on_while_others_look(tmp_path: Path) -> None:
    def train() -> Any:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return np.zeros(1)

    detached.launch(tmp_path, train)
    assert detached.look(tmp_path).state == "running"
    (tmp_path / "go").touch()
    assert wait_for(tmp_path).state == "done"


def test_an_update_that_comes_just_while_somebody_looks_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_locked = detached._is_locked

    def ends_meanwhile(lock: Path) -> bool:
        (tmp_path / "go").touch()
        while is_locked(lock):
            time.sleep(0.01)
        return False

    def train() -> Any:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return np.zeros(1)

    detached.launch(tmp_path, train)
    monkeypatch.setattr(detached, "_is_locked", ends_meanwhile)
    assert detached.look(tmp_path).state == "done"


def test_an_error_leaves_its_name_and_not_its_text(tmp_path: Path) -> None:
    def train() -> Any:
        raise ValueError("patient 4711")

    detached.launch(tmp_path, train)
    assert wait_for(tmp_path)[:3] == ("failed", None, "ValueError")
    assert "patient 4711" in (tmp_path / "training" / "output.log").read_text()


@pytest.mark.parametrize("end", [detached.stop, None])
def test_a_process_that_dies_is_noticed(tmp_path: Path, end: Any) -> None:
    detached.launch(tmp_path, lambda: time.sleep(60))  # type: ignore[arg-type,return-value]
    pid, end_of_waiting = tmp_path / "training" / "pid", time.monotonic() + 20
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < end_of_waiting
        time.sleep(0.01)
    if end is None:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    else:
        end(tmp_path)
    outcome = wait_for(tmp_path)
    assert outcome[:3] == ("failed", None, "ProcessDied")


class CableError(BaseException):
    """Somebody pulled it out."""


def pull() -> None:
    raise CableError


def strategy(**options: Any) -> BufferedSecAgg:
    defaults = {
        "buffer_size": 3,
        "concurrency": 4,
        "poll_interval": 0.001,
        "collect_interval": 0.02,
        "seed": 1,
        "min_available_nodes": 6,
    }
    return BufferedSecAgg(**(defaults | options))


def test_a_training_node_answers_recoveries(tmp_path: Path) -> None:
    """One node trains until it is told to stop, and meanwhile answers for the sums of the others."""
    go, answered_while_training = tmp_path / "go", 0

    def hold_one(node_id: int, before: Any, after: Any) -> None:
        while node_id == slow and not go.exists():
            time.sleep(0.01)

    def look(node_id: int, reply: Message) -> None:
        nonlocal answered_while_training
        letters = [unpack(frame, len(frame)) for frame in unpack_letters(reply.content)]
        running = reply.content[REPORT]["activity"] == "running"
        answers = [letter for letter in letters if isinstance(letter, Answer)]
        answered_while_training += node_id == slow and running and bool(answers)

    def release(version: int, _: Any) -> None:
        if version == 4:
            go.touch()

    grid = make_grid(6, make_app([basecagg_mod], watch=hold_one), tmp_path / "nodes")
    slow = next(iter(grid.nodes))
    grid.after.append(look)
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        # D = 0: no sum opens unless every node answers, the one that trains too.
        strategy(max_dropouts=0, concurrency=6).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=6, evaluate_fn=release
        )
    require_exact(sums, tmp_path)
    assert answered_while_training >= 3


def test_a_node_is_asked_when_its_training_may_have_ended() -> None:
    view = NodeView(1, "1")
    asked = []
    for now in (100.0, 105.0):
        view.goes_on(now, 5.0)
        asked.append(view.collect_at)
    view.finish(140.0)
    for now in (200.0, 232.0, 237.0):
        view.goes_on(now, 5.0)
        asked.append(view.collect_at)
    assert asked == [105.0, 110.0, 232.0, 237.0, 242.0]


def test_a_training_process_that_is_killed_costs_one_update_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 1.0)
    marker = tmp_path / "killed"

    def kill_the_first(node_id: int, before: Any, after: Any) -> None:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    problems: set[str] = set()
    grid = make_grid(6, make_app([basecagg_mod], watch=kill_the_first), tmp_path / "nodes")
    grid.after.append(lambda _, reply: problems.add(reply.content[REPORT].get("problem", "")))
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=4)
    assert problems == {"", "ProcessDied"}
    assert len(sums) == 4
    require_exact(sums, tmp_path)


def test_training_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    def hang(node_id: int, before: Any, after: Any) -> None:
        time.sleep(60 if node_id == stuck else 0)

    problems: set[str] = set()
    grid = make_grid(6, make_app([basecagg_mod], watch=hang), tmp_path / "nodes")
    stuck = next(iter(grid.nodes))
    grid.after.append(lambda _, reply: problems.add(reply.content[REPORT].get("problem", "")))
    with pytest.raises(CableError):
        strategy(concurrency=6).start(
            grid=grid,
            initial_arrays=initial_arrays(),
            num_rounds=500,
            timeout=1.0,
            evaluate_fn=lambda *_: pull() if "TimedOut" in problems else None,
        )
    assert problems == {"", "TimedOut"}


def test_an_update_outlives_a_server_that_restarts(tmp_path: Path) -> None:
    """What was trained while nobody was there is collected and counts, if it is not too old."""

    grid = make_grid(6, make_app([basecagg_mod]), tmp_path / "nodes")
    state = tmp_path / "server.db"
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        with pytest.raises(CableError):
            strategy(server_state=state).start(
                grid=grid,
                initial_arrays=initial_arrays(),
                num_rounds=3,
                evaluate_fn=lambda v, _: pull() if v else None,
            )
        grid.outstanding.clear()
        strategy(server_state=state).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)
    assert [released.version for released in sums] == [0, 1, 2]
    assert any(0 in released.base_versions for released in sums[1:])
    require_exact(sums, tmp_path)


@pytest.mark.parametrize(("training", "seconds"), [("detached", 40.0), ("attached", 900.0)])
def test_a_message_lives_as_long_as_what_it_asks_for(
    tmp_path: Path, training: Any, seconds: float
) -> None:
    """A node that is killed and back at once never looks lost: its last message must end soon by itself."""
    grid = make_grid(3, make_app([]), tmp_path)
    push, seen = grid.push_messages, set[float]()

    def noting(messages: Any) -> Any:
        seen.update(message.metadata.ttl for message in messages)
        return push(messages)

    grid.push_messages = noting  # type: ignore[method-assign]
    strategy = small_strategy(
        training=training, protection="none", buffer_size=2, answer_timeout=20.0
    )
    strategy.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1, timeout=900)
    assert seen == {seconds}


@pytest.mark.xfail(strict=True, reason="a fork has none of the threads that torch waits for")
def test_an_app_may_use_threads_before_it_trains(tmp_path: Path) -> None:
    """A fork of a process whose torch has started threads waits for them for ever: training starts afresh."""
    import trains_at_import

    grid = make_grid(3, trains_at_import.app, tmp_path)
    trained = strategy(min_available_nodes=3, max_failures=1)
    trained.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1, timeout=20)


# --- what an app remembers, and why it failed ---


def test_an_app_finds_what_it_remembered_while_it_trained(tmp_path: Path) -> None:
    """As Flower keeps Context.state between messages: also what was written in a process of its own."""

    def counting(message: Message, context: Any, call_next: Any) -> Message:
        seen = context.state.get("trainings")
        count = int(seen["count"]) if seen is not None else 0
        (tmp_path / f"{context.node_id}-{count}").touch(exist_ok=False)
        context.state["trainings"] = MetricRecord({"count": count + 1})
        return call_next(message, context)

    grid = make_grid(6, make_app([basecagg_mod, counting]), tmp_path / "nodes")
    strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=5)
    counts = [
        int(node.context.state["trainings"]["count"])  # type: ignore[arg-type]
        for node in grid.nodes.values()
        if "trainings" in node.context.state
    ]
    assert max(counts) > 1


def test_why_training_failed_stays_on_the_node_and_can_be_read_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replies: list[Message] = []

    def fail_once(node_id: int, before: Any, after: Any) -> None:
        if node_id == victim and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            print("epoch 1 of 3")
            raise ValueError("patient 4711 is missing")

    grid = make_grid(6, make_app([basecagg_mod], watch=fail_once), tmp_path / "nodes")
    victim = next(iter(grid.nodes))
    grid.after.append(lambda _, reply: replies.append(reply))
    strategy(erase_state=False, concurrency=6).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=4
    )
    assert (tmp_path / "failed").exists()
    (kept,) = (tmp_path / "nodes").rglob(detached.LAST_FAILURE)
    for text in (kept.read_text(), caplog.text):
        assert "ValueError: patient 4711 is missing" in text
        assert "epoch 1 of 3" in text
    assert kept.stat().st_mode & 0o077 == 0
    assert not any("4711" in str(reply.content) for reply in replies if not reply.has_error())
