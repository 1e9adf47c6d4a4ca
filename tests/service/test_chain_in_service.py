"""The chain of models over HTTP: releases and parts for members, and a server that is caught."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result
from direct import direct
from participants import ANN, DEALERS, PARAMETERS, Town, quick  # noqa: F401 - a fixture
from puppet_server import PuppetServer, agent_of
from service_harness import SMALL, Federation, Nudge, federation

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.wire import limit_for, pack, unpack
from basecagg.commands import join, verify
from basecagg.errors import PassingFault, ServerCaught, TooLarge, TurnedAway
from basecagg.protocol.epoch import Agreement, Epoch, first_link
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import model_hash
from basecagg.protocol.messages import (
    Endorsement,
    History,
    Link,
    Parts,
    Receipt,
    Release,
    Shipment,
    Upload,
    Verdict,
    signed,
)
from basecagg.service.agent import agent as agent_module
from basecagg.service.agent.agent import AgentOptions
from basecagg.service.connection import Connection
from basecagg.service.framing import Numbered
from basecagg.service.problems import Problem
from basecagg.service.server.app import Api, App
from basecagg.service.server.limits import Limits
from basecagg.service.signing import Caller

pytestmark = pytest.mark.usefixtures("quick")
NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]


def line(fed: Federation, name: str) -> Connection:
    profile = fed.profile(name)
    caller = Caller("test", name, profile.identity)
    return Connection(fed.url, profile.invitation.ca, caller)


async def status_of(call: Awaitable[object]) -> int:
    try:
        await call
    except Problem as problem:
        return problem.status
    return 200


# --- releases and parts -------------------------------------------------------------------------------


async def test_members_get_what_versions_were_made_from(tmp_path: Path) -> None:
    async with federation(tmp_path, keep_versions=2) as fed:
        await fed.begin(NAMES)
        await fed.reach(4)
        await fed.close_epoch()  # or one more version comes while they are counted
        version, ann = await fed.version(), line(fed, NAMES[0])
        for kept in (version - 1, version):
            release = unpack((await ann.call("GET", f"/v1/releases/{kept}")).content, 10**6)
            assert isinstance(release, Release)
            assert release.history.last == kept
            limit = limit_for(Parts, SMALL)
            reply = await ann.call("GET", f"/v1/parts/{kept}", limit=limit)
            parts = unpack(reply.content, limit)
            assert isinstance(parts, Parts)
            assert parts.release == release
        # Those before are overwritten when updates come: a version may be there still, but not half of it.
        for older in range(version - 1):
            told = await status_of(ann.call("GET", f"/v1/releases/{older}"))
            assert told == await status_of(ann.call("GET", f"/v1/parts/{older}", limit=limit))
        for gone in (0, version + 1):
            for kind in ("releases", "parts"):
                assert await status_of(ann.call("GET", f"/v1/{kind}/{gone}")) == 404
        await ann.close()


@pytest.mark.parametrize("kind", ["releases", "parts"])
async def test_nobody_else_does(tmp_path: Path, kind: str) -> None:
    async with direct(tmp_path) as scene:
        stranger = scene.connect("user-0", Identity.create())
        assert await status_of(stranger.call("GET", f"/v1/{kind}/1")) == 401
        assert (await scene.client.get(f"/v1/{kind}/1")).status_code == 401
        # The operator makes the last version again before it goes on with it.
        for_operator = 404 if kind == "parts" else 403
        assert await status_of(scene.boss.call("GET", f"/v1/{kind}/1")) == for_operator
        member = scene.member("user-0")
        assert await status_of(member.call("GET", f"/v1/{kind}/1")) == 404
        assert await status_of(member.call("GET", f"/v1/{kind}/x")) == 400
        assert await status_of(member.call("GET", f"/v1/{kind}/-1")) == 404
        await scene.operator.revoke("user-0")
        assert await status_of(member.call("GET", f"/v1/{kind}/1")) == 403


@pytest.mark.usefixtures("limits_without_clock")
async def test_parts_are_rationed_per_member(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        api = Api(scene.service, Limits(member_rate=5.0, stranger_rate=1e6))
        app = App(scene.service, api.routes())
        scene.transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        greedy, other = scene.member("user-0"), scene.member("user-1")
        asked = [await status_of(greedy.call("GET", "/v1/parts/1")) for _ in range(4)]
        assert asked == [404, 404, 429, 429]
        assert await status_of(other.call("GET", "/v1/parts/1")) == 404
        # Other requests do not suffer.
        assert await status_of(greedy.call("GET", "/v1/releases/1")) == 404


# --- a model that was not released --------------------------------------------------------------------


class Impostor(PuppetServer):
    """Shows models, and signs what a test says about them."""

    def __init__(self, released: np.ndarray, shown: np.ndarray) -> None:
        super().__init__()
        self.released, self.shown = released, shown
        self.downloads = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        if path == "model":
            self.downloads += 1
            headers = {"basecagg-version": "0"}
            return httpx.Response(200, content=self.shown.astype("<f4").tobytes(), headers=headers)
        return await super().__call__(request)

    async def begin(self) -> None:
        """An epoch that begins with the model that was released."""
        await self.until(lambda: self.keys)
        epoch = self.town.epoch(self.keys[-1], 1, first=first_link(self.released))
        self.epoch = [epoch, self.town.credential(epoch)]
        await self.until(lambda: any(hasattr(m, "dealing") for m in self.inbox))
        masks = next(m for m in self.inbox if hasattr(m, "dealing")).dealing.masks
        self.post(*self.town.receipts(epoch, *masks))


@pytest.mark.parametrize("honest", [False, True], ids=["", "control"])
def test_a_model_that_was_not_released_is_not_trained_from(
    tmp_path: Path, honest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    zeros, train = np.zeros(PARAMETERS.model_size, np.float32), Nudge()
    server = Impostor(zeros, zeros if honest else zeros + 1)

    async def story() -> None:
        async with agent_of(server, tmp_path, train, after_failure=0.01):
            await server.begin()
            if honest:
                await server.received(Upload)
            else:
                # It looks again later, and is never convinced.
                await server.until(lambda: server.downloads >= 6)

    logging.getLogger("basecagg").propagate = True
    with caplog.at_level(logging.ERROR, "basecagg.agent"):
        asyncio.run(story())
    assert bool(train.calls) == honest
    said = [record.message for record in caplog.records]
    assert ("wrong model, not trained" in said) == (not honest)


# --- a version that was left behind while it came ------------------------------------------------------


async def no_more() -> None:
    """Nothing else happens."""


class Hurried(Impostor):
    """Hands out version 1 and then 3; something may happen while a model is on its way."""

    def __init__(self, model: np.ndarray) -> None:
        super().__init__(model, model)
        self.left = [1, 3]
        self.meanwhile: Callable[[], Awaitable[None]] = no_more

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        if path == "model" and not request.url.query:
            await self.meanwhile()
            headers = {"basecagg-version": str(self.left.pop(0))}
            return httpx.Response(200, content=self.shown.astype("<f4").tobytes(), headers=headers)
        if path.startswith("releases/"):
            return httpx.Response(200, content=self.release(int(path.removeprefix("releases/"))))
        return await super().__call__(request)

    def release(self, version: int) -> bytes:
        (epoch, _) = self.epoch
        assert isinstance(epoch, Epoch)
        history = Agreement(epoch, Ed25519Verifier()).beginning
        for each in range(1, version + 1):
            link = Link(each, model_hash(each, self.shown), bytes(32), bytes(32))
            history = history.after(link, 10)
        release = Release(epoch.id, history, (), ())
        return pack(signed(release, self.town.identities["server"]))


async def test_a_model_that_was_left_behind_while_it_came_is_trained_from(tmp_path: Path) -> None:
    """It was the newest when it was asked for. Else whoever has a thin line would never be in a sum."""
    server = Hurried(np.zeros(PARAMETERS.model_size, np.float32))

    async with agent_of(server, tmp_path, Nudge(), after_failure=3600.0) as agent:

        async def overtake() -> None:
            await agent._take(agent.member, [Numbered(0, server.release(3))])

        server.meanwhile = overtake
        await server.begin()
        await server.received(Upload)
        (upload,) = (m for m in server.inbox if isinstance(m, Upload))
        assert upload.ticket.base_version == 1


class Frozen(Hurried):
    """Signs versions, and goes on serving the first model of the epoch."""

    def __init__(self, model: np.ndarray, named: int, signs: bool) -> None:
        super().__init__(model)
        self.left, self.named, self._signs = [0] * 1000, named, signs

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        if path == "model" and request.url.query:
            return httpx.Response(304, headers={"basecagg-version": str(self.named)})
        if path.startswith("releases/") and not self._signs:
            return httpx.Response(404, json={"code": "NotFound", "reason": "it is not kept"})
        self.downloads += path == "model"
        return await super().__call__(request)


@pytest.mark.parametrize("named", [0, 2], ids=["control", ""])
def test_nobody_trains_from_a_model_below_the_newest_that_was_signed(
    tmp_path: Path, named: int, caplog: pytest.LogCaptureFixture
) -> None:
    server, train = Frozen(np.zeros(PARAMETERS.model_size, np.float32), named, signs=True), Nudge()

    async def story() -> None:
        async with agent_of(server, tmp_path, train, after_failure=0.01):
            await server.begin()
            await server.until(lambda: train.calls if named == 0 else server.downloads >= 6)

    logging.getLogger("basecagg").propagate = True
    with caplog.at_level(logging.ERROR, "basecagg.agent"):
        asyncio.run(story())
    assert bool(train.calls) == (named == 0)
    said = [record.message for record in caplog.records]
    assert ("wrong model, not trained" in said) == (named != 0)


async def test_whoever_was_turned_away_looks_for_a_newer_version_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody writes to a contributor that there is one."""
    monkeypatch.setattr(agent_module, "_LOOK", 0.05)
    server, train = Frozen(np.zeros(PARAMETERS.model_size, np.float32), 0, signs=True), Nudge()
    async with agent_of(server, tmp_path, train, after_failure=3600.0):
        await server.begin()
        await server.received(Upload)
        (first,) = (m.ticket for m in server.inbox if isinstance(m, Upload))
        server.post(Verdict(first.epoch, first.mask, "refused", "come back later"))
        await asyncio.sleep(0.5)  # another mask is ready
        assert train.calls == 1  # from version 0 it does not train again
        server.named, server.left = 1, [1] * 1000
        await server.received(Upload, 2)
        assert [m.ticket.base_version for m in server.inbox if isinstance(m, Upload)] == [0, 1]


async def test_an_unsigned_version_takes_nobody_out(tmp_path: Path) -> None:
    """One number of a million in a header: masks are dealt, and used, by what the server has signed."""
    server = Frozen(np.zeros(PARAMETERS.model_size, np.float32), 10**6, signs=False)
    async with agent_of(server, tmp_path, Nudge(), after_failure=0.01):
        await server.begin()
        await server.received(Upload)
        dealt = [m.dealing.expires for m in server.inbox if isinstance(m, Shipment)]
        assert set(dealt) == {PARAMETERS.mask_lifetime}


# --- a server that is caught ---------------------------------------------------------------------------


async def ask_twice(server: PuppetServer, folder: Path) -> None:
    async with agent_of(server, folder):
        epoch = await server.found()
        dealt = [server.town.deal(epoch, dealer) for dealer in DEALERS]
        tickets = [ticket for _, ticket in dealt]
        server.post(*(parcel for parcel, _ in dealt))
        await server.received(Receipt)
        server.post(server.town.request(epoch, tickets[:3]))
        await server.received(Endorsement)
        server.post(server.town.request(epoch, tickets[1:]))
        await server.until(lambda: False)


def test_evidence_is_left_in_a_file_and_the_agent_ends(tmp_path: Path) -> None:
    server = PuppetServer()
    with pytest.raises(ServerCaught) as caught:
        asyncio.run(ask_twice(server, tmp_path))
    (evidence,) = (tmp_path / ANN).glob("evidence-1-*.bin")
    assert f"basecagg verify {evidence}" in str(caught.value)
    arguments = [str(evidence), "--operator-key", server.town.key("operator").hex()]
    judged = CliRunner().invoke(verify.command, arguments)
    assert judged.exit_code == 1, judged.output  # a server is proven to have cheated
    stranger = [*arguments[:2], Identity.create().public_key.hex()]
    assert CliRunner().invoke(verify.command, stranger).exit_code == 2
    # One that was stored and not written before a crash is written at the next start; the agent waits then.
    kept = evidence.read_bytes()
    evidence.unlink()

    async def again() -> None:
        async with agent_of(server, tmp_path):
            looks = server.looks
            server.kicks = 1
            await server.until(lambda: server.looks > looks)

    server.inbox.clear()
    asyncio.run(again())
    assert evidence.read_bytes() == kept
    assert server.inbox == []  # nothing more is said to that server


def word_on(server: PuppetServer, epoch: Epoch, version: int, model: bytes) -> Release:
    """The server's word on a version, in a chain where all models have this hash."""
    history = Agreement(epoch, Ed25519Verifier()).beginning
    for each in range(1, version + 1):
        history = history.after(Link(each, model * 32, bytes(32), bytes(32)), 10)
    return signed(Release(epoch.id, history, (), ()), server.town.identities["server"])


@pytest.mark.parametrize("blinding", [True, False], ids=["", "control"])
def test_an_agent_is_not_blinded_by_a_far_version(tmp_path: Path, blinding: bool) -> None:
    server = PuppetServer()

    async def fork() -> None:
        async with agent_of(server, tmp_path):
            epoch = await server.found()
            link = Link(999_999, bytes(32), bytes(32), bytes(32))
            far = Release(epoch.id, History(999_998, bytes(32), (link,)), (), ())
            server.post(word_on(server, epoch, 3, b"X"))
            if blinding:
                server.post(signed(far, server.town.identities["server"]))
            server.post(word_on(server, epoch, 3, b"Y"))
            await server.until(lambda: False)

    with pytest.raises(ServerCaught):
        asyncio.run(asyncio.wait_for(fork(), 20))
    (evidence,) = (tmp_path / ANN).glob("evidence-1-*.bin")
    judged = CliRunner().invoke(verify.command, [str(evidence)])
    assert judged.exit_code == 1, judged.output


def test_a_full_disk_changes_nothing_about_a_server_that_was_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends all the same; the evidence is in its store, and becomes a file when there is room."""

    def full(path: Path, data: bytes) -> None:
        raise PassingFault(f"{path} cannot be written", "the disk is full: make room")

    server = PuppetServer()
    with monkeypatch.context() as patch:
        patch.setattr("basecagg.service.agent.local_member.write_private", full)
        with pytest.raises(ServerCaught, match=r"is kept, but .* full.* the next start writes it"):
            asyncio.run(asyncio.wait_for(ask_twice(server, tmp_path), 20))
    assert not list((tmp_path / ANN).glob("evidence-*"))

    async def again() -> None:
        async with agent_of(server, tmp_path):
            await server.until(lambda: list((tmp_path / ANN).glob("evidence-1-*.bin")))

    asyncio.run(again())


@pytest.mark.parametrize(("error", "status"), [(ServerCaught, 3), (TooLarge, 4), (TurnedAway, 4)])
def test_the_command_ends_with_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int
) -> None:
    """Told apart from a wrong option or a full disk, and not restarted by the unit that is shipped."""

    async def run(self: object) -> None:
        raise error("the server did it")

    result, _ = _join(monkeypatch, run, "--state", str(tmp_path))
    assert result.exit_code == status
    assert result.output.count("the server did it") == 1
    unit = Path(__file__).parents[2] / "examples" / "systemd" / "basecagg-agent.service"
    (lasting,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit.read_text(), re.M)
    assert str(status) in lasting.split()
    assert "1" not in lasting.split()  # a fault that may pass


def test_an_agent_made_in_python_insists_on_what_join_insists_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on making versions again, which is what catches a server that miscalculates."""

    async def run(self: object) -> None:
        pass

    result, made = _join(monkeypatch, run)
    assert result.exit_code == 0
    # Who only holds shares has no records of its own: epochs that hide single records suit it too.
    assert AgentOptions().floor == replace(made[0].floor, unit="user")
    assert AgentOptions().floor.share_to_verify(SMALL) == 1.0
    control = AgentOptions(floor=LocalFloor(consistency="certified", correctness="agreed"))
    assert control.floor.share_to_verify(SMALL) == 0.0


def _join(monkeypatch: pytest.MonkeyPatch, run: object, *options: str) -> tuple[Result, list[Any]]:
    """What the command says, and the options that it makes an agent with."""
    made: list[Any] = []
    invited = SimpleNamespace(name=ANN)
    agent, profile = "basecagg.service.agent.agent.Agent", "basecagg.service.agent.profile.Profile"
    monkeypatch.setattr(f"{agent}.run", run)
    monkeypatch.setattr(f"{agent}.__init__", lambda self, _, options, *__: made.append(options))
    monkeypatch.setattr(f"{profile}.open", lambda *_: SimpleNamespace(folder=Path(ANN)))
    monkeypatch.setattr(join, "load_kernels_quietly", lambda folder: None)
    monkeypatch.setattr(join, "read_invitation", lambda path: invited)
    return CliRunner().invoke(join.command, ["x", "--holder-only", *options]), made
