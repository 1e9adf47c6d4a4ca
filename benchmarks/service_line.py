"""A light HTTP/1.1 client for the load: one TLS connection, signed requests, no more than that."""

from __future__ import annotations

import asyncio
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
        self.sent_at = 0.0
        """When the last byte of the last request left this process."""
        self.answered_at = 0.0
        """When the first bytes of its answer came."""

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
            self._streams[1].transport.set_write_buffer_limits(0)
        reader, writer = self._streams
        stamp = time.time_ns() // 1_000_000
        signature = sign_request(self._caller, method, target, body, stamp)
        request = (
            f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {signature}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(request.encode() + body)
        await writer.drain()
        self.sent_at = time.perf_counter()
        head = await reader.readuntil(b"\r\n\r\n")
        self.answered_at = time.perf_counter()
        return await _read(head, reader)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _read(head: bytes, reader: asyncio.StreamReader) -> Reply:
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    length = 0 if status in (204, 304) else int(headers.get("content-length", "0"))
    return Reply(status, headers, await reader.readexactly(length))
