"""What a cheating server shows the operator: fewer holders, old keys, old numbers. Each with its control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import pack, unpack
from basecagg.errors import DataError, LocalProtocolError, MissingHolders, WrongEpoch
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import Epoch, Seat, accept
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import EpochEnd, HolderKey, signed
from basecagg.protocol.operator import OPERATOR, Operator
from basecagg.service.connection import Connection
from basecagg.service.documents import (
    EndEpoch,
    Order,
    Overview,
    Phase,
    StartEpoch,
    from_json,
    to_json,
)
from basecagg.service.operator.folder import create
from basecagg.service.operator.office import Office
from basecagg.service.signing import Caller

NAMES = tuple(f"h{index:02}" for index in range(20))
COLLUDERS = NAMES[:3]
SHOWN = (*COLLUDERS, *NAMES[10:14])
MANY = ProtocolParameters(
    num_holders=20,
    recovery_threshold=9,
    max_colluders=8,
    max_dropouts=3,
    buffer_size=10,
    model_size=50,
)
FEW = ProtocolParameters(
    num_holders=7,
    recovery_threshold=4,
    max_colluders=2,
    max_dropouts=1,
    buffer_size=4,
    model_size=50,
)
PEOPLE = {name: Identity.create() for name in NAMES}


def announced(name: str, after: int = 0, sealing: bytes | None = None) -> bytes:
    public = SealingSecret.create().public_key if sealing is None else sealing
    return pack(signed(HolderKey("test", name, "x25519", public, after), PEOPLE[name]))


@dataclass
class Lies:
    """A server that answers as it likes, and keeps what the operator gives it."""

    keys: dict[str, bytes]
    phase: Phase = "waiting"
    number: int = 0
    version: int = 0
    epoch_id: bytes = bytes(32)
    model_hash: bytes = bytes(32)
    head: bytes = bytes(32)
    started: list[Epoch] = field(default_factory=list)
    ended: list[EpochEnd] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self._obey(from_json(request.content, Order))
        overview = Overview(
            phase=self.phase,
            version=self.version,
            head=self.head,
            model_size=50,
            model_hash=self.model_hash,
            epoch_number=self.number,
            epoch_id=self.epoch_id,
            enrolments=(),
            members=(),
            holder_keys=self.keys,
        )
        return httpx.Response(200, content=to_json(overview))

    def _obey(self, order: Order) -> None:
        if isinstance(order, StartEpoch):
            epoch = unpack(order.epoch, 10**6)
            assert isinstance(epoch, Epoch)
            self.started.append(epoch)
        if isinstance(order, EndEpoch):
            end = unpack(order.frame, 10**6)
            assert isinstance(end, EpochEnd)
            self.ended.append(end)


@asynccontextmanager
async def office(folder: Path, lies: Lies) -> AsyncIterator[Office]:
    """The operator of twenty holders, on the line to a liar."""
    create(folder / "op", "test", "https://test", anchor_folder=folder / "anchors")
    opened = Office(folder / "op", folder / "anchors")
    caller = Caller("test", OPERATOR, opened.identity)
    opened.line = Connection("https://test", "", caller, httpx.MockTransport(lies))
    for name, identity in PEOPLE.items():
        await opened.vouch(name, "both", identity.public_key)
    await opened.settle_model(accepted=lies.model_hash)  # nothing here is about models
    try:
        yield opened
    finally:
        await opened.line.close()
        opened.close()


# --- a committee of the server's choice -----------------------------------------------------------


def trim(folder: Path) -> Epoch:
    """The server hides thirteen honest holders; with three colluders T = 2 would be broken."""

    async def story() -> Epoch:
        lies = Lies({name: announced(name) for name in SHOWN})
        async with office(folder, lies) as operator:
            return await operator.start(FEW)

    return asyncio.run(story())


def test_the_operator_signs_no_committee_that_the_server_trimmed(tmp_path: Path) -> None:
    with pytest.raises(MissingHolders) as caught:
        trim(tmp_path)
    hidden = set(NAMES) - set(SHOWN)
    assert set(caught.value.reasons) == hidden
    assert all(f"--without {name}" in str(caught.value) for name in hidden)


def test_without_that_rule_the_trimmed_committee_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(self: Operator, without: object) -> list[Seat]:
        known = sorted(self._announced.items())
        return [Seat(n, self.people[n].signing_key, key.sealing_key) for n, key in known]

    monkeypatch.setattr(Operator, "_committee", shown)
    epoch = trim(tmp_path)
    inside = {holder.name for holder in epoch.holders} & set(COLLUDERS)
    assert len(inside) > epoch.parameters.max_colluders  # broken, and any floor takes it


async def test_holders_that_the_operator_leaves_out_by_name_are_not_missed(tmp_path: Path) -> None:
    lies = Lies({name: announced(name) for name in SHOWN})
    async with office(tmp_path, lies) as operator:
        hidden = tuple(sorted(set(NAMES) - set(SHOWN)))
        epoch = await operator.start(FEW, without=hidden)
        assert tuple(holder.name for holder in epoch.holders) == SHOWN


async def test_a_key_that_was_heard_once_cannot_be_hidden_any_more(tmp_path: Path) -> None:
    lies = Lies({name: announced(name) for name in NAMES})
    async with office(tmp_path, lies) as operator:
        await operator.look()
        lies.keys = {}
        assert (await operator.start(MANY)).parameters.num_holders == 20


# --- keys of an epoch that is over, and numbers that were ------------------------------------------


def replay(folder: Path) -> tuple[Lies, Epoch]:
    """Epoch 1 is closed; the server shows the keys of epoch 1 again and hides the new ones."""

    async def story() -> tuple[Lies, Epoch]:
        lies = Lies({name: announced(name) for name in NAMES})
        async with office(folder, lies) as operator:
            first = await operator.start(MANY)
            lies.phase, lies.number, lies.version = "closed", 1, 7
            lies.epoch_id = first.id
            await operator.settle_model(accepted=lies.model_hash)
            await operator.start(MANY)
            return lies, first

    return asyncio.run(story())


def test_the_operator_signs_no_key_of_an_epoch_before(tmp_path: Path) -> None:
    with pytest.raises(MissingHolders, match="signed into epoch 1 already"):
        replay(tmp_path)


def test_without_memory_of_used_keys_they_are_signed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Operator, "missing", lambda self, without=(): {})
    lies, first = replay(tmp_path)
    assert [h.sealing_key for h in lies.started[1].holders] == [
        h.sealing_key for h in first.holders
    ]


def turn_back(folder: Path) -> list[Epoch]:
    """The server says after every epoch that there was none."""

    async def story() -> list[Epoch]:
        lies = Lies({name: announced(name) for name in NAMES})
        async with office(folder, lies) as operator:
            for after in (0, 1):
                await operator.start(replace(MANY, buffer_size=10 + after))
                lies.keys = {name: announced(name, after) for name in NAMES}
            return lies.started

    return asyncio.run(story())


def test_the_servers_number_counts_for_nothing(tmp_path: Path) -> None:
    assert [epoch.number for epoch in turn_back(tmp_path)] == [1, 2]


def test_without_an_own_counter_one_number_is_signed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = property(lambda self: 0, lambda self, number: None)  # what this server says
    monkeypatch.setattr(Operator, "number", told, raising=False)
    first, second = turn_back(tmp_path)
    assert first.number == second.number == 1
    assert first.id != second.id


async def test_a_server_that_denies_an_epoch_gets_the_very_same_again(tmp_path: Path) -> None:
    lies = Lies({name: announced(name) for name in NAMES})
    async with office(tmp_path, lies) as operator:
        await operator.start(MANY)
        await operator.start(MANY)
        assert lies.started[0] == lies.started[1]


async def test_only_the_operators_own_epoch_is_ended_and_once(tmp_path: Path) -> None:
    lies = Lies({name: announced(name) for name in NAMES})
    async with office(tmp_path, lies) as operator:
        first = await operator.start(MANY)
        with pytest.raises(LocalProtocolError, match="waiting: close it first"):
            await operator.end_epoch()
        lies.phase, lies.epoch_id = "closed", bytes(32)
        await operator.end_epoch()
        assert lies.ended == []  # nobody knows such an epoch
        lies.epoch_id, lies.version = first.id, 5
        await operator.end_epoch()
        lies.version = 9
        await operator.end_epoch()
        assert [end.last_version for end in lies.ended] == [5, 5]
        assert lies.ended[0] == lies.ended[1]


@pytest.mark.parametrize(
    "lie",
    [{"version": 2**62}, {"model_hash": b""}, {"model_hash": bytes(33)}, {"head": b""}],
    ids=str,
)
async def test_what_nobody_could_read_is_not_signed(tmp_path: Path, lie: dict[str, object]) -> None:
    """Not even the operator itself could: its memory would be lost with it."""
    lies = Lies({name: announced(name) for name in NAMES})
    async with office(tmp_path, lies) as operator:
        first = await operator.start(MANY)
        lies.phase, lies.epoch_id = "closed", first.id
        vars(lies).update(lie)
        with pytest.raises(DataError, match="not a valid document"):
            await operator.start(MANY)
    again = Office(tmp_path / "op", tmp_path / "anchors")
    assert again.epoch == first
    again.close()


# --- keys that seal nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "useless",
    [bytes(32), bytes(100), SealingSecret.create("mlkem768-x25519").public_key],
    ids=["low order", "wrong length", "wrong suite"],
)
def test_a_useless_key_is_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, useless: bytes
) -> None:
    async def story(folder: Path) -> Epoch:
        keys = {name: announced(name) for name in NAMES}
        keys["h05"] = announced("h05", sealing=useless)
        async with office(folder, Lies(keys)) as operator:
            return await operator.start(MANY)

    with pytest.raises(MissingHolders, match="h05: its key is none of the suite x25519"):
        asyncio.run(story(tmp_path / "guarded"))
    monkeypatch.setattr(Ed25519Verifier, "fits", staticmethod(lambda suite, key: True))
    epoch = asyncio.run(story(tmp_path / "unguarded"))
    assert epoch.holders[5].sealing_key == useless
    monkeypatch.undo()
    with pytest.raises(WrongEpoch, match="the sealing key of h05"):  # nor would anybody take it
        accept(epoch, _operator_key(tmp_path / "unguarded"), Ed25519Verifier(), LocalFloor())


def _operator_key(folder: Path) -> bytes:
    opened = Office(folder / "op", folder / "anchors")
    opened.close()
    return opened.identity.public_key


async def test_a_key_that_its_owner_did_not_sign_is_not_signed(tmp_path: Path) -> None:
    keys = {name: announced(name) for name in NAMES}
    mine = SealingSecret.create().public_key
    forged = HolderKey("test", "h05", "x25519", mine, 0)
    keys["h05"] = pack(signed(forged, Identity.create()))  # the server's own
    async with office(tmp_path, Lies(keys)) as operator:
        with pytest.raises(MissingHolders, match="h05: its key is not signed by its owner"):
            await operator.start(MANY)
