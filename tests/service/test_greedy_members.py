"""A member, even a revoked one, wants all lines or all bytes: others and the operator are served as before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from direct import NAMES, direct
from service_harness import GIVE_UP, SMALL, Federation, enrolment, federation
from test_hostile import send

from basecagg.channels.wire import pack
from basecagg.protocol.messages import Refusal
from basecagg.protocol.operator import OPERATOR
from basecagg.service.connection import Connection
from basecagg.service.documents import to_json
from basecagg.service.operator import office
from basecagg.service.problems import Problem
from basecagg.service.server.limits import ByteBudget, Limits
from basecagg.service.server.open_connections import OPERATOR_CONNECTIONS, Crowd
from basecagg.service.server.serving import MOST_CONNECTIONS
from basecagg.service.server.worker import MachineThread
from basecagg.service.signing import Caller, sign_request

MALLORY, ANN = NAMES[:2]
MEGABYTE = 2**20
EPOCH = ("GET", "/v1/epoch")
WAITING = ("GET", "/v1/mailbox?epoch={epoch}&wait=60")
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Scene:
    """A federation with an epoch, and members that are only keys: tests speak for them."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.lines: list[Line] = []

    async def settle(self) -> None:
        for name in NAMES:
            profile = self.fed.profile(name, await self.fed.invite(name))
            await self.fed.operator.line.enrol(to_json(enrolment(profile)))
        await self.fed.admit(NAMES)
        await self.fed.operator.set_model(np.zeros(SMALL.model_size, np.float32))
        await self.fed.operator.start(SMALL)

    def caller(self, name: str) -> Caller:
        return Caller("test", name, self.fed.profile(name).identity)

    def member(self, name: str) -> Connection:
        ca = (self.fed.folder / "operator" / "ca.pem").read_text()
        return Connection(self.fed.url, ca, self.caller(name))

    async def call(
        self, name: str, method: str, target: str, body: bytes = b"", upto: int | None = None
    ) -> Line:
        """A line with a request on it, perhaps without the end of its body."""
        assert self.fed.operator.epoch is not None
        target = target.format(epoch=self.fed.operator.epoch.id.hex())
        signature = sign_request(self.caller(name), method, target, body, time.time_ns() // 10**6)
        head = [f"{method} {target} HTTP/1.1", "host: x", f"authorization: {signature}"]
        head.append(f"content-length: {len(body)}\r\n\r\n")
        line = await asyncio.open_connection("127.0.0.1", self.fed.port, ssl=self.fed.tls)
        self.lines.append(line)
        line[1].write("\r\n".join(head).encode() + body[:upto])
        await line[1].drain()
        return line

    async def ask(self, name: str, method: str, target: str) -> int:
        """The status of a request whose line stays open."""
        return await status(await self.call(name, method, target))

    async def revoke(self, name: str) -> None:
        """As a command does: on a line of its own."""
        office, usual = self.fed.operator, self.fed.operator.line
        office.line = office.connect()
        try:
            await office.revoke(name)
        finally:
            await office.line.close()
            office.line = usual

    @property
    def open_lines(self) -> int:
        assert self.fed.uvicorn is not None
        return len(self.fed.uvicorn.server_state.connections)

    async def wait(self, name: str, count: int) -> list[Line]:
        """So many lines of a member on which an answer is awaited; the server has heard them all."""
        assert self.fed.uvicorn is not None
        tasks = self.fed.uvicorn.server_state.tasks
        before, lines = len(tasks), [await self.call(name, *WAITING) for _ in range(count)]
        await until(lambda: len(tasks) >= before + count)
        await asyncio.sleep(0)  # for their first step
        return lines


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP):
        while not condition():
            await asyncio.sleep(0.01)


async def status(line: Line) -> int:
    async with asyncio.timeout(20):
        return int((await line[0].readuntil(b"\r\n\r\n")).split()[1])


async def is_over(line: Line) -> bool:
    """The server has hung up, whatever it said before."""
    try:
        async with asyncio.timeout(20):
            await line[0].read()
    except ConnectionError:
        pass
    return True


@asynccontextmanager
async def settled(
    folder: Path, most_connections: int = MOST_CONNECTIONS, **serve: Any
) -> AsyncIterator[Scene]:
    async with federation(folder, **serve) as fed:
        scene = Scene(fed)
        await scene.settle()
        assert fed.uvicorn is not None
        fed.uvicorn.config.limit_concurrency = most_connections
        try:
            yield scene
        finally:
            for _, writer in scene.lines:
                writer.transport.abort()


# --- lines --------------------------------------------------------------------------------------


def test_all_rooms_together_are_fewer_lines_than_the_server_takes() -> None:
    assert Limits.strangers + Limits.connections + OPERATOR_CONNECTIONS < MOST_CONNECTIONS


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_a_revoked_member_fills_no_lines(tmp_path: Path, is_bounded: bool) -> None:
    """Each line shows its key once and stays. The control: nothing bounds those who may not call."""
    strangers = 10 if is_bounded else 10**6
    async with settled(tmp_path, most_connections=30, strangers=strangers) as scene:
        await scene.revoke(MALLORY)
        assert {await scene.ask(MALLORY, *EPOCH) for _ in range(25)} == {403}
        [await scene.call(MALLORY, *EPOCH) for _ in range(15)]
        if is_bounded:
            assert scene.open_lines <= 12
            await scene.revoke(ANN)
        else:
            await until(lambda: scene.open_lines >= 29)  # its own is one more
            with pytest.raises(Problem, match="503"):
                await scene.revoke(ANN)


@pytest.mark.usefixtures("limits_without_clock")
async def test_a_line_that_asks_too_often_stays_a_strangers(tmp_path: Path) -> None:
    async with settled(tmp_path, strangers=5, member_rate=2.0) as scene:
        asked = [await scene.ask(MALLORY, *EPOCH) for _ in range(40)]
        assert asked == [200] * 20 + [429] * 20
        assert scene.open_lines <= 20 + 5 + 1


async def test_a_members_oldest_idle_line_gives_way_to_its_next(tmp_path: Path) -> None:
    async with settled(tmp_path, member_connections=4) as scene:
        others = await scene.call(ANN, *EPOCH)
        assert await status(others) == 200
        lines = [await scene.call(MALLORY, *EPOCH) for _ in range(10)]
        assert {await status(line) for line in lines} == {200}
        assert all([await is_over(line) for line in lines[:6]])
        assert scene.open_lines == len([scene.fed.operator.line, others, *lines[6:]])


async def test_a_member_with_all_its_lines_in_use_is_refused_another(tmp_path: Path) -> None:
    async with settled(tmp_path, member_connections=4) as scene:
        waiting = await scene.wait(MALLORY, 4)
        assert [await scene.ask(MALLORY, *EPOCH) for _ in range(3)] == [429] * 3
        assert await scene.ask(ANN, *EPOCH) == 200
        waiting[0][1].transport.abort()

        async def has_room() -> bool:
            return await scene.ask(MALLORY, *EPOCH) == 200

        await scene.fed.until(has_room)


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_members_leave_lines_to_the_operator(tmp_path: Path, is_bounded: bool) -> None:
    """All of them together want all lines. The control: they may have as many as there are."""
    lines = 10 if is_bounded else 10**6
    async with settled(tmp_path, most_connections=25, connections=lines, strangers=10) as scene:
        [await scene.call(name, *WAITING) for name in NAMES[1:] for _ in range(5)]
        if is_bounded:
            await scene.revoke(MALLORY)
        else:
            await until(lambda: scene.open_lines >= 24)  # its own is one more
            with pytest.raises(Problem, match="503"):
                await scene.revoke(MALLORY)


async def test_who_is_revoked_is_hung_up_on(tmp_path: Path) -> None:
    async with settled(tmp_path) as scene:
        waiting = [*await scene.wait(MALLORY, 2), *await scene.wait(ANN, 1)]
        idle = await scene.call(MALLORY, *EPOCH)
        assert await status(idle) == 200
        await scene.revoke(MALLORY)
        assert all([await is_over(line) for line in waiting[:2]])
        assert await is_over(idle)
        assert not waiting[2][0].at_eof()
        assert await scene.ask(MALLORY, *EPOCH) == 403


class Puppet:
    """A line for the table."""

    def __init__(self, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.was_cut = False

    def cut(self) -> None:
        self.was_cut = True


def test_when_all_lines_are_taken_the_greediest_gives_way_or_nobody() -> None:
    crowd, busy, idle, one = Crowd(3, 3), Puppet(False), Puppet(True), Puppet(True)
    crowd.enter("greedy", busy)
    crowd.enter("greedy", idle)
    crowd.enter("ann", one)
    bob = Puppet(False)
    crowd.enter("bob", bob)
    assert (busy.was_cut, idle.was_cut, one.was_cut) == (False, True, False)
    crowd.leave("greedy", idle)  # again, when its socket is closed
    crowd.leave("ann", one)
    crowd.enter("greedy", Puppet(False))
    with pytest.raises(Problem, match="all lines"):
        crowd.enter("carl", Puppet(True))
    bob.is_idle = (
        True  # the greedy one has no line to give, and bob need not keep one that nobody uses
    )
    crowd.enter("carl", Puppet(True))
    assert bob.was_cut


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_one_member_cannot_take_all_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bounded: bool
) -> None:
    """Bodies that lack their last byte. The control: everybody may take what the operator may."""
    if not is_bounded:
        whole = ByteBudget.account
        monkeypatch.setattr(
            ByteBudget, "account", lambda self, owner, largest: whole(self, OPERATOR, largest)
        )
    budget = ByteBudget(8 * MEGABYTE)
    monkeypatch.setattr("basecagg.service.server.app.ByteBudget", lambda limit: budget)
    async with settled(tmp_path, body_grace=600.0) as scene:
        body, small = bytes(MEGABYTE), pack(Refusal("X", "y"))
        most = MEGABYTE - 1 if is_bounded else budget.limit
        while budget.used < most:
            more = budget.used + min(most - budget.used, MEGABYTE - 1)
            await scene.call(MALLORY, "POST", "/v1/messages", body, more - budget.used)
            await until(lambda more=more: budget.used == more)
        over = await scene.call(MALLORY, "POST", "/v1/messages", body, 100)
        assert await status(over) == 503
        ann = scene.member(ANN)
        if is_bounded:
            await ann.call("POST", "/v1/messages", small)
            await scene.revoke(MALLORY)
            await until(lambda: budget.used == 0)
        else:
            monkeypatch.setattr(office, "_REPEATS", 1)  # or it tries for a minute
            with pytest.raises(Problem, match="too many bytes"):
                await ann.call("POST", "/v1/messages", small)
            with pytest.raises(Problem, match="too many bytes"):
                await scene.revoke(MALLORY)
        await ann.close()


async def test_the_largest_message_fits_for_a_member_alone(tmp_path: Path) -> None:
    """A share of the budget would be less than it."""
    async with direct(tmp_path) as scene:
        largest = scene.service.message_limit()
        scene.api._budget = ByteBudget(2 * largest)
        caller = scene.caller(MALLORY)
        reply = await send(scene, caller, "POST", "/v1/messages", bytes(largest))
        assert (reply.status_code, reply.json()["code"]) == (400, "Malformed")  # it was read


def test_the_operator_has_bytes_that_nobody_else_can_take() -> None:
    budget = ByteBudget(800)
    with budget.account("ann", 400) as ann, budget.account("bob", 400) as bob:
        ann(400)
        with pytest.raises(Problem, match="of yours"):
            ann(1)
        bob(300)
        with pytest.raises(Problem, match="are on their way"):
            bob(1)
        with budget.account(OPERATOR, 0) as operator:
            operator(100)
    assert budget.used == 0
    with budget.account("ann", 400) as ann:
        ann(400)  # what was given back


@pytest.mark.parametrize(("owner", "most"), [("ann", 700), (OPERATOR, 800)])
def test_what_can_never_fit_is_refused_for_good(owner: str, most: int) -> None:
    budget = ByteBudget(800 * MEGABYTE)
    budget.require_possible(owner, most * MEGABYTE)
    with pytest.raises(Problem, match=r"--memory \d+ ") as caught:
        budget.require_possible(owner, most * MEGABYTE + 1)
    assert (caught.value.status, caught.value.retry_after) == (413, None)
    assert ByteBudget(budget.memory_for(900 * MEGABYTE) * MEGABYTE).room >= 900 * MEGABYTE
    assert ByteBudget((budget.memory_for(900 * MEGABYTE) - 1) * MEGABYTE).room < 900 * MEGABYTE


async def test_a_model_that_never_fits_says_which_option_to_change(tmp_path: Path) -> None:
    async with direct(tmp_path) as scene:
        scene.api._budget = ByteBudget(MEGABYTE)
        with pytest.raises(Problem, match="--memory") as caught:
            await scene.operator.set_model(np.zeros(MEGABYTE, np.float32))
        assert caught.value.status == 413
        with pytest.raises(Problem, match="close the present one"):  # it was read
            await scene.operator.set_model(np.zeros(MEGABYTE // 4, np.float32))


async def test_little_memory_for_an_epoch_is_said_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "basecagg.service.server.app._LOG.warning", lambda event, **facts: said.append(facts)
    )
    async with direct(tmp_path) as scene:
        assert said == []
        scene.api._budget = ByteBudget(2 * scene.service.message_limit())
        scene.api._compare_memory()
        (facts,) = said
        enough = int(facts["advice"].removeprefix("--memory "))
        scene.api._budget = ByteBudget(enough * MEGABYTE)
        scene.api._compare_memory()
        assert len(said) == 1


# --- messages before the machine ----------------------------------------------------------------


async def test_members_messages_do_not_keep_the_operator_out() -> None:
    thread = MachineThread(lambda: None, lambda: None, most_waiting=0)
    try:
        with pytest.raises(Problem, match="wait already"):
            await thread.do(lambda: None)
        assert await thread.do(lambda: "done", is_reserved=True) == "done"
    finally:
        await thread.close()
