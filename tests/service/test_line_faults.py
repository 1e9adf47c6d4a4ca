"""A call that does not get through says why: which fault of the certificate, or the proxy, or nobody there."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from service_harness import all_hung_up, federation, uncollected

from basecagg.channels.identity import Identity
from basecagg.service.connection import Connection, Unreachable, UntrustedServer
from basecagg.service.operator import certificates
from basecagg.service.operator.certificates import (
    Certified,
    make_authority,
    make_server_certificate,
)
from basecagg.service.signing import Caller
from free_ports import free_port


def play(story: Callable[[], Awaitable[None]]) -> None:
    """Run it, and hang up for everybody who is still on a line at the end."""

    async def whole() -> None:
        with uncollected():
            await story()
            await all_hung_up()

    asyncio.run(whole())


OURS, THEIRS = make_authority("ours"), make_authority("theirs")


@asynccontextmanager
async def listening(folder: Path, shown: Certified) -> AsyncIterator[str]:
    """Somebody who shows a certificate, and says nothing that is worth hearing."""
    (folder / "tls.pem").write_bytes(shown.certificate)
    (folder / "tls.key").write_bytes(shown.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem", folder / "tls.key")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port, ssl=context):
        yield f"https://127.0.0.1:{port}"


async def call(url: str, ca: Certified = OURS) -> int:
    connection = Connection(url, ca.certificate.decode(), Caller("f", "n", Identity.create()))
    try:
        return (await connection.call("GET", "/")).status
    finally:
        await connection.close()


def at(moment: timedelta, make: Callable[[], Certified], monkeypatch: pytest.MonkeyPatch):
    """What `make` makes when the clock of certificates is off by so much."""

    class Elsewhen(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + moment

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "datetime", Elsewhen)
        return make()


HERE = ["127.0.0.1"]
FAULTS = {
    "wrong CA": (THEIRS, HERE, timedelta()),
    "has expired": (OURS, HERE, timedelta(days=-1000)),
    "not valid yet": (OURS, HERE, timedelta(days=10)),
    "another name": (OURS, ["127.0.0.2"], timedelta()),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_bad_certificate_is_called_what_it_is(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, hosts, moment = FAULTS[words]
    shown = at(moment, lambda: make_server_certificate(authority, hosts), monkeypatch)

    async def story() -> None:
        async with listening(tmp_path, shown) as url:
            with pytest.raises(UntrustedServer, match=words) as caught:
                await call(url)
            assert url in str(caught.value)

    play(story)


def test_a_good_certificate_is_believed(tmp_path: Path) -> None:
    """The control: the same listener, with nothing wrong."""

    async def story() -> None:
        async with listening(tmp_path, make_server_certificate(OURS, HERE)) as url:
            assert await call(url) == 204

    play(story)


def test_where_nobody_listens_or_nobody_speaks_tls_it_is_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        """What every resolver says; who asks one needs a network, and its patience."""
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def story() -> None:
        with pytest.raises(Unreachable, match="nobody listens"):
            await call(f"https://127.0.0.1:{free_port()}")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", unknown)
            with pytest.raises(Unreachable, match="name is not known"):
                await call("https://nowhere.invalid:8443")
        port = free_port()

        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(plain, "127.0.0.1", port):
            with pytest.raises(Unreachable, match="no TLS"):
                await call(f"https://127.0.0.1:{port}")

    play(story)


# --- proxies --------------------------------------------------------------------------------------


class Proxy:
    """A proxy as hospitals have them: it takes CONNECT, and sees nothing but the address."""

    def __init__(self, verdict: bytes = b"200 OK") -> None:
        self.asked: list[str] = []
        self.verdict = verdict
        self.port = free_port()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.partition("\r\n")[0])
        writer.write(b"HTTP/1.1 " + self.verdict + b"\r\n\r\n")
        if self.verdict.startswith(b"200"):
            host, port = head.split()[1].rsplit(":", 1)
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(2**16):
        sink.write(data)
        await sink.drain()
    sink.close()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[Proxy], None]:
    for name in ("no_proxy", "NO_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return lambda proxy: monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")


def test_calls_go_through_the_proxy_of_the_environment(
    tmp_path: Path, proxied: Callable[[Proxy], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with federation(tmp_path) as fed:
            proxy = Proxy()
            proxied(proxy)
            async with await asyncio.start_server(proxy, "127.0.0.1", proxy.port):
                assert (await fed.operator.look()).phase == "waiting"
                await fed.operator.line.close()
                assert proxy.asked == [f"CONNECT 127.0.0.1:{fed.port} HTTP/1.1"]
                monkeypatch.setenv("NO_PROXY", "127.0.0.1")
                fed.operator.line = fed.operator.connect()
                await fed.operator.look()
                assert len(proxy.asked) == 1

    play(story)


def test_a_proxy_that_refuses_is_named(proxied: Callable[[Proxy], None]) -> None:
    async def story() -> None:
        proxy = Proxy(b"407 Proxy Authentication Required")
        proxied(proxy)
        async with await asyncio.start_server(proxy, "127.0.0.1", proxy.port):
            with pytest.raises(Unreachable, match=r"proxy does not let.*407"):
                await call("https://127.0.0.1:1")

    play(story)


def test_a_proxy_that_looks_inside_is_not_believed(
    tmp_path: Path, proxied: Callable[[Proxy], None]
) -> None:
    """One that breaks TLS open shows a certificate of its own, which no invitation names."""

    async def story() -> None:
        async with listening(tmp_path, make_server_certificate(THEIRS, HERE)) as inspector:
            proxy = Proxy()
            proxied(proxy)
            async with await asyncio.start_server(proxy, "127.0.0.1", proxy.port):
                with pytest.raises(UntrustedServer, match="wrong CA"):
                    await call(inspector)
            assert proxy.asked

    play(story)
