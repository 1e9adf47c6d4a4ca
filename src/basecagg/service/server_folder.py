"""The server's folder: made by the operator, read by the server."""

from __future__ import annotations

from pathlib import Path

import msgspec

from basecagg.channels.identity import Identity
from basecagg.service.documents import Document, Secret, from_json, to_json
from basecagg.service.private_files import read_file, write_private


class ServerFolder(Document, frozen=True):
    """What the server needs to know, in its folder's `server.json`."""

    federation: str
    operator_key: bytes
    server: Secret
    page_token: str
    former: tuple[Secret, ...] = ()
    """Keys that the server signed with before; an epoch that is not over yet may name one."""

    def __repr__(self) -> str:
        """Never show the key or the token."""
        return f"ServerFolder({self.federation})"


def renew_server_key(folder: Path) -> bytes:
    """Give the server in the folder another key for the next epoch; its public half goes to the operator."""
    path, fresh = folder / "server.json", Identity.create()
    old: ServerFolder = from_json(read_file(path, "the server's folder"), ServerFolder)
    renewed = msgspec.structs.replace(
        old, server=fresh.secret_bytes(), former=(old.server, *old.former)
    )
    write_private(path, to_json(renewed))
    return fresh.public_key
