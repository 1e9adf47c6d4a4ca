"""The operator's folder: its keys, its machine's store and its certificate authority.

All secret keys are in one file, which is replaced as a whole: one passphrase opens them, whatever crashes.
The folder stays with the operator. The server gets a folder of its own, without the operator's and the
enrolment key, so it can neither sign an epoch nor invent contributors.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from basecagg.channels.identity import Identity
from basecagg.errors import BASecAggError, DataError
from basecagg.protocol.audit_log import AuditLog
from basecagg.protocol.messages import Suite
from basecagg.protocol.operator import OPERATOR, found, require_name
from basecagg.service.documents import Document, from_json, to_json
from basecagg.service.handed_over import ServerFolder
from basecagg.service.operator import certificates
from basecagg.service.operator.custody import Passphrase, nobody_knows, seal, unseal
from basecagg.storage.disk import read_file, write_private
from basecagg.storage.participant_store import ParticipantStore

Stored: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=32, max_length=2048)]
"""A secret key: 32 bytes, or encrypted."""


class OperatorKeys(Document, frozen=True):
    """What the operator keeps in its folder's `operator.json`."""

    federation: str
    url: str
    suite: Suite
    operator: Stored
    enrolment: Stored
    server_key: bytes
    public_pki: bool
    authority: bytes = b""
    """The key of the certificate authority, PEM or encrypted."""
    standbys: tuple[str, ...] = ()
    """Where else the server may be."""
    format: Literal[2] = 2

    @property
    def addresses(self) -> tuple[str, ...]:
        """All places where the server may be."""
        return (self.url, *self.standbys)

    def __repr__(self) -> str:
        """Never show a key."""
        return "OperatorKeys(…)"


def create(
    folder: Path,
    federation: str,
    url: str,
    *,
    standbys: Sequence[str] = (),
    suite: Suite = "x25519",
    public_pki: bool = False,
    anchor_folder: Path | None = None,
    passphrase: str = "",
) -> Path:
    """Make the operator's folder, and in it the server's, which is to be moved to the server.

    With a passphrase no secret key of the operator is ever written in clear.
    """
    require_name(federation)
    for each in (url, *standbys):
        require_address(each)
    if any((folder / name).exists() for name in ("operator.json", "operator.db")):
        raise DataError(f"{folder} has an operator already")
    operator, enrolment, server = (Identity.create() for _ in range(3))
    authority = None if public_pki else certificates.make_authority(federation)
    stored = OperatorKeys(
        federation=federation,
        url=url,
        suite=suite,
        operator=seal(operator.secret_bytes(), passphrase),
        enrolment=seal(enrolment.secret_bytes(), passphrase),
        authority=seal(authority.key, passphrase) if authority else b"",
        server_key=server.public_key,
        public_pki=public_pki,
        standbys=tuple(standbys),
    )
    for_server = ServerFolder(
        federation=federation,
        operator_key=operator.public_key,
        server=server.secret_bytes(),
        page_token=secrets.token_urlsafe(24),
    )
    write_private(folder / "server" / "server.json", to_json(for_server))
    if authority is not None:
        write_private(folder / "ca.pem", authority.certificate)
    with _removed_on_failure(folder / "operator.db"), open_store(folder, anchor_folder) as store:
        noted = AuditLog(federation, OPERATOR, store).note(
            operator, int(time.time()), "founded", url=url
        )
        store.commit([*found(), *noted])
    write_private(folder / "operator.json", to_json(stored))
    if not public_pki:
        certify_server(folder, folder / "server", hosts_of(stored), lambda: passphrase)
    return folder / "server"


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """A store in which nobody was founded must not be taken for an operator's when `create` is tried again."""
    try:
        yield
    except BASecAggError:
        path.unlink(missing_ok=True)
        raise


def require_address(url: str) -> str:
    """The host in an address that users can call, or `DataError`."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # brackets, or a port that is none
        host = None
    if not url.startswith("https://") or not host:
        raise DataError(f"'{url}' is not an address like https://host:8443")
    return host


def hosts_of(stored: OperatorKeys) -> list[str]:
    """The names or addresses that the server's certificate has to be for."""
    return list(dict.fromkeys(map(require_address, stored.addresses)))


def keep_addresses(folder: Path, urls: Sequence[str]) -> OperatorKeys:
    """Write down where the server is from now on; give all that is stored."""
    for each in urls:
        require_address(each)
    path, (url, *standbys) = folder / "operator.json", urls
    moved = msgspec.structs.replace(read_keys(path), url=url, standbys=tuple(standbys))
    write_private(path, to_json(moved))
    return moved


def public_key(folder: Path, passphrase: Passphrase = nobody_knows) -> bytes:
    """The key that everybody trusts, of which the folder holds the secret half."""
    stored = read_keys(folder / "operator.json")
    return Identity.from_secret(unseal(stored.operator, passphrase)).public_key


def open_store(folder: Path, anchor_folder: Path | None) -> ParticipantStore:
    """The operator's records."""
    return ParticipantStore(folder / "operator.db", OPERATOR, anchor_folder=anchor_folder)


def certify_server(
    folder: Path, target: Path, hosts: list[str], passphrase: Passphrase = nobody_knows
) -> float:
    """A TLS certificate for the server, from the operator's own authority; give the second when it ends."""
    stored = read_keys(folder / "operator.json")
    if stored.public_pki:
        raise DataError(
            "this federation was founded with --public-pki, without an authority of its own: get a certificate"
            " as for any web server"
        )
    shown, key = read_file(folder / "ca.pem", "the CA"), unseal(stored.authority, passphrase)
    certified = certificates.make_server_certificate(certificates.Certified(shown, key), hosts)
    write_private(target / "tls.pem", certified.certificate)
    write_private(target / "tls.key", certified.key)
    return x509.load_pem_x509_certificate(certified.certificate).not_valid_after_utc.timestamp()


def change_passphrase(folder: Path, old: Passphrase, new: str) -> None:
    """Encrypt the keys in the folder with another passphrase; without one, store them as they are."""
    path = folder / "operator.json"
    stored = read_keys(path)
    keys = {"operator": stored.operator, "enrolment": stored.enrolment}
    if not stored.public_pki:
        keys["authority"] = stored.authority
    sealed = {name: seal(unseal(key, old), new) for name, key in keys.items()}
    write_private(path, to_json(msgspec.structs.replace(stored, **sealed)))


def read_keys(path: Path) -> OperatorKeys:
    """What `create` wrote."""
    if not path.exists():
        raise DataError(
            f"there is no operator in {path.parent}: `basecagg operator init` makes one, --folder names"
            " another folder"
        )
    return from_json(read_file(path, "the operator"), OperatorKeys)
