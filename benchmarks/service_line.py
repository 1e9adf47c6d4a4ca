"""A light HTTP/1.1 client for the load: one TLS connection, signed requests, no more than that."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import NamedTuple

from basecagg.service.signing import Caller, sign_request

_BUFFER = 2**20


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Line:
    """One caller's connection, opened when first needed."""

    def __init__(self, port: int, tls: ssl.SSLContext, caller: Caller) -> None:
        """Call the server at this port of this machine."""
        self._port = port
        self._tls = tls
        self._caller = caller
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.answered_at = 0.0
        """When the first bytes of the last answer came."""

    async def call(self, method: str, target: str, body: bytes = b"") -> Reply:
        """One request and its reply; an idle connection that was closed is opened again."""
        try:
            return await self._exchange(method, target, body)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return await self._exchange(method, target, body)

    async def _exchange(self, method: str, target: str, body: bytes) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._tls, limit=_BUFFER
            )
        reader, writer = self._streams
        writer.write(_request(self._caller, method, target, body))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        self.answered_at = time.perf_counter()
        return await _read(head, reader)

    def post_and_wait(self, target: str, body: bytes) -> tuple[float, float]:
        """On a line of its own, in this thread: when the last byte was handed to the system, and answered."""
        request = _request(self._caller, "POST", target, body)
        with (
            socket.create_connection(("127.0.0.1", self._port)) as plain,
            self._tls.wrap_socket(plain, server_hostname="127.0.0.1") as line,
        ):
            line.sendall(request)
            sent = time.perf_counter()
            answer = line.recv(4096)
            answered = time.perf_counter()
        assert b" 204 " in answer[:20], answer
        return sent, answered

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _request(caller: Caller, method: str, target: str, body: bytes) -> bytes:
    signature = sign_request(caller, method, target, body, time.time_ns() // 1_000_000)
    head = (
        f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {signature}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _read(head: bytes, reader: asyncio.StreamReader) -> Reply:
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    length = 0 if status in (204, 304) else int(headers.get("content-length", "0"))
    return Reply(status, headers, await reader.readexactly(length))
