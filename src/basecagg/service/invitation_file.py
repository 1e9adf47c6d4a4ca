"""An invitation as a line of text in a file: written by the operator, read by a user's agent."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

from basecagg.errors import DataError
from basecagg.service.documents import Invitation, from_json, to_json
from basecagg.service.private_files import read_file, write_private

_PREFIX = b"basecagg-invitation:"


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
    invitation: Invitation = from_json(document, Invitation)
    return invitation
