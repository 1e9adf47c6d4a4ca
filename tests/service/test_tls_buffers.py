"""A thousand TLS lines take little memory each: asyncio's buffers can be made smaller, and are."""

from __future__ import annotations

import gc
from asyncio.sslproto import SSLProtocol

from basecagg.service.server import memory, serving


def test_the_server_makes_them_smaller(monkeypatch):
    """Before its loop begins. A Python without this lever fails here."""
    seen = []

    async def serve(options: object) -> None:
        seen.append(SSLProtocol.max_size)

    theirs, threshold = 256 * 2**10, gc.get_threshold()
    monkeypatch.setattr(SSLProtocol, "max_size", theirs)
    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(memory, "_keep_blocks", lambda: None)
    monkeypatch.setattr(serving.signal, "signal", lambda *_: None)
    try:
        serving.run(type("Options", (), {"standby": False})())
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
    assert seen == [memory.TLS_BUFFER]
    assert theirs > memory.TLS_BUFFER
