"""A thousand TLS lines take little memory each: they share the buffer that asyncio would give to each."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import ssl
from asyncio.sslproto import SSLProtocol

from basecagg.service.operator.folder import create
from basecagg.service.server import process_memory, serving

LINES, BYTES = 12, 600_000


def test_the_server_has_one_for_all(monkeypatch):
    """Before its loop begins. A Python without this lever fails here."""
    seen = []

    async def serve(options: object) -> None:
        seen.append(SSLProtocol.get_buffer)

    threshold = gc.get_threshold()
    keep_asyncio_as_it_is(monkeypatch)
    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(process_memory, "_keep_blocks", lambda: None)
    monkeypatch.setattr(serving.signal, "signal", lambda *_: None)
    try:
        serving.run(type("Options", (), {"standby": False})())
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
    assert seen == [process_memory._shared_buffer]


def test_what_lines_say_at_the_same_time_is_kept_apart(monkeypatch, tmp_path):
    """Both ends are in this process, so all of them receive into the same memory, in turn."""
    keep_asyncio_as_it_is(monkeypatch)
    process_memory._share_buffer()
    operator = tmp_path / "operator"
    create(operator, "test", "https://127.0.0.1:1", anchor_folder=tmp_path / "anchors")
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(operator / "server/tls.pem", operator / "server/tls.key")
    there = ssl.create_default_context(cafile=operator / "ca.pem")
    buffers = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readexactly(BYTES)
        buffers.append(writer.transport._ssl_protocol._ssl_buffer)
        writer.write(hashlib.sha256(said).digest() + said)

    async def call(port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=there)
        said = os.urandom(BYTES)
        for at in range(0, BYTES, 50_000):
            writer.write(said[at : at + 50_000])
            await asyncio.sleep(0)
        heard = await reader.readexactly(32 + BYTES)
        writer.close()
        return heard == hashlib.sha256(said).digest() + said

    async def talk() -> list[bool]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=here) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.gather(*(call(port) for _ in range(LINES)))

    assert asyncio.run(talk()) == [True] * LINES
    assert [buffer is process_memory._RECEIVED for buffer in buffers] == [True] * LINES


def keep_asyncio_as_it_is(monkeypatch):
    for name in ("max_size", "get_buffer"):
        monkeypatch.setattr(SSLProtocol, name, getattr(SSLProtocol, name))
