"""Callers who connect and say nothing, or not all of it: their lines are cut, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from service_harness import Federation, federation

from basecagg.errors import ChannelError
from basecagg.service.problems import Problem
from basecagg.service.server.open_connections import Crowd
from basecagg.service.server.serving import ServeOptions

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(fed: Federation, said: bytes = b"") -> Line:
    reader, writer = await asyncio.open_connection("127.0.0.1", fed.port, ssl=fed.tls)
    writer.write(said)
    await writer.drain()
    return reader, writer


async def answered(line: Line) -> bytes:
    """Everything until the server hangs up."""
    try:
        async with asyncio.timeout(20):
            return await line[0].read()
    except ConnectionError:
        return b""
    finally:
        line[1].transport.abort()


async def answered_early(fed: Federation, path: str = "/x") -> Line:
    """A line that owes five bytes of a body, though its request is answered."""
    line = await connect(
        fed, f"GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n".encode()
    )
    await line[0].readuntil(b"\r\n\r\n")
    return line


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/page.css", "/login", "/v1/model"])
async def test_a_body_that_nobody_reads_does_not_hold_the_line(tmp_path: Path, path: str) -> None:
    """The answer came before the body, and then a byte that stops uvicorn's own clock."""
    async with federation(tmp_path, header_seconds=1.0) as fed:
        line = await answered_early(fed, path)
        line[1].write(b"x")
        await answered(line)


async def test_a_body_that_ends_late_leaves_no_line_without_a_clock(tmp_path: Path) -> None:
    async with federation(tmp_path, header_seconds=1.0) as fed:
        line = await answered_early(fed)
        line[1].write(b"xxxxx")
        await answered(line)


async def test_a_body_that_comes_after_its_answer_does_no_harm(tmp_path: Path) -> None:
    """The control: who keeps talking keeps the line."""
    async with federation(tmp_path, header_seconds=5.0) as fed:
        line = await answered_early(fed)
        line[1].write(b"xxxxxGET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"ok\n" in await answered(line)


async def test_a_head_without_end_is_cut_off(tmp_path: Path) -> None:
    async with federation(tmp_path, header_seconds=20.0) as fed:
        line = await connect(fed, b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ")
        with suppress(ConnectionError):
            for _ in range(1000):  # 64 MB
                line[1].write(b"x" * 2**16)
                await line[1].drain()
        assert b"ok\n" not in await answered(line)
        many = b"".join(b"x-%d: y\r\n" % number for number in range(100))
        line = await connect(fed, b"GET /healthz HTTP/1.1\r\nconnection: close\r\n" + many)
        line[1].write(b"\r\n")  # the control: a head that ends
        assert b"ok\n" in await answered(line)


async def test_silent_connections_give_way_to_others(tmp_path: Path) -> None:
    async with federation(tmp_path, strangers=10) as fed:
        await fed.operator.look()  # this line belongs to somebody
        lines = [await connect(fed) for _ in range(40)]
        held = fed.uvicorn.server_state.connections
        assert len(held) <= 11
        closed = [line for line in lines if line[0].at_eof()]
        assert closed == lines[: len(closed)]  # the oldest ones
        owned = [line for line in held if line.client not in map(peer, lines)]
        assert len(owned) == 1
        await fed.operator.look()
        for _, writer in lines:
            writer.transport.abort()


SOME = pytest.param(60, 40, id="some")
MANY = pytest.param(8192, 8192, id="8192", marks=pytest.mark.soak)


@pytest.mark.parametrize(("count", "most"), [SOME, MANY])
@pytest.mark.parametrize("is_bounded", [True, False])
async def test_silent_connections_lock_nobody_out(
    tmp_path: Path, count: int, most: int, is_bounded: bool
) -> None:
    """The control: without a bound on strangers they are as many lines as there may be in all."""
    allow_open_files(2 * count + 500)
    usual = ServeOptions.strangers if count == most else 10

    strangers = usual if is_bounded else 10**6
    async with federation(tmp_path, strangers=strangers, header_seconds=600.0) as fed:
        assert fed.uvicorn is not None
        fed.uvicorn.config.limit_concurrency = most
        lines = [line for _ in range(count // 8) for line in await connect_some(fed, 8)]
        if is_bounded:
            assert (await fed.operator.look()).phase == "waiting"
        else:
            with pytest.raises(Problem, match="503"):
                await fed.operator.look()
        for _, writer in lines:
            writer.transport.abort()


async def connect_some(fed: Federation, count: int) -> list[Line]:
    return await asyncio.gather(*(connect(fed) for _ in range(count)))


def allow_open_files(count: int) -> None:
    """As many as this test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < count:
        pytest.skip(f"{count} open files are needed, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard}))\n"


@pytest.mark.parametrize(
    ("count", "may_ask_for_more"),
    [(400, True), (400, False), pytest.param(8192, True, marks=pytest.mark.soak)],
)
def test_callers_without_a_word_of_tls_use_up_no_files(
    tmp_path: Path, count: int, may_ask_for_more: bool
) -> None:
    """A shell allows 200 open files, though the system allows more. The control: it does not."""
    allow_open_files(count + 500)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if may_ask_for_more else 200
    fed = Federation(tmp_path)
    code = LIMITED.format(hard=hard) + "from basecagg.cli import main; main()"
    where = ("--host", "127.0.0.1", "--port", str(fed.port), "--anchors", str(tmp_path / "anchors"))
    command = [sys.executable, "-c", code, "serve", "--state", str(fed.options.folder), *where]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    async def story() -> bool:
        await fed.until(lambda: is_answered(fed), 90)
        await fed.operator.line.close()  # before: later it would free a file for the fresh line
        with ExitStack() as lines:
            for _ in range(count):
                lines.enter_context(socket.create_connection(("127.0.0.1", fed.port)))
            fed.operator.line = fed.operator.connect()
            answered = await is_answered(fed)
            await fed.operator.line.close()
        return answered

    try:
        assert asyncio.run(story()) == may_ask_for_more
    finally:
        server.kill()
        server.wait()
        fed.operator.close()


async def is_answered(fed: Federation) -> bool:
    try:
        async with asyncio.timeout(20):
            await fed.operator.look()
    except (ChannelError, TimeoutError):
        return False
    return True


def peer(line: Line) -> tuple[str, int]:
    return line[1].get_extra_info("sockname")


class Silent:
    """A line that says nothing."""

    is_idle = False

    def __init__(self, name: str, cut: list[str]) -> None:
        self._name, self._cut = name, cut

    def cut(self) -> None:
        self._cut.append(self._name)


def test_the_address_with_most_silent_lines_gives_way() -> None:
    cut: list[str] = []
    strangers = Crowd(4, spare_busy=False)
    flood = [Silent(f"flood-{number}", cut) for number in range(3)]
    for line in flood:
        strangers.enter("flood", line)
    home = Silent("home-0", cut)
    strangers.enter("home", home)
    assert cut == []
    strangers.enter("clinic", Silent("clinic-0", cut))
    assert cut == ["flood-0"]
    strangers.leave("flood", flood[0])
    strangers.leave("home", home)  # it has shown its key
    strangers.enter("school", Silent("school-0", cut))
    assert cut == ["flood-0"]
