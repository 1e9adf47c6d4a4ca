"""What Flower's faults become: lost visits are repeated, and no sum is wrong, no mask answered twice."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_plain_updates, noting_sums, require_exact
from deployment_stores import OUTLIVING, kinds_of_records
from fake_grid import FakeGrid, flat, make_grid
from flwr.app import Error, Message
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.wire import unpack
from basecagg.errors import DataError, StorageError
from basecagg.flower import BufferedSecAgg, basecagg_mod, loop
from basecagg.flower.visits import ORDER, read_order, unpack_letters
from basecagg.protocol.effects import Abandoned
from basecagg.protocol.messages import (
    Answer,
    RecoveryRequest,
    ShortRequest,
    Upload,
)
from basecagg.protocol.opening import Burned
from basecagg.protocol.recovery import Recovery

CODES = (0, 1, 2, 3, 4, 5, 8)
"""Everything that Flower may say instead of a reply."""


@pytest.fixture(autouse=True)
def _short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 1.0)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


def strategy(**options: Any) -> BufferedSecAgg:
    impatient = {"answer_timeout": 0.2, "collect_interval": 0.2, "min_available_nodes": 8}
    return small_strategy(**(impatient | options))


def frames_of(message: Message) -> list[Any]:
    return [unpack(frame, len(frame)) for frame in unpack_letters(message.content)]


class CableError(BaseException):
    """Somebody pulled it out."""


REQUESTS = RecoveryRequest | ShortRequest


class Ledger:
    """Every answer and upload that left a node, also those whose message was lost on its way."""

    def __init__(self) -> None:
        self.answered: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.requests: dict[bytes, RecoveryRequest | ShortRequest] = {}
        self.uploads: defaultdict[str, set[bytes]] = defaultdict(set)

    def note_order(self, _: int, message: Message) -> None:
        for letter in frames_of(message):
            request = getattr(letter, "request", letter)
            if isinstance(request, REQUESTS):
                self.requests[request.digest] = request

    def note_reply(self, _: int, reply: Message) -> None:
        if reply.has_error():
            return
        for letter in frames_of(reply):
            if isinstance(letter, Answer):
                for mask in self.requests[letter.digest].masks:
                    self.answered[mask.key, letter.holder].add(letter.words)
            elif isinstance(letter, Upload):
                self.uploads[letter.ticket.mask.key].add(letter.words)

    def require_once(self) -> None:
        assert self.answered
        assert self.uploads
        assert all(len(words) == 1 for words in self.answered.values())
        assert all(len(words) == 1 for words in self.uploads.values())


class WatchedGrid(FakeGrid):
    """Also shows what a node did before its reply was lost."""

    ledger: Ledger

    def _handle(self, node_id: int, message: Message) -> Message:
        self.ledger.note_order(node_id, message)
        reply = super()._handle(node_id, message)
        self.ledger.note_reply(node_id, reply)
        return reply


def watched(count: int, folder: Path, **options: Any) -> WatchedGrid:
    plain = make_grid(count, make_app([basecagg_mod]), folder)
    grid = WatchedGrid(plain.nodes, **options)
    grid.ledger = Ledger()
    return grid


@pytest.mark.parametrize("consistency", ["honest-server", "certified"])
@pytest.mark.parametrize("seed", range(2))
def test_errors_and_lost_replies_change_no_sum(tmp_path: Path, seed: int, consistency: Any) -> None:
    chooser = random.Random(seed)

    def fault(node_id: int, message: Message) -> Any:
        draw = chooser.random()
        if draw < 0.06:
            return Error(chooser.choice(CODES), "as if")
        return "lost" if draw < 0.14 else "late" if draw < 0.4 else None

    grid = watched(8, tmp_path / "nodes", fault=fault)
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(consistency=consistency).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=4
        )
    assert len(sums) == 4
    require_exact(sums, tmp_path)
    grid.ledger.require_once()


def test_few_nodes_that_need_each_other_in_every_version_go_on(tmp_path: Path) -> None:
    """m = K = 3, and most of what five nodes send comes late: whoever is alone with its version gives way."""
    chooser = random.Random(4)
    late = lambda node_id, message: "late" if chooser.random() < 0.7 else None  # noqa: E731
    grid = watched(5, tmp_path / "nodes", fault=late)
    options = {"min_available_nodes": 5, "concurrency": 5, "max_dropouts": 1, "min_per_version": 3}
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(**options).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=8)
    assert len(sums) == 8
    assert all(len(set(released.base_versions)) == 1 for released in sums)
    require_exact(sums, tmp_path)


def test_the_ledger_notices_a_second_answer(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.answered["mask", 0] |= {b"one", b"two"}
    ledger.uploads["mask"].add(b"one")
    with pytest.raises(AssertionError):
        ledger.require_once()


def test_nobody_waits_for_a_node_that_never_starts(tmp_path: Path) -> None:
    def fault(node_id: int, message: Message) -> Any:
        return Error(1, "cannot load the app") if node_id == broken else None

    grid = watched(7, tmp_path / "nodes", fault=fault)
    broken = next(iter(grid.nodes))
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(min_available_nodes=6).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=1
        )
    require_exact(sums, tmp_path)


def test_training_goes_on_without_a_node_that_never_returns(tmp_path: Path) -> None:
    grid = watched(8, tmp_path / "nodes")
    gone = next(iter(grid.nodes))

    def kill(version: int, _: Any) -> None:
        if version == 2:
            grid.offline.add(gone)

    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy().start(grid=grid, initial_arrays=initial_arrays(), num_rounds=6, evaluate_fn=kill)
    assert len(sums) == 6
    require_exact(sums, tmp_path)
    later = [name.contributor for released in sums[4:] for name in released.members]
    assert str(gone) not in later


def test_a_holder_lost_during_a_recovery_is_asked_again_when_it_is_back(tmp_path: Path) -> None:
    """Two holders vanish when they are asked, one more than may: the sum waits for the first to return."""
    asked: list[int] = []
    looks = 0

    def look_around() -> list[int]:
        nonlocal looks
        looks += len(asked) == 2
        if looks > 50:
            grid.offline.clear()
        return [node_id for node_id in grid.nodes if node_id not in grid.offline]

    def fault(node_id: int, message: Message) -> Any:
        questions = [m for m in frames_of(message) if isinstance(m, REQUESTS)]
        if questions and questions[0].version == 1 and node_id not in asked and len(asked) < 2:
            asked.append(node_id)
            grid.offline.add(node_id)
            return Error(5, "gone")
        return None

    grid = watched(6, tmp_path / "nodes", fault=fault)
    grid.get_node_ids = look_around  # type: ignore[method-assign]
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(min_available_nodes=6, max_dropouts=1, concurrency=3, retries=1000).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=4
        )
    assert len(asked) == 2
    assert len(sums) == 4
    require_exact(sums, tmp_path)
    grid.ledger.require_once()


def test_silence_burns_nothing_however_long_it_lasts(tmp_path: Path) -> None:
    """Half of the holders fail to answer; they are asked the very same until they do."""
    asked: list[RecoveryRequest | ShortRequest] = []

    def fault(node_id: int, message: Message) -> Any:
        questions = [m for m in frames_of(message) if isinstance(m, REQUESTS)]
        if node_id in silent and len(asked) < 30:
            asked.extend(questions)
            return Error(2, "as if") if questions else None
        return None

    grid = watched(6, tmp_path / "nodes", fault=fault)
    silent = list(grid.nodes)[:3]
    with (
        noting_plain_updates(tmp_path),
        noting_sums() as sums,
        noting_sums(Abandoned) as burned,
    ):
        strategy(min_available_nodes=6, retries=1, answer_timeout=0.05).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=3
        )
    assert len(asked) >= 30
    assert len({question.digest for question in asked}) == 1
    assert not burned
    require_exact(sums, tmp_path)
    grid.ledger.require_once()


def test_a_buffer_whose_answers_disagree_is_burned_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Recovery._open

    def disagree(recovery: Recovery) -> Any:
        return original(recovery) if burned else Burned("as if they disagreed")

    monkeypatch.setattr(Recovery, "_open", disagree)
    grid = watched(6, tmp_path / "nodes")
    with (
        noting_plain_updates(tmp_path),
        noting_sums() as sums,
        noting_sums(Abandoned) as burned,
    ):
        strategy(min_available_nodes=6).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=3
        )
    assert len(burned) == 1
    require_exact(sums, tmp_path)
    lost = {name.key for abandoned in burned for name in abandoned.members}
    opened = {name.key for released in sums for name in released.members}
    assert not lost & opened
    grid.ledger.require_once()


def test_a_node_that_lost_its_folder_joins_again_as_a_contributor(tmp_path: Path) -> None:
    grid = watched(8, tmp_path / "nodes")
    victim = next(iter(grid.nodes))
    folder = Path(str(grid.nodes[victim].context.node_config["state-dir"]))

    def lose_it(version: int, _: Any) -> None:
        if version == 2:
            shutil.rmtree(folder)

    with noting_plain_updates(tmp_path), noting_sums() as sums:
        strategy(concurrency=8, erase_state=False).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=8, evaluate_fn=lose_it
        )
    require_exact(sums, tmp_path)
    grid.ledger.require_once()
    later = {name.contributor for released in sums[3:] for name in released.members}
    assert str(victim) in later
    assert list(folder.rglob("state.db"))


def test_a_restarted_server_goes_on_where_it_was(tmp_path: Path) -> None:
    def pull(version: int, arrays: Any) -> None:
        if version == 2:
            raise CableError

    state = tmp_path / "server" / "state.db"
    grid = watched(8, tmp_path / "nodes")
    models: dict[int, Any] = {}
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        with pytest.raises(CableError):
            strategy(server_state=state).start(
                grid=grid, initial_arrays=initial_arrays(), num_rounds=5, evaluate_fn=pull
            )
        grid.outstanding.clear()
        result = strategy(server_state=state).start(
            grid=grid,
            initial_arrays=initial_arrays(),
            num_rounds=5,
            evaluate_fn=lambda version, arrays: models.setdefault(version, arrays) and None,
        )
    assert [released.version for released in sums] == [0, 1, 2, 3, 4]
    assert list(models) == [3, 4, 5]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    require_exact(sums, tmp_path)
    grid.ledger.require_once()


def test_the_state_of_a_finished_run_stalls_nobody(tmp_path: Path) -> None:
    """Its nodes have erased their keys: nobody could ever answer for its epoch again."""
    state = tmp_path / "server.db"
    grid = watched(8, tmp_path / "nodes")
    first = strategy(server_state=state).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=2
    )
    again = strategy(server_state=state).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=2
    )
    np.testing.assert_array_equal(flat(first.arrays), flat(again.arrays))
    with pytest.raises(DataError, match="ended at version 2"):
        strategy(server_state=state).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)


def test_a_second_server_on_one_state_is_refused(tmp_path: Path) -> None:
    """Two of them would ask for overlapping sums: the first one's evaluation starts the second."""
    state, seen = tmp_path / "state.db", list[str]()

    def start_another(version: int, arrays: Any) -> None:
        with pytest.raises(StorageError, match="in use by process") as refused:
            strategy(server_state=state).start(
                grid=grid, initial_arrays=initial_arrays(), num_rounds=1
            )
        seen.append(str(refused.value))

    grid = watched(8, tmp_path / "nodes")
    strategy(server_state=state).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=1, evaluate_fn=start_another
    )
    assert len(seen) == 2  # at versions 0 and 1; and the first one went on


def test_a_server_killed_while_a_sum_is_opened_asks_again(tmp_path: Path) -> None:
    answers = 0

    def fault(node_id: int, message: Message) -> Any:
        nonlocal answers
        answers += any(isinstance(m, REQUESTS) for m in frames_of(message))
        if answers == 3 and not grid.offline:
            grid.offline.add(-1)
            raise CableError
        return None

    state = tmp_path / "server.db"
    grid = watched(8, tmp_path / "nodes", fault=fault)
    with noting_plain_updates(tmp_path), noting_sums() as sums:
        with pytest.raises(CableError):
            strategy(server_state=state).start(
                grid=grid, initial_arrays=initial_arrays(), num_rounds=3
            )
        assert not sums
        grid.outstanding.clear()
        strategy(server_state=state).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3)
    assert [released.version for released in sums] == [0, 1, 2]
    require_exact(sums, tmp_path)
    grid.ledger.require_once()


def test_a_node_that_may_still_keep_its_keys_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(node_id: int, message: Message) -> Any:
        parting = message.content[ORDER]["stage"] == "goodbye"
        return Error(8, "as if") if parting and node_id == victim else None

    said: list[str] = []
    monkeypatch.setattr(loop.LOG, "warning", lambda text, *rest: said.append(text % rest))
    grid = watched(6, tmp_path, fault=fault)
    victim = next(iter(grid.nodes))
    strategy(min_available_nodes=6).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    assert said == [f"nodes that may still keep keys and shares of this run: {{{victim}}}"]
    folders = {node_id: n.context.node_config["state-dir"] for node_id, n in grid.nodes.items()}
    kept = [n for n, folder in folders.items() if "sealing" in kinds_of_records(Path(str(folder)))]
    assert kept == [victim]
    others = [kinds_of_records(Path(str(f))) for n, f in folders.items() if n != victim]
    assert others == [OUTLIVING] * len(others)


def test_metrics_that_never_left_a_node_end_with_the_run(tmp_path: Path) -> None:
    """One node has evaluated the model, and is never reached to train it."""

    def fault(node_id: int, message: Message) -> Any:
        order = read_order(message.content)
        trains = order.stage == "visit" and order.task == "train"
        return Error(2, "as if") if trains and node_id == victim else None

    grid = make_grid(8, make_app([basecagg_mod]), tmp_path, fault=fault)
    victim = next(iter(grid.nodes))
    left: set[str] = set()
    folder = tmp_path / "0"
    grid.before.append(lambda *_: left.update(kinds_of_records(folder)))
    strategy(fraction_evaluate=1.0, evaluate_metrics={"mse": 200.0}, concurrency=8).start(
        grid=grid, initial_arrays=initial_arrays(), num_rounds=1
    )
    assert "evaluation" in left
    assert kinds_of_records(folder) == OUTLIVING - {"salt", "sent"}  # it has sent nothing


def test_fedbuff_goes_on_after_a_restart(tmp_path: Path) -> None:
    def pull(version: int, arrays: Any) -> None:
        if version == 2:
            raise CableError

    grid = make_grid(8, make_app([]), tmp_path)
    plain = {"protection": "none", "server_state": tmp_path / "server.db"}
    with noting_sums() as sums:
        with pytest.raises(CableError):
            strategy(**plain).start(
                grid=grid, initial_arrays=initial_arrays(), num_rounds=4, evaluate_fn=pull
            )
        grid.outstanding.clear()
        strategy(**plain).start(grid=grid, initial_arrays=initial_arrays(), num_rounds=4)
    assert [released.version for released in sums] == [0, 1, 2, 3]


def test_fedbuff_survives_the_same_faults(tmp_path: Path) -> None:
    chooser = random.Random(1)

    def fault(node_id: int, message: Message) -> Any:
        draw = chooser.random()
        return Error(5, "gone") if draw < 0.1 else "late" if draw < 0.5 else None

    grid = make_grid(8, make_app([]), tmp_path, fault=fault)
    with noting_sums() as sums:
        strategy(protection="none").start(grid=grid, initial_arrays=initial_arrays(), num_rounds=6)
    assert [released.version for released in sums] == [0, 1, 2, 3, 4, 5]
