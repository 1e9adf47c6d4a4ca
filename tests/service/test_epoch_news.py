"""How an epoch's end and the wish for fresh keys reach its members, and replaced members come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from direct import NAMES, Direct, direct
from service_harness import SMALL, announced, enrolment

from basecagg.channels.identity import Identity
from basecagg.channels.wire import pack, unpack
from basecagg.errors import MissingHolders
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import Credential, EpochEnd, HolderKey, Message, signed
from basecagg.service import framing
from basecagg.service.agent.profile import Profile
from basecagg.service.documents import EndEpoch, to_json
from basecagg.service.problems import Problem
from basecagg.service.server.registry import Registry

ANN = NAMES[0]


def news(reply) -> list[Message]:
    return [unpack(letter.frame, 10**6) for letter in framing.split(reply.content)]


async def ask(scene: Direct, known: str, name: str = ANN, wait: int = 0):
    query: dict[str, str | int] = {"known": known, "wait": wait}
    return await scene.member(name).call("GET", "/v1/epoch", query=query)


def fresh_key(scene: Direct, who: str, after: int = 0, **changes) -> HolderKey:
    return announced(scene.profiles[who], after=after, **changes)


async def announce(scene: Direct, *keys: HolderKey) -> None:
    for key in keys:
        await scene.member(key.name).call("PUT", "/v1/holder-key", pack(key))


async def close(scene: Direct) -> None:
    await scene.operator.close_epoch()
    while scene.service.epochs.phase != "closed":
        await asyncio.sleep(0.02)


# --- the end --------------------------------------------------------------------------------------


async def test_the_end_comes_first_and_then_the_next_epoch(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        first = scene.operator.epoch
        assert first is not None
        assert news(await ask(scene, ""))[0] == first
        assert news(await ask(scene, first.id.hex())) == []
        await close(scene)
        await scene.operator.end_epoch()
        (end,) = news(await ask(scene, first.id.hex(), wait=30))
        assert isinstance(end, EpochEnd)
        overview = await scene.service.overview()
        assert (end.epoch, end.last_version) == (first.id, overview.version)
        assert end.head == overview.head
        assert news(await ask(scene, "")) == []  # what is over is offered to nobody
        await announce(scene, *(fresh_key(scene, name, after=1) for name in NAMES))
        second = await scene.operator.start(SMALL)
        said = news(await ask(scene, first.id.hex()))
        assert [type(each) for each in said] == [EpochEnd, Epoch, Credential]
        assert said[:2] == [end, second]
        assert [type(each) for each in news(await ask(scene, ""))] == [Epoch, Credential]


async def test_a_start_ends_what_is_closed(tmp_path: Path) -> None:
    """The operator went away between closing and ending."""
    async with direct(tmp_path) as scene:
        first = scene.operator.epoch
        assert first is not None
        await close(scene)
        await announce(scene, *(fresh_key(scene, name, after=1) for name in NAMES))
        await scene.operator.start(SMALL)
        assert isinstance(news(await ask(scene, first.id.hex()))[0], EpochEnd)


async def test_the_end_survives_a_restart_of_the_registry(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        await close(scene)
        await scene.operator.end_epoch()
        service = scene.service
        again = Registry("test", service.folder.operator_key, service.epochs.store)
        assert again.ends == service.epochs.registry.ends
        assert len(again.ends) == 1


async def test_only_the_operators_word_on_the_present_epoch_ends_it(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        present, boss = bytes.fromhex(scene.epoch), scene.operator.identity

        async def order(end: Message) -> str:
            body = to_json(EndEpoch(frame=pack(end)))
            try:
                await scene.boss.call("POST", "/v1/operator", body)
            except Problem as problem:
                return problem.code
            return "done"

        good = signed(EpochEnd(present, 3, bytes(32)), boss)
        assert await order(good) == "NotClosed"
        await close(scene)
        assert await order(signed(EpochEnd(bytes(32), 3, bytes(32)), boss)) == "WrongEpoch"
        assert await order(signed(good, Identity.create())) == "BadSignature"
        assert await order(msgspec.structs.replace(good, last_version=4)) == "BadSignature"
        assert await order(fresh_key(scene, ANN)) == "Malformed"
        assert scene.service.epochs.registry.ends == {}
        assert await order(good) == "done"


# --- keys for the next epoch ----------------------------------------------------------------------


async def test_a_key_is_wanted_once_the_last_one_is_used(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        reply = await ask(scene, scene.epoch)
        assert reply.headers["basecagg-holder-key"] == "wanted"
        await announce(scene, fresh_key(scene, ANN))
        assert "basecagg-holder-key" not in (await ask(scene, scene.epoch)).headers
        assert "basecagg-holder-key" in (await ask(scene, scene.epoch, NAMES[1])).headers


async def test_the_operator_asks_for_keys_and_waiting_members_hear_it(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        await announce(scene, fresh_key(scene, ANN))
        waiting = asyncio.create_task(ask(scene, scene.epoch, wait=50))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await scene.operator.ask_for_keys([ANN])
        reply = await waiting
        assert news(reply) == []
        assert reply.headers["basecagg-holder-key"] == "wanted"


async def test_a_key_of_the_present_epoch_is_refused(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        assert scene.operator.epoch is not None
        used = scene.operator.epoch.holders[0].sealing_key
        with pytest.raises(Problem) as caught:
            await announce(scene, fresh_key(scene, ANN, sealing_key=used))
        assert (caught.value.status, caught.value.code) == (409, "KeyUsed")


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("Malformed", {"federation": "other"}),
        ("Malformed", {"name": NAMES[1]}),
        ("Malformed", {"sealing_key": bytes(32)}),
        ("Malformed", {"suite": "mlkem768-x25519"}),
    ],
)
async def test_a_bad_key_is_refused(tmp_path: Path, code: str, changes: dict[str, object]) -> None:
    async with direct(tmp_path) as scene:
        line = scene.member(ANN)
        with pytest.raises(Problem) as caught:
            await line.call("PUT", "/v1/holder-key", pack(fresh_key(scene, ANN, **changes)))
        assert caught.value.code == code
        forged = signed(fresh_key(scene, ANN), Identity.create())
        with pytest.raises(Problem) as caught:
            await line.call("PUT", "/v1/holder-key", pack(forged))
        assert caught.value.code == "BadSignature"
        with pytest.raises(Problem) as caught:
            await line.call("PUT", "/v1/holder-key", b"{}")
        assert caught.value.code == "Malformed"
        assert ANN not in scene.service.epochs.registry.holder_keys


# --- replaced members -----------------------------------------------------------------------------


async def test_a_replaced_member_is_a_holder_again_with_the_next_epoch(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        operator, old = scene.operator, scene.profiles[ANN]
        invitation = await operator.replace(ANN)
        assert invitation.after == 1  # no part in the present epoch
        with pytest.raises(Problem, match="no invitation"):  # the old token is worth nothing
            await scene.boss.enrol(to_json(enrolment(old)))
        scene.profiles[ANN] = Profile.open(tmp_path / "new-disk", invitation)
        for _ in range(2):
            await scene.boss.enrol(to_json(enrolment(scene.profiles[ANN])))
        assert await operator.admit_all() == [ANN]
        with pytest.raises(Problem):  # and so is the old key
            await scene.connect(ANN, old.identity).call("GET", "/v1/model")
        assert news(await ask(scene, "")) == [operator.epoch]  # without a credential
        await close(scene)
        await announce(scene, *(fresh_key(scene, name, after=1) for name in NAMES[1:]))
        second = await operator.start(SMALL)
        assert second.holders[0].signing_key == scene.profiles[ANN].identity.public_key
        assert [type(m) for m in news(await ask(scene, ""))] == [Epoch, Credential]


async def test_a_member_without_a_key_stops_the_next_epoch_unless_it_is_left_out(
    tmp_path: Path,
) -> None:
    async with direct(tmp_path) as scene:
        await close(scene)
        await announce(scene, *(fresh_key(scene, name, after=1) for name in NAMES[1:]))
        with pytest.raises(MissingHolders, match=f"{ANN}: its key was signed into epoch 1"):
            await scene.operator.start(SMALL)
        fewer = replace(SMALL, num_holders=6, max_dropouts=1)
        epoch = await scene.operator.start(fewer, without=[ANN])
        assert ANN not in [holder.name for holder in epoch.holders]
        assert [type(m) for m in news(await ask(scene, ""))] == [Epoch, Credential]


# --- older stores ---------------------------------------------------------------------------------
