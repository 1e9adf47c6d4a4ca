"""What a node must remember, whoever kills it and whatever it is shown: attacks by a cheating SuperLink."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, make_grid
from flwr.app import Error, Message, RecordDict
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.identity import Identity, enrol
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import pack, unpack
from basecagg.flower import basecagg_mod, loop, mod
from basecagg.flower.node import OpenNode
from basecagg.flower.node_folder import NodeFolder, locate
from basecagg.flower.visits import (
    LETTERS,
    ORDER,
    NodeReport,
    Order,
    pack_letters,
    read_order,
    unpack_letters,
    write,
)
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import Epoch, Seat, draft_epoch, first_link
from basecagg.protocol.messages import EpochEnd, Parcel, Receipt
from basecagg.storage.participant_store import ParticipantStore


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 1.0)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


class Overheard:
    """A run, and all that the SuperLink saw of it on the way to its nodes."""

    def __init__(self, folder: Path) -> None:
        self.letters: list[tuple[int, Any]] = []
        self.order: Order
        self.grid = make_grid(6, make_app([basecagg_mod]), folder)
        self.grid.fault = self._listen
        small_strategy(min_available_nodes=6).start(
            grid=self.grid, initial_arrays=initial_arrays(), num_rounds=2
        )

    def _listen(self, node_id: int, message: Message) -> Error | None:
        """A goodbye does not get there."""
        self.order = read_order(message.content)
        for frame in unpack_letters(message.content):
            self.letters.append((node_id, unpack(frame, len(frame))))
        return Error(5, "gone") if self.order.stage == "goodbye" else None

    def a_holder(self) -> tuple[int, NodeFolder, EpochEnd]:
        """A node, where it keeps its records, and the end that it was not told of."""
        node_id = next(n for n, m in self.letters if isinstance(m, Parcel))
        folder = locate(self.grid.nodes[node_id].context, self.order.federation)
        return node_id, folder, self.of(node_id, EpochEnd)[0]

    def of(self, node_id: int, kind: type) -> list[Any]:
        return [m for n, m in self.letters if n == node_id and isinstance(m, kind)]


def visit(grid: FakeGrid, node_id: int, like: Order, stage: str, *letters: Any) -> Any:
    """What an app answers to an order of the attacker's."""
    order = Order(stage=stage, federation=like.federation, operator_key=like.operator_key)  # type: ignore[arg-type]
    content = RecordDict({ORDER: write(order)})
    if letters:
        content[LETTERS] = pack_letters(letters)
    node = grid.nodes[node_id]
    return node.app(Message(content, dst_node_id=node_id, message_type="train"), node.context)


# --- killed while it leaves ---------------------------------------------------------------------------


class KilledError(BaseException):
    """The process ends here."""


def killed_at(commit: int, monkeypatch: pytest.MonkeyPatch, *, erase_in_two: bool) -> None:
    """End the process before the commit of this number; the control forgets in two transactions."""
    whole, count = ParticipantStore.commit, iter(range(1000))

    def cut(store: ParticipantStore, writes: Any) -> None:
        parts = [writes]
        if erase_in_two and any(getattr(w, "kind", "") == "charter" for w in writes):
            memory = ("held", "share", "answer", "vote", "progress")
            parts = [[w for w in writes if w.kind in memory], writes]
        for part in parts:
            if next(count) == commit:
                raise KilledError
            whole(store, part)

    monkeypatch.setattr(ParticipantStore, "commit", cut)


@pytest.mark.parametrize("erase_in_two", [False, True], ids=["", "control"])
def test_a_node_killed_while_it_leaves_answers_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erase_in_two: bool
) -> None:
    """Its tombstones and its key go together. The control: tombstones first, and it takes old parcels."""
    reborn = []
    heard = Overheard(tmp_path)
    node_id, folder, end = heard.a_holder()
    with OpenNode(folder) as node:
        node.wake()
        holder = node.member.participant.holder
        assert holder is not None
        used = [mask for mask, state in holder.states().items() if state in ("spent", "closed")]
    replayed = [p for p in heard.of(node_id, Parcel) if p.dealing.masks[0].key in used]
    assert replayed
    for commit in range(4):
        with monkeypatch.context() as patch:
            killed_at(commit, patch, erase_in_two=erase_in_two)
            with suppress(KilledError):
                visit(heard.grid, node_id, heard.order, "goodbye", end)
        with OpenNode(folder) as node:
            node.wake()
            reborn += node.take([pack(parcel) for parcel in replayed])
    assert any(isinstance(message, Receipt) for message in reborn) == erase_in_two


def test_an_old_copy_is_noticed_by_whoever_writes_to_it_first(tmp_path: Path) -> None:
    """Noting an evaluation is a write too: it must not make an older copy look current."""
    heard = Overheard(tmp_path)
    node_id, folder, end = heard.a_holder()
    store = folder.path.parent / "state.db"
    old = store.read_bytes()
    visit(heard.grid, node_id, heard.order, "goodbye", end)
    store.write_bytes(old)
    lesson: Any = SimpleNamespace(call=SimpleNamespace(folder=folder, ask_app=RecordDict))
    assert mod._evaluate(lesson, NodeReport()).activity == "done"
    with OpenNode(folder) as node:
        node.wake()
        assert node.member.participant.agreement is not None  # it really is the older one
        assert node.member.participant.holder is None


# --- an epoch that nobody signed ------------------------------------------------------------------------


def test_a_bad_epoch_is_not_kept_and_does_not_block_a_goodbye(tmp_path: Path) -> None:
    grid = make_grid(3, make_app([basecagg_mod]), tmp_path)
    (node_id, *_) = grid.nodes
    operator, other = Identity.create(), Identity.create()
    like = Order(stage="hello", federation="0" * 32, operator_key=operator.public_key)
    visit(grid, node_id, like, "hello")
    bad = epoch_by(other)
    credential = enrol(other, bad.id, "me", other.public_key)
    visit(grid, node_id, like, "visit", bad, credential)
    visit(grid, node_id, like, "visit")
    with OpenNode(locate(grid.nodes[node_id].context, like.federation)) as node:
        node.wake()
        assert node.member.participant.agreement is None
        assert node.member.participant.refusals()["BadSignature"].count == 1
        path = node.folder.path
    visit(grid, node_id, like, "goodbye")
    assert not path.exists()


def epoch_by(operator: Identity) -> Epoch:
    parameters = ProtocolParameters(
        num_holders=4,
        recovery_threshold=3,
        max_colluders=1,
        max_dropouts=1,
        buffer_size=3,
        model_size=6,
        consistency="honest-server",
    )
    holders = [
        Seat(f"h{index}", Identity.create().public_key, SealingSecret.create().public_key)
        for index in range(4)
    ]
    return draft_epoch(
        federation="f",
        parameters=parameters,
        holders=holders,
        server_key=operator.public_key,
        enrolment_key=operator.public_key,
        operator=operator,
        first=first_link(np.zeros(6, np.float32)),
    )


# --- the same app again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own_file", [False, True], ids=["", "control"])
def test_the_same_update_is_not_masked_in_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_file: bool
) -> None:
    """Seeded training gives the same update in every run. The control: a file for each federation."""
    drawn = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=0: drawn(seed))
    uploads: list[str] = []
    submit = OpenNode.submit

    def counting(node: OpenNode, *arguments: Any) -> Any:
        messages = submit(node, *arguments)
        uploads.append(node.member.participant.pins.federation)
        return messages

    monkeypatch.setattr(OpenNode, "submit", counting)
    if own_file:
        monkeypatch.setattr(NodeFolder, "open_store", open_own)
    grid = make_grid(4, make_app([basecagg_mod]), tmp_path)
    first = small_strategy(min_available_nodes=4)
    first.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    runs = set(uploads)
    assert len(runs) == 1
    second = small_strategy(min_available_nodes=4, max_failures=2)
    try:
        second.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=1)
    except Exception:  # nobody has anything to send that was not sent before
        assert not own_file
    assert (set(uploads) != runs) == own_file


def open_own(folder: Any) -> ParticipantStore:
    path = folder.path.parent / f"{folder.path.name}.db"
    return ParticipantStore(path, folder.path.name, anchor_folder=folder.anchors)
