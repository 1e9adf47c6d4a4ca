"""A thousand TLS lines take little memory each: asyncio's buffers can be made smaller, and are."""

from __future__ import annotations

from asyncio.sslproto import SSLProtocol

from basecagg.service.server import serving


def test_the_server_makes_them_smaller(monkeypatch):
    """Before its loop begins. A Python without this lever fails here."""
    seen = []

    async def serve(options: object) -> None:
        seen.append(SSLProtocol.max_size)

    before = SSLProtocol.max_size
    monkeypatch.setattr(SSLProtocol, "max_size", before)
    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(serving, "_give_memory_back", lambda: None)
    monkeypatch.setattr(serving.signal, "signal", lambda *_: None)
    serving.run(type("Options", (), {"standby": False})())
    assert seen == [serving._TLS_BUFFER]
    assert before > serving._TLS_BUFFER
