"""A user's identity on its own machine: the invitation, the signing key, and the sealing keys of its epochs."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import msgspec

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.errors import DataError
from basecagg.service.documents import (
    Document,
    Enrolment,
    HolderKey,
    Invitation,
    from_json,
    to_json,
)
from basecagg.service.private_files import read_file, write_private


class _Stored(Document, frozen=True):
    invitation: Invitation
    signing: bytes
    sealing: tuple[bytes, ...]
    """The last one is for the next epoch."""

    def __repr__(self) -> str:
        return "_Stored(…)"


class Profile:
    """Everything of a user that outlives an epoch."""

    def __init__(self, folder: Path, stored: _Stored) -> None:
        """Use `open`."""
        self.folder = folder
        self._stored = stored
        self.invitation = stored.invitation
        self.identity = Identity.from_secret(stored.signing)

    @classmethod
    def open(cls, folder: Path, invitation: Invitation | None) -> Profile:
        """The profile in the folder, or a new one with fresh keys for the invitation."""
        path = folder / "identity.json"
        if path.exists():
            stored: _Stored = from_json(read_file(path, "the identity"), _Stored)
            if invitation is not None and invitation != stored.invitation:
                raise DataError(f"{folder} belongs to another invitation: choose another --state")
            return cls(folder, stored)
        if invitation is None:
            raise DataError(f"there is no identity in {folder}: join with an invitation")
        fresh = SealingSecret.create(invitation.suite).secret_bytes()
        secret = Identity.create().secret_bytes()
        profile = cls(folder, _Stored(invitation=invitation, signing=secret, sealing=(fresh,)))
        profile._save()
        return profile

    @property
    def name(self) -> str:
        """The user's name in the federation."""
        return self.invitation.name

    def sealing_secret(self, public_key: bytes) -> SealingSecret | None:
        """The secret of a sealing key that this user published, while it is kept."""
        secrets = (SealingSecret(self.invitation.suite, each) for each in self._stored.sealing)
        return next((secret for secret in secrets if secret.public_key == public_key), None)

    def next_holder_key(self) -> HolderKey:
        """The sealing key for the next epoch, signed."""
        public = SealingSecret(self.invitation.suite, self._stored.sealing[-1]).public_key
        said = HolderKey.statement(self.invitation.federation, self.name, public)
        return HolderKey(sealing_key=public, signature=self.identity.sign(said))

    def begin_epoch(self, sealing_key: bytes | None) -> None:
        """An epoch uses this key: prepare another for the next one, erase those of the past."""
        used = None if sealing_key is None else self.sealing_secret(sealing_key)
        kept = () if used is None else (used.secret_bytes(),)
        last = self._stored.sealing[-1]
        fresh = SealingSecret.create(self.invitation.suite).secret_bytes() if last in kept else last
        self._stored = msgspec.structs.replace(self._stored, sealing=(*kept, fresh))
        self._save()

    def enrolment(self) -> Enrolment:
        """What this user hands in to be admitted."""
        token = self.invitation.token
        key = self.identity.public_key
        return Enrolment(
            name=self.name,
            signing_key=key,
            holder_key=self.next_holder_key(),
            admission=admission(token),
            proof=proof(token, self.invitation.federation, self.name, key),
        )

    def _save(self) -> None:
        write_private(self.folder / "identity.json", to_json(self._stored))


def admission(token: bytes) -> bytes:
    """What the server may know of a token."""
    return hmac.digest(token, b"basecagg/admission", "sha256")


def admission_hash(token: bytes) -> bytes:
    """How the server recognises an admission before it has seen it."""
    return hashlib.sha256(admission(token)).digest()


def proof(token: bytes, federation: str, name: str, signing_key: bytes) -> bytes:
    """What ties a key to the invitation, for the operator: a server in between cannot make it."""
    said = msgspec.msgpack.encode(("basecagg", 1, "Enrolment", federation, name, signing_key))
    return hmac.digest(token, said, "sha256")
