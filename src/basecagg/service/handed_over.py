"""Files that the operator hands over: the server's folder, and an invitation to each user."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import msgspec

from basecagg.channels.identity import Identity
from basecagg.errors import DataError
from basecagg.service.documents import Document, Invitation, Secret, from_json, to_json
from basecagg.storage.disk import read_file, write_private

_PREFIX = b"basecagg-invitation:"
_SERVER_FILE = "server.json"


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


def read_server_folder(folder: Path) -> ServerFolder:
    """What is in the server's folder."""
    return from_json(read_file(folder / _SERVER_FILE, "the server's folder"), ServerFolder)


def renew_server_key(folder: Path) -> bytes:
    """Give the server in the folder another key for the next epoch; its public half goes to the operator."""
    old, fresh = read_server_folder(folder), Identity.create()
    renewed = msgspec.structs.replace(
        old, server=fresh.secret_bytes(), former=(old.server, *old.former)
    )
    write_private(folder / _SERVER_FILE, to_json(renewed))
    return fresh.public_key


def write_invitation(path: Path, invitation: Invitation) -> None:
    """An invitation as one line of text; it holds a secret."""
    line = _PREFIX + urlsafe_b64encode(to_json(invitation)) + b"\n"
    write_private(path, line)


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    line = read_file(path, "the invitation").strip()
    if not line.startswith(_PREFIX):
        raise DataError(f"{path} is not an invitation")
    try:
        document = urlsafe_b64decode(line.removeprefix(_PREFIX))
    except ValueError:
        raise DataError(f"{path} is damaged: ask for it again") from None
    return from_json(document, Invitation)
