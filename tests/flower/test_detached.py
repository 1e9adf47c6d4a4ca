"""Training in a process of its own: the node goes on answering, and a process that dies is noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import own_process
import pytest
from audit import noting_plain_updates, noting_sums, require_exact
from fake_grid import make_grid
from flwr.app import Message
from own_process import grid_with
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.wire import unpack
from basecagg.errors import LocalProtocolError
from basecagg.flower import BufferedSecAgg, basecagg_mod, detached, loop
from basecagg.flower.node_view import NodeView
from basecagg.flower.visits import REPORT, unpack_letters
from basecagg.maths.staleness import polynomial
from basecagg.protocol.messages import Answer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@pytest.fixture(autouse=True)
def _nothing_trains_on(tmp_path: Path) -> Iterator[None]:
    """A node that is asked again trains again, also in the last moment of a test."""
    yield
    for training in tmp_path.rglob("training"):
        detached.stop(training.parent)


def wait_for(folder: Path) -> detached.TrainingStatus:
    end = time.monotonic() + 300
    while (outcome := detached.look(folder)).state == "running" and time.monotonic() < end:
        time.sleep(0.01)
    return outcome


def launch(folder: Path, function: Any, content: bytes = b"") -> None:
    detached.launch(folder, f"{function.__module__}:{function.__name__}", content)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_process_of_its_own_leaves_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the working directory and the environment of the node, and no secret on its command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD", "by the environment")
    launch(tmp_path, own_process.tell_process, b"a secret")
    outcome = wait_for(tmp_path)
    assert outcome.state == "done"
    assert outcome.update is not None
    assert outcome.update[0] != os.getpid()
    where, told, line = outcome.memory.decode().split("\n")
    assert (where, told) == (str(tmp_path), "by the environment")
    command, _, passed = line.rpartition("]")
    assert passed == "a secret"
    assert "secret" not in command
    assert not any(b"a secret" in each.read_bytes() for each in tmp_path.rglob("*.log"))
    detached.clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_it_goes_on_while_others_look(tmp_path: Path) -> None:
    launch(tmp_path, own_process.wait, bytes(tmp_path))
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

    launch(tmp_path, own_process.wait, bytes(tmp_path))
    monkeypatch.setattr(detached, "_is_locked", ends_meanwhile)
    assert detached.look(tmp_path).state == "done"


def test_an_error_leaves_its_name_and_not_its_text(tmp_path: Path) -> None:
    launch(tmp_path, own_process.fail)
    assert wait_for(tmp_path)[:3] == ("failed", None, "ValueError")
    assert "patient 4711" in (tmp_path / "training" / "output.log").read_text()


def test_what_cannot_be_imported_is_a_failure_with_its_reason_in_the_log(tmp_path: Path) -> None:
    detached.launch(tmp_path, "no_such_module:train", b"")
    assert wait_for(tmp_path)[:3] == ("failed", None, "ModuleNotFoundError")
    assert "no_such_module" in detached.tail(tmp_path)


@pytest.mark.parametrize("end", [detached.stop, None])
def test_a_process_that_dies_is_noticed(tmp_path: Path, end: Any) -> None:
    launch(tmp_path, own_process.hang)
    pid = int((tmp_path / "training" / "pid").read_text())  # at once: it may be stopped at once
    if end is None:
        os.kill(pid, signal.SIGKILL)
    else:
        end(tmp_path)
    outcome = wait_for(tmp_path)
    assert outcome[:3] == ("failed", None, "ProcessDied")
    assert not is_alive(pid)


def test_what_training_started_ends_with_it(tmp_path: Path) -> None:
    """A loader of data with workers leaves no orphans when its training is ended."""
    noted, end = tmp_path / "helper", time.monotonic() + 300
    launch(tmp_path, own_process.hang_with_helper, bytes(noted))
    while not (noted.exists() and noted.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    helper = int(noted.read_text())
    assert is_alive(helper)
    detached.stop(tmp_path)
    while is_alive(helper) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(helper)


class CableError(BaseException):
    """Somebody pulled it out."""


def pull() -> None:
    raise CableError


def strategy(**options: Any) -> BufferedSecAgg:
    defaults = {
        "buffer_size": 3,
        "concurrency": 4,
        "poll_interval": 0.001,
        "collect_interval": 0.1,
        "seed": 1,
        "min_available_nodes": 6,
    }
    return BufferedSecAgg(**(defaults | options))


def test_a_training_node_answers_recoveries(tmp_path: Path) -> None:
    """One node trains until it is told to stop, and meanwhile answers for the sums of the others."""
    answered_while_training = 0

    def look(node_id: int, reply: Message) -> None:
        nonlocal answered_while_training
        letters = [unpack(frame, len(frame)) for frame in unpack_letters(reply.content)]
        running = reply.content[REPORT]["activity"] == "running"
        answers = [letter for letter in letters if isinstance(letter, Answer)]
        answered_while_training += node_id == slow and running and bool(answers)

    def release(version: int, _: Any) -> None:
        if version == 2:
            (tmp_path / "go").touch()

    grid = grid_with(6, tmp_path, "hold_one")
    slow = next(iter(grid.nodes))
    grid.after.append(look)
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        # D = 0: no sum opens unless every node answers, the one that trains too.
        strategy(max_dropouts=0, concurrency=6).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=3, evaluate_fn=release
        )
    require_exact(sums, tmp_path)
    assert answered_while_training >= 2


def test_a_node_weighs_an_update_by_the_versions_that_it_heard_of_meanwhile(tmp_path: Path) -> None:
    def release(version: int, _: Any) -> None:
        if version == 2:
            (tmp_path / "go").touch()

    grid = grid_with(6, tmp_path, "hold_one")
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(concurrency=6, staleness=polynomial(1.0)).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=8, evaluate_fn=release
        )
    require_exact(sums, tmp_path)
    told = [m for each in sums for m in zip(each.base_versions, each.weights, strict=True)]
    late = [weight for base, weight in told if base == 0 and weight < 1]
    assert late, told
    assert set(late) <= {1 / 2, 1 / 4}  # of τ̂ = 1, 2 or 3…6


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
    problems: set[str] = set()
    grid = grid_with(6, tmp_path, "kill_first")
    grid.after.append(lambda _, reply: problems.add(reply.content[REPORT].get("problem", "")))
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=2)
    assert problems == {"", "ProcessDied"}
    assert len(sums) == 2
    require_exact(sums, tmp_path)


def test_training_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    problems: set[str] = set()
    grid = grid_with(6, tmp_path, "hang_one")
    grid.after.append(lambda _, reply: problems.add(reply.content[REPORT].get("problem", "")))
    with pytest.raises(CableError):
        strategy(concurrency=6).start(
            grid=grid,
            initial_arrays=initial_arrays(),
            num_rounds=500,
            timeout=10.0,
            evaluate_fn=lambda *_: pull() if "TimedOut" in problems else None,
        )
    assert problems == {"", "TimedOut"}


def test_an_update_outlives_a_server_that_restarts(tmp_path: Path) -> None:
    """What was trained while nobody was there is collected and counts, if it is not too old."""

    grid = grid_with(6, tmp_path)
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


def test_an_app_may_use_threads_before_it_trains(tmp_path: Path) -> None:
    """A fork of a process whose torch has started threads waits for them for ever: training starts afresh."""
    import trains_at_import

    grid = make_grid(3, trains_at_import.app, tmp_path)
    trained = strategy(min_available_nodes=3, max_failures=1)
    trained.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1, timeout=300)


def test_an_app_that_no_module_has_is_refused_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was made in a function: another process cannot import it. Attached, it trains."""
    app = make_app([basecagg_mod])
    options: Any = {"min_available_nodes": 3, "max_failures": 1}
    arrays = initial_arrays()
    with pytest.raises(LocalProtocolError, match=r"no module has it under a name.*'attached'"):
        strategy(**options).start(
            grid=make_grid(3, app, tmp_path / "a"), initial_arrays=arrays, num_rounds=1
        )
    assert not list((tmp_path / "a").rglob("training"))
    strategy(training="attached", **options).start(
        grid=make_grid(3, app, tmp_path / "b"), initial_arrays=arrays, num_rounds=1
    )


# --- what an app remembers, and why it failed ---


def test_an_app_finds_what_it_remembered_while_it_trained(tmp_path: Path) -> None:
    """As Flower keeps Context.state between messages: also what was written in a process of its own."""

    grid = grid_with(6, tmp_path, "count")
    strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=4)
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

    grid = grid_with(6, tmp_path, "fail_first")
    grid.after.append(lambda _, reply: replies.append(reply))
    strategy(erase_state=False, concurrency=6).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=2
    )
    (kept,) = (tmp_path / "nodes").rglob(detached.LAST_FAILURE)
    for text in (kept.read_text(), caplog.text):
        assert "ValueError: patient 4711 is missing" in text
        assert "epoch 1 of 3" in text
    assert kept.stat().st_mode & 0o077 == 0
    assert not any("4711" in str(reply.content) for reply in replies if not reply.has_error())
