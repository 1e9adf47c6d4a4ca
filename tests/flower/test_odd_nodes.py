"""One node that lies about who it is, or answers with nonsense, harms nobody but itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import noting_sums
from fake_grid import FakeGrid, FakeNode, make_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from small_app import initial_arrays, make_app, small_strategy

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import pack
from basecagg.errors import LocalProtocolError, NotEnrolled, Refused
from basecagg.flower import basecagg_mod, loop
from basecagg.flower.enrolment import OwnOperator, Roll
from basecagg.flower.visits import LETTERS, METRICS, REPORT, NodeReport, read_order, reply
from basecagg.protocol.messages import HolderKey, signed
from basecagg.storage.in_memory import MemoryStore

K = 3


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAREWELL", 0.05)
    monkeypatch.setattr(loop, "_LOOK_AROUND", 0.0)


def train(grid: FakeGrid, **options: Any) -> list[Any]:
    usual = {"buffer_size": K, "min_available_nodes": 6, "answer_timeout": 0.2}
    with noting_sums() as sums:
        small_strategy(**(usual | {"collect_interval": 0.1} | options)).start(
            grid=grid, initial_arrays=initial_arrays(), num_rounds=3
        )
    return sums


def grid_with(odd: Callable[[Message, Context], Message], folder: Path) -> tuple[FakeGrid, int]:
    grid = make_grid(7, make_app([basecagg_mod]), folder)
    node_id = next(iter(grid.nodes))
    grid.nodes[node_id] = FakeNode(odd, grid.nodes[node_id].context)  # type: ignore[arg-type]
    return grid, node_id


# --- names ---


def introduction(
    name: str,
    identity: Identity,
    sealing_key: bytes,
    signer: Any = None,
    federation: str = "f" * 32,
    after: int = 0,
) -> NodeReport:
    said = HolderKey(federation, name, "x25519", sealing_key, after)
    frame = pack(signed(said, signer or identity))
    return NodeReport(name=name, signing_key=identity.public_key, holder_key=frame)


def keys() -> tuple[Identity, bytes]:
    return Identity.create(), SealingSecret.create("x25519").public_key


def shown(name: str) -> dict[str, bytes]:
    report = introduction(name, *KEYS)
    return {"signing_key": report.signing_key, "holder_key": report.holder_key}


def test_one_node_gets_one_credential_however_many_names_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a sybil would: another name and other keys in every reply."""
    admitted: list[str] = []
    original = OwnOperator.admit

    def admit(self: Any, agreement: Any, name: str, key: bytes) -> Any:
        admitted.append(name)
        return original(self, agreement, name, key)

    monkeypatch.setattr(OwnOperator, "admit", admit)
    spoken = 0

    def sybil(message: Message, context: Context) -> Message:
        nonlocal spoken
        spoken += 1
        name = str(context.node_id) if spoken == 1 else str(1000 + spoken)
        federation = read_order(message.content).federation
        report = introduction(name, *keys(), federation=federation)
        return Message(reply(report, []), reply_to=message)

    grid, _ = grid_with(sybil, tmp_path)
    assert len(train(grid)) == 3
    assert spoken > 1
    assert set(admitted) <= {str(each) for each in grid.nodes}


@pytest.mark.parametrize("odd", [{"federation": "f" * 32}, {"after": 9}], ids=str)
def test_a_key_that_no_epoch_could_have_is_a_failed_visit_of_that_node(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    spoken = 0

    def show(message: Message, context: Context) -> Message:
        nonlocal spoken
        spoken += 1
        asked = {"federation": read_order(message.content).federation} | odd
        report = introduction(str(context.node_id), *keys(), **asked)
        return Message(reply(report, []), reply_to=message)

    grid, _ = grid_with(show, tmp_path)
    assert len(train(grid)) == 3
    assert spoken > 1


def test_a_node_is_bound_to_its_name_and_key() -> None:
    roll, first, second = Roll(MemoryStore()), keys(), keys()
    roll.bind(5, introduction("5", *first), range(10))
    roll.require(5, "5")
    for node_id, report in (
        (5, introduction("6", *second)),  # one more name for the same node
        (6, introduction("5", *second)),  # another's name
        (6, introduction("5", *first)),  # another's name and key, while that one is there
        (6, introduction("6", first[0], second[1])),  # another's key
        (6, introduction("server", *second)),
        (6, introduction("6", second[0], bytes(32))),  # nobody can seal to this
        (6, introduction("6", *second, first[0])),  # signed by another
        (6, replace(introduction("6", *second), signing_key=b"short")),
        (6, replace(introduction("6", *second), holder_key=b"")),
        (6, replace(introduction("6", *second), holder_key=introduction("7", *second).holder_key)),
    ):
        with pytest.raises(Refused):
            roll.bind(node_id, report, range(10))
    for node_id, name in ((6, "5"), (5, "6"), (5, "")):
        with pytest.raises(NotEnrolled):
            roll.require(node_id, name)


def test_a_node_that_comes_back_under_another_id_keeps_its_name() -> None:
    store, first = MemoryStore(), keys()
    roll = Roll(store)
    roll.bind(5, introduction("5", *first), range(10))
    roll.bind(7, introduction("5", *first), {6, 7, 8, 9})
    roll.require(7, "5")
    with pytest.raises(NotEnrolled):
        roll.require(5, "5")
    later = Roll(store)  # the server restarted
    later.bind(8, introduction("5", *first), set())
    with pytest.raises(NotEnrolled):
        later.bind(9, introduction("5", *keys()), set())


def test_the_owner_of_an_id_takes_its_name_back() -> None:
    roll, first = Roll(MemoryStore()), keys()
    roll.bind(5, introduction("5", *first), range(10))
    roll.bind(7, introduction("5", *first), {6, 7, 8, 9})
    roll.bind(5, introduction("5", *first), range(10))
    roll.require(5, "5")


# --- nonsense ---


def report_of(**facts: Any) -> ConfigRecord:
    usual = {
        "name": "",
        "epoch": "",
        "ready": False,
        "activity": "idle",
        "problem": "",
        "declined": "",
        "spent": False,
        "signing_key": b"",
        "holder_key": b"",
    }
    return ConfigRecord(usual | facts)


def letters_of(data: Any, lengths: Any) -> ArrayRecord:
    return ArrayRecord({"bytes": Array(np.array(data)), "lengths": Array(np.array(lengths))})


def torn(record: ArrayRecord) -> ArrayRecord:
    record["bytes"].data = record["bytes"].data[:-20]
    return record


ODD: dict[str, Callable[[str], dict[str, Any]]] = {
    "nothing": lambda name: {},
    "no report": lambda name: {"metrics": MetricRecord({"loss": 1.0})},
    "nameless": lambda name: {REPORT: report_of()},
    "misnamed": lambda name: {REPORT: report_of(name="1", signing_key=b"k" * 32)},
    "absurd types": lambda name: {REPORT: report_of(name=3.5, ready="many", epoch=b"x")},
    "a metric record": lambda name: {REPORT: MetricRecord({"name": 1})},
    "absurd keys": lambda name: {
        REPORT: report_of(name=name, signing_key=b"k" * 32, holder_key=bytes(32))
    },
    "letters too early": lambda name: {
        REPORT: report_of(name=name, **shown(name)),
        LETTERS: letters_of(np.zeros(9, np.uint8), np.array([4, 5], np.uint32)),
    },
    "torn letters": lambda name: {
        REPORT: report_of(name=name, **shown(name)),
        LETTERS: torn(letters_of(np.zeros(9, np.uint8), np.array([9], np.uint32))),
    },
    "lengths of another kind": lambda name: {
        REPORT: report_of(name=name, **shown(name)),
        LETTERS: letters_of(np.zeros(9, np.uint8), np.array([-1.0, 10.0])),
    },
    "letters that are a config": lambda name: {
        REPORT: report_of(name=name, **shown(name)),
        LETTERS: ConfigRecord({"bytes": b"x"}),
    },
}
KEYS = keys()


@pytest.mark.parametrize("kind", list(ODD))
@pytest.mark.parametrize("honest_visits", [0, 2])
def test_an_odd_reply_ends_and_stalls_nothing(
    tmp_path: Path, kind: str, honest_visits: int
) -> None:
    honest, spoken = make_app([basecagg_mod]), 0

    def odd(message: Message, context: Context) -> Message:
        nonlocal spoken
        spoken += 1
        if spoken <= honest_visits:
            return honest(message, context)
        return Message(RecordDict(ODD[kind](str(context.node_id))), reply_to=message)

    grid, _ = grid_with(odd, tmp_path)
    assert len(train(grid)) == 3
    assert spoken > honest_visits


def test_training_that_never_ends_takes_no_place_for_ever(tmp_path: Path) -> None:
    honest = make_app([basecagg_mod])

    def odd(message: Message, context: Context) -> Message:
        answer = honest(message, context)
        order = read_order(message.content)
        facts = dict(answer.content[REPORT])
        if order.stage == "visit" and facts["epoch"]:
            facts["activity"] = "running"
        return Message(RecordDict({REPORT: ConfigRecord(facts)}), reply_to=message)

    grid, _ = grid_with(odd, tmp_path)
    small = small_strategy(
        buffer_size=2, min_available_nodes=7, concurrency=1, collect_interval=0.01, holders=6
    )
    small.start(grid=grid, initial_arrays=initial_arrays(), num_rounds=3, timeout=0.05)


# --- metrics ---


def test_limits_for_one_node_alone_open_nothing_of_it(tmp_path: Path) -> None:
    """The server gives everybody else a huge limit, so that the sum would be the victim's metrics."""
    grid = make_grid(6, make_app([basecagg_mod]), tmp_path)
    victim = next(iter(grid.nodes))

    def tamper(node_id: int, message: Message) -> None:
        if METRICS in message.content and node_id != victim:
            record = dict(message.content[METRICS])
            written = bytes(record["charge"]).replace(b"100.0", b"1e30")  # type: ignore[arg-type]
            message.content[METRICS] = ConfigRecord({"charge": written})

    grid.before.append(tamper)
    with noting_sums() as opened, pytest.raises(LocalProtocolError, match="WrongEpoch"):
        train(grid, train_metrics={"loss": 100.0}, consistency="certified")
    assert not opened
