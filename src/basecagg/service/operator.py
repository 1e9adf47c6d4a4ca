"""The operator's side: a folder with its keys and the list of members, and what it does with them.

The folder stays with the operator. The server gets a folder of its own, without the operator's and the
enrolment key, so it can neither sign an epoch nor invent contributors.
"""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from basecagg.channels.identity import Ed25519Verifier, Identity, enrol
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import DataError, LocalProtocolError
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import Epoch, Holder, draft_epoch
from basecagg.protocol.messages import Suite
from basecagg.service.certificates import Certified, make_authority, make_server_certificate
from basecagg.service.connection import Connection
from basecagg.service.documents import (
    OPERATOR,
    RESERVED,
    Admit,
    CloseEpoch,
    Document,
    Enrolment,
    HolderKey,
    Invitation,
    Invite,
    Member,
    Order,
    Overview,
    Revoke,
    Role,
    Secret,
    StartEpoch,
    from_json,
    to_json,
)
from basecagg.service.private_files import read_file, write_private
from basecagg.service.profile import admission_hash, proof
from basecagg.service.signing import Caller
from basecagg.service.training import Vector

_INVITATION_PREFIX = b"basecagg-invitation:"


class Person(Document, frozen=True):
    """Whom the operator knows: invited with a token, admitted once a key has come with its proof."""

    name: str
    role: Role
    token: bytes
    signing_key: bytes = b""
    revoked: bool = False

    def __repr__(self) -> str:
        """Never show the token."""
        return f"Person({self.name})"


class _Stored(Document, frozen=True):
    federation: str
    url: str
    suite: Suite
    operator: Secret
    enrolment: Secret
    server_key: bytes
    public_pki: bool
    people: dict[str, Person]
    epoch: bytes = b""
    """The last epoch that was signed, as a frame."""

    def __repr__(self) -> str:
        return "_Stored(…)"


class ServerFolder(Document, frozen=True):
    """What the server needs to know, in its folder's `server.json`."""

    federation: str
    operator_key: bytes
    server: Secret
    page_token: str

    def __repr__(self) -> str:
        """Never show the key or the token."""
        return f"ServerFolder({self.federation})"


def create(
    folder: Path, federation: str, url: str, *, suite: Suite = "x25519", public_pki: bool = False
) -> Path:
    """Make the operator's folder, and in it the server's, which is to be moved to the server."""
    host = urlsplit(url).hostname
    if not url.startswith("https://") or host is None:
        raise DataError(f"'{url}' is not an address like https://host:8443")
    if (folder / "operator.json").exists():
        raise DataError(f"{folder} has an operator already")
    operator, enrolment, server = (Identity.create() for _ in range(3))
    stored = _Stored(
        federation=federation,
        url=url,
        suite=suite,
        operator=operator.secret_bytes(),
        enrolment=enrolment.secret_bytes(),
        server_key=server.public_key,
        public_pki=public_pki,
        people={},
    )
    for_server = ServerFolder(
        federation=federation,
        operator_key=operator.public_key,
        server=server.secret_bytes(),
        page_token=secrets.token_urlsafe(24),
    )
    write_private(folder / "server" / "server.json", to_json(for_server))
    if not public_pki:
        authority = make_authority(federation)
        write_private(folder / "ca.pem", authority.certificate)
        write_private(folder / "ca.key", authority.key)
    write_private(folder / "operator.json", to_json(stored))
    if not public_pki:
        certify_server(folder, folder / "server", [host])
    return folder / "server"


def certify_server(folder: Path, target: Path, hosts: list[str]) -> None:
    """A TLS certificate for the server, from the operator's own authority."""
    authority = Certified(
        read_file(folder / "ca.pem", "the CA"), read_file(folder / "ca.key", "the CA's key")
    )
    certified = make_server_certificate(authority, hosts)
    write_private(target / "tls.pem", certified.certificate)
    write_private(target / "tls.key", certified.key)


def write_invitation(path: Path, invitation: Invitation) -> None:
    """An invitation as one line of text; it holds a secret."""
    line = _INVITATION_PREFIX + urlsafe_b64encode(to_json(invitation)) + b"\n"
    write_private(path, line)


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    line = read_file(path, "the invitation").strip()
    if not line.startswith(_INVITATION_PREFIX):
        raise DataError(f"{path} is not an invitation")
    try:
        document = urlsafe_b64decode(line.removeprefix(_INVITATION_PREFIX))
    except ValueError:
        raise DataError(f"{path} is damaged: ask for it again") from None
    invitation: Invitation = from_json(document, Invitation)
    return invitation


class Operator:
    """The operator at work. Every change is in its folder before the server hears of it."""

    def __init__(self, folder: Path) -> None:
        """Open the folder that `create` made."""
        self.folder = folder
        path = folder / "operator.json"
        self._stored: _Stored = from_json(read_file(path, "the operator"), _Stored)
        self._identity = Identity.from_secret(self._stored.operator)
        self._enrolment = Identity.from_secret(self._stored.enrolment)

    @property
    def people(self) -> dict[str, Person]:
        """Everybody who was ever invited."""
        return dict(self._stored.people)

    @property
    def epoch(self) -> Epoch | None:
        """The last epoch that was signed."""
        if not self._stored.epoch:
            return None
        epoch = unpack(self._stored.epoch, MAX_CONTROL_BYTES)
        assert isinstance(epoch, Epoch)
        return epoch

    def connect(self) -> Connection:
        """A line to the server; requests on it are signed with the operator's key."""
        s = self._stored
        return Connection(s.url, self._ca(), Caller(s.federation, OPERATOR, self._identity))

    # --- members ----------------------------------------------------------------------------------

    async def invite(self, connection: Connection, name: str, role: Role) -> Invitation:
        """An invitation, the same again while nobody has used it. It admits one key under one name."""
        known = self._stored.people.get(name)
        used = known is not None and (known.signing_key or known.revoked or known.role != role)
        if name in RESERVED or used:
            raise DataError(f"the name {name} is taken")
        token = known.token if known else os.urandom(32)
        s = self._stored
        invitation = msgspec.convert(
            {"federation": s.federation, "name": name, "role": role, "url": s.url}
            | {"operator_key": self._identity.public_key, "token": token}
            | {"suite": s.suite, "ca": self._ca()},
            Invitation,
        )
        self._remember(Person(name=name, role=role, token=token))
        await self._order(connection, Invite(name=name, admission_hash=admission_hash(token)))
        return invitation

    async def admit_all(self, connection: Connection) -> list[str]:
        """Admit everybody who has enrolled with an invitation's proof; give their names."""
        overview = await self.look(connection)
        admitted = []
        for enrolment in overview.enrolments:
            person = self._stored.people.get(enrolment.name)
            if person is None or not self._is_proven(person, enrolment):
                continue
            person = msgspec.structs.replace(person, signing_key=enrolment.signing_key)
            self._remember(person)
            in_epoch = overview.phase in ("open", "closing")
            await self._order(
                connection,
                Admit(member=_member(person), credential=self._credential(person, in_epoch)),
            )
            admitted.append(person.name)
        return admitted

    async def admit(
        self, connection: Connection, name: str, role: Role, signing_key: bytes
    ) -> None:
        """Admit a key that the operator got in person, without an invitation."""
        if name in RESERVED or name in self._stored.people:
            raise DataError(f"the name {name} is taken")
        person = Person(name=name, role=role, token=b"", signing_key=signing_key)
        self._remember(person)
        in_epoch = (await self.look(connection)).phase in ("open", "closing")
        credential = self._credential(person, in_epoch)
        await self._order(connection, Admit(member=_member(person), credential=credential))

    def _is_proven(self, person: Person, enrolment: Enrolment) -> bool:
        """The key came from who has the token; and it is the first that did, or the same again."""
        expected = proof(person.token, self._stored.federation, person.name, enrolment.signing_key)
        same = person.signing_key in (b"", enrolment.signing_key)
        return same and not person.revoked and hmac.compare_digest(enrolment.proof, expected)

    async def revoke(self, connection: Connection, name: str) -> None:
        """Take nothing more from a member. Other holders forget it with the next epoch."""
        person = self._stored.people.get(name)
        if person is None:
            raise DataError(f"nobody is called {name}")
        self._remember(msgspec.structs.replace(person, revoked=True))
        await self._order(connection, Revoke(name=name))

    # --- epochs -----------------------------------------------------------------------------------

    async def look(self, connection: Connection) -> Overview:
        """What the server says about itself."""
        reply = await connection.call("GET", "/v1/operator")
        overview: Overview = from_json(reply.content, Overview)
        return overview

    def holders(self, overview: Overview) -> list[Holder]:
        """Admitted holders with their sealing keys for the next epoch, as they signed them."""
        found = []
        for person in self._stored.people.values():
            if person.role == "contributor" or person.revoked or not person.signing_key:
                continue
            key = overview.holder_keys.get(person.name)
            if key is not None and self._is_signed(person, key):
                found.append(Holder(person.name, person.signing_key, key.sealing_key))
        return sorted(found, key=lambda holder: holder.name)

    async def set_model(self, connection: Connection, model: Vector) -> None:
        """The model that the first epoch begins with."""
        await connection.call("PUT", "/v1/model", np.asarray(model, "<f4").tobytes())

    async def start(
        self, connection: Connection, parameters: ProtocolParameters, learning_rate: float = 1.0
    ) -> Epoch:
        """Sign the next epoch with the holders who are there, and start it."""
        overview = await self.look(connection)
        if overview.phase in ("open", "closing"):
            raise LocalProtocolError("an epoch is open: rotate, or close it first")
        epoch = draft_epoch(
            federation=self._stored.federation,
            parameters=parameters,
            holders=self.holders(overview),
            server_key=self._stored.server_key,
            enrolment_key=self._enrolment.public_key,
            operator=self._identity,
            number=overview.epoch_number + 1,
            first_version=overview.version,
            suite=self._stored.suite,
        )
        self._save(epoch=pack(epoch))
        credentials = {
            person.name: credential
            for person in self._stored.people.values()
            if (credential := self._credential(person, in_epoch=True)) is not None
        }
        await self._order(
            connection,
            StartEpoch(epoch=pack(epoch), credentials=credentials, learning_rate=learning_rate),
        )
        return epoch

    async def close(self, connection: Connection) -> None:
        """Let the present epoch end. Its last full buffer opens; the rest is given up."""
        await self._order(connection, CloseEpoch())

    def _credential(self, person: Person, in_epoch: bool) -> bytes | None:
        epoch = self.epoch
        known = person.signing_key and not person.revoked and person.role != "holder"
        if epoch is None or not in_epoch or not known:
            return None
        return pack(enrol(self._enrolment, epoch.id, person.name, person.signing_key))

    def _is_signed(self, person: Person, key: HolderKey) -> bool:
        said = HolderKey.statement(self._stored.federation, person.name, key.sealing_key)
        return Ed25519Verifier().verify(person.signing_key, said, key.signature)

    # --- the folder and the line ------------------------------------------------------------------

    async def _order(self, connection: Connection, order: Order) -> Overview:
        reply = await connection.call("POST", "/v1/operator", to_json(order))
        overview: Overview = from_json(reply.content, Overview)
        return overview

    def _remember(self, person: Person) -> None:
        self._save(people=self._stored.people | {person.name: person})

    def _save(self, **changes: object) -> None:
        self._stored = msgspec.structs.replace(self._stored, **changes)
        write_private(self.folder / "operator.json", to_json(self._stored))

    def _ca(self) -> str:
        return "" if self._stored.public_pki else (self.folder / "ca.pem").read_text()


def _member(person: Person) -> Member:
    return Member(
        name=person.name,
        role=person.role,
        signing_key=person.signing_key,
        revoked=person.revoked,
    )
