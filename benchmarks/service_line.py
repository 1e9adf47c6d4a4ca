"""A light HTTP/1.1 client for the load: one TLS connection, signed requests, no more than that."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import NamedTuple

from basecagg.service.signing import Caller, sign_request


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

    async def call(self, method: str, target: str, body: bytes = b"") -> Reply:
        """One request and its reply; an idle connection that was closed is opened again."""
        try:
            return await self._exchange(method, target, body)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return await self._exchange(method, target, body)

    async def _exchange(self, method: str, target: str, body: bytes) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        reader, writer = self._streams
        stamp = time.time_ns() // 1_000_000
        signature = sign_request(self._caller, method, target, body, stamp)
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {signature}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.writelines([head.encode(), body])
        await writer.drain()
        return await _read(reader)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _read(reader: asyncio.StreamReader) -> Reply:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    length = 0 if status in (204, 304) else int(headers.get("content-length", "0"))
    return Reply(status, headers, await reader.readexactly(length))
