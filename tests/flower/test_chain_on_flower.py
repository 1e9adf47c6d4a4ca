"""The chain of models on Flower: the server's word goes with the model, and contradictions are caught.

It finds faults. A ServerApp that cheats ships the code that would have to notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from audit import noting_sums
from fake_grid import FakeGrid, make_grid
from flwr.app import ArrayRecord, Message
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import unpack, unpack_file
from basecagg.errors import LocalProtocolError
from basecagg.flower import basecagg_mod, loop
from basecagg.flower.enrolment import OwnOperator
from basecagg.flower.layout import Layout
from basecagg.flower.node import OpenNode
from basecagg.flower.node_folder import locate
from basecagg.flower.visits import LETTERS, SLOTS, Order, pack_letters, read_order, unpack_letters
from basecagg.protocol import model_watch
from basecagg.protocol.global_model import model_hash
from basecagg.protocol.messages import History, Release, signed
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import Evidence, Fork
from basecagg.protocol.recomputation import judge

_SIZE = 6
"""Numbers of the small app's model."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 1.0)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


def letters_in(message: Message) -> list[Any]:
    return [unpack(frame, len(frame)) for frame in unpack_letters(message.content)]


def run(grid: FakeGrid, versions: int = 3, **options: Any) -> Any:
    wanted = {"min_available_nodes": len(grid.nodes), "concurrency": len(grid.nodes)}
    strategy = small_strategy(**(wanted | options))
    return strategy.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=versions)


@pytest.mark.parametrize("evaluates", [False, True])
def test_the_release_of_a_version_goes_with_its_model(tmp_path: Path, evaluates: bool) -> None:
    grid = make_grid(5, make_app([basecagg_mod]), tmp_path)
    seen: list[tuple[Order, list[Release]]] = []

    def listen(_: int, message: Message) -> None:
        order, letters = read_order(message.content), letters_in(message)
        seen.append((order, [letter for letter in letters if isinstance(letter, Release)]))

    grid.before.append(listen)
    options = {"fraction_evaluate": 1.0, "evaluate_metrics": {"mse": 100.0}} if evaluates else {}
    run(grid, **options)
    tasks = {order.task for order, _ in seen}
    assert tasks == ({"", "train", "evaluate"} if evaluates else {"", "train"})
    for order, releases in seen:
        shown = order.stage == "visit" and order.task and order.version
        expected = [order.version] if shown else []
        assert [release.history.last for release in releases] == expected
    assert any(releases for _, releases in seen)


# --- a node that is shown another model -----------------------------------------------------------


def another(message: Message) -> Any:
    """Show other numbers than the message has; give the whole vector."""
    arrays = message.content.array_records["arrays"]
    other = [array + np.float32(1) for array in arrays.to_numpy_ndarrays()]
    message.content["arrays"] = shown = ArrayRecord(other)
    slots: Any = message.content[SLOTS]
    return np.concatenate([Layout.of(shown).flatten(shown), slots["slots"].numpy()])


def without_looking(watch: Any, version: int, _: Any) -> bytes:
    """The head of a version, whatever the numbers are."""
    words = [word for word in watch._words.values() if word.history.last == version]
    return words[0].history.head if words else watch._agreement.beginning.root  # type: ignore[no-any-return]


@pytest.mark.parametrize("blind", [False, True], ids=["", "control"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_node_that_is_shown_another_model_does_not_train(
    tmp_path: Path, version: int, blind: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The others go on. The control: a node that compares nothing trains from what it is shown."""
    if blind:
        monkeypatch.setattr(ModelWatch, "head_of", without_looking)
    told: list[Any] = []
    trained: list[Any] = []
    app = make_app([basecagg_mod], lambda node_id, before, after: trained.append(before))
    grid = make_grid(5, app, tmp_path)
    victim = next(iter(grid.nodes))

    def lie(node_id: int, message: Message) -> None:
        order = read_order(message.content)
        if node_id == victim and order.task and order.version == version:
            told.append(another(message)[:_SIZE])

    grid.before.append(lie)
    with pytest.raises(Enough) if blind else noting_sums() as sums:
        if blind:
            grid.after.append(lambda *_: stop_when(told and has(trained, told)))
        run(grid, versions=version + 2)
    assert told
    assert has(trained, told) == blind
    if not blind:
        assert len(sums) == version + 2
        assert "the app was not shown the model" in caplog.text
        assert f"node {victim}: its app failed with WrongModel" in caplog.text


class Enough(Exception):  # noqa: N818 - the test has seen what it wanted
    pass


def stop_when(seen: Any) -> None:
    if seen:
        raise Enough


def has(trained: list[Any], told: list[Any]) -> bool:
    return any(np.array_equal(one, other) for one in trained for other in told)


# --- a fork that is shown to one node -------------------------------------------------------------


@contextmanager
def knowing_the_server() -> Iterator[list[OwnOperator]]:
    """The keys of the server, as a ServerApp that cheats has them."""
    found: list[OwnOperator] = []
    original = OwnOperator.__init__

    def init(self: OwnOperator, *arguments: Any) -> None:
        original(self, *arguments)
        found.append(self)

    with patch.object(OwnOperator, "__init__", init):
        yield found


def forked(release: Release, model: Any, operator: OwnOperator) -> Release:
    """The server's word that this is the model of the same version."""
    history = release.history
    *links, last = history.links
    last = msgspec.structs.replace(last, model_hash=model_hash(history.last, model))
    history = History(history.version, history.root, (*links, last))
    return signed(msgspec.structs.replace(release, history=history), operator.server)


class Forker:
    """Shows one node a model of its own once, under the server's signature."""

    def __init__(self, folder: Path) -> None:
        self.trained: list[Any] = []
        self.shown: list[Any] = []
        self.replies: list[Message] = []
        """What the node said from then on, but for its goodbye."""
        app = make_app([basecagg_mod], lambda node_id, before, after: self.trained.append(before))
        self.grid = make_grid(6, app, folder)
        self.victim = next(iter(self.grid.nodes))
        self.order: Order
        self.grid.before.append(self._lie)
        self.grid.after.append(self._listen)
        with knowing_the_server() as self.operators:
            run(self.grid, versions=4, answer_timeout=0.1)

    def _lie(self, node_id: int, message: Message) -> None:
        if node_id != self.victim:
            return
        self.order, letters = read_order(message.content), letters_in(message)
        releases = [letter for letter in letters if isinstance(letter, Release)]
        if not self.shown and releases:
            whole = another(message)
            self.shown.append(whole[:_SIZE])
            fork = forked(releases[0], whole, self.operators[0])
            changed = [fork if letter is releases[0] else letter for letter in letters]
            message.content[LETTERS] = pack_letters(changed)

    def _listen(self, node_id: int, reply: Message) -> None:
        if node_id == self.victim and self.shown and self.order.stage != "goodbye":
            self.replies.append(reply)

    @property
    def evidence(self) -> Path:
        folder = locate(self.grid.nodes[self.victim].context, self.order.federation).path
        return folder.parent / f"evidence-{folder.name}.bin"


def test_a_fork_shown_to_one_node_is_caught(tmp_path: Path, caplog: Any) -> None:
    """The server signed a model for it alone; together with any other word, before or after, that convicts."""
    forker = Forker(tmp_path)
    assert "two different models under one version" in caplog.text
    evidence = unpack_file(forker.evidence.read_bytes())
    assert isinstance(evidence, Evidence)
    assert isinstance(evidence.proof, Fork)
    operator_key = forker.operators[0].operator_key
    assert "two different models" in judge(evidence, operator_key, Ed25519Verifier())
    said = [reply.has_error() for reply in forker.replies]
    assert any(said)
    assert said == sorted(said), "it answered after it had caught the server"
    assert "contradicted itself" in forker.replies[-1].error.reason
    # One that was stored and not written before a crash is written when the node is next asked anything.
    kept = forker.evidence.read_bytes()
    forker.evidence.unlink()
    folder = locate(forker.grid.nodes[forker.victim].context, forker.order.federation)
    with OpenNode(folder) as node, pytest.raises(LocalProtocolError, match="contradicted itself"):
        node.require_trust()
    assert forker.evidence.read_bytes() == kept


def test_without_comparing_a_fork_goes_unseen(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: each word by itself is well signed."""
    monkeypatch.setattr(model_watch, "contradiction", lambda first, second: None)
    forker = Forker(tmp_path)
    assert has(forker.trained, forker.shown)
    assert not forker.evidence.exists()
    assert "contradict" not in caplog.text


# --- what a node keeps ------------------------------------------------------------------------------
