"""A user's identity on its own machine: the invitation and the signing key.

It may be backed up. Sealing keys are not in it: they live and end with the store, see `protocol.key_ring`.
"""

import time
from pathlib import Path
from typing import Self

from basecagg.channels.identity import Identity
from basecagg.errors import DataError
from basecagg.parties.member import Pins
from basecagg.protocol.operator import admission, proof
from basecagg.service.connection import Connection
from basecagg.service.documents import Document, Enrolment, Invitation, day, from_json, to_json
from basecagg.service.signing import Caller
from basecagg.storage.disk import read_file, write_private


class _Stored(Document, frozen=True):
    invitation: Invitation
    signing: bytes

    def __repr__(self) -> str:
        return "_Stored(…)"


class Profile:
    """Everything of a user that a backup may hold."""

    def __init__(self, folder: Path, stored: _Stored) -> None:
        """Use `open`."""
        self.folder = folder
        self.invitation = stored.invitation
        self.identity = Identity.from_secret(stored.signing)

    @classmethod
    def open(cls, folder: Path, invitation: Invitation | None) -> Self:
        """The profile in the folder, or a new one with a fresh key for the invitation."""
        path = folder / "identity.json"
        if path.exists():
            stored = from_json(read_file(path, "the identity"), _Stored)
            if invitation is not None and invitation != stored.invitation:
                raise DataError(f"{folder} belongs to another invitation: choose another --state")
            return cls(folder, stored)
        if invitation is None:
            raise DataError(f"there is no identity in {folder}: join with an invitation")
        require_in_time(invitation)
        stored = _Stored(invitation=invitation, signing=Identity.create().secret_bytes())
        write_private(path, to_json(stored))
        return cls(folder, stored)

    @property
    def name(self) -> str:
        """The user's name in the federation."""
        return self.invitation.name

    def connect(self, *urls: str) -> Connection:
        """A line to the server, at these addresses or at the invitation's; requests on it are signed."""
        invitation = self.invitation
        caller = Caller(invitation.federation, invitation.name, self.identity)
        return Connection(urls or invitation.addresses, invitation.ca, caller)

    def pins(self, *, contributes: bool) -> Pins:
        """What the invitation promised, and as whom."""
        invitation = self.invitation
        return Pins(
            federation=invitation.federation,
            name=invitation.name,
            signing_key=self.identity.public_key,
            operator_key=invitation.operator_key,
            after=invitation.after,
            contributes=contributes,
        )

    def enrolment(self, holder_key: bytes) -> Enrolment:
        """What this user hands in to be admitted; `holder_key` is the frame of its first announcement."""
        token, key = self.invitation.token, self.identity.public_key
        return Enrolment(
            name=self.name,
            signing_key=key,
            holder_key=holder_key,
            admission=admission(token),
            proof=proof(token, self.invitation.federation, self.name, key),
        )


def require_in_time(invitation: Invitation) -> None:
    """Refuse an invitation that admits nobody any more."""
    if 0 < invitation.expires <= time.time():
        on = day(invitation.expires)
        raise DataError(f"this invitation expired on {on}: ask the operator for another")
