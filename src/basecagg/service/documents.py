"""What operator, server and users tell each other besides the protocol's messages: JSON, strictly typed."""

from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from basecagg.errors import DataError, quoted
from basecagg.options import Protection
from basecagg.protocol.audit_log import AuditEnd
from basecagg.protocol.messages import Digest, Name, PublicKey, Reason, Suite, Version
from basecagg.protocol.questions import State
from basecagg.protocol.stored import Role

Phase: TypeAlias = Literal["waiting", "open", "closing", "closed"]
Address: TypeAlias = Annotated[str, Meta(max_length=300, pattern=r"\Ahttps://[!-~]+\Z")]
"""Where a server is reached. Never without TLS."""
Moment: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
"""In seconds since 1970."""
_LAST_MOMENT = 253_402_300_799
Secret: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
ONLINE_SECONDS = 90.0
"""Who was heard of within so many counts as being there: an agent asks for mail twice a minute."""
MAX_KEY_BYTES = 4096
"""Of a frame with a holder's sealing key."""


def moment(seconds: float) -> str:
    """A moment for people. Their calendar ends with the year 9999, but a server may name a later one."""
    return f"{datetime.fromtimestamp(min(seconds, _LAST_MOMENT), UTC):%Y-%m-%d %H:%M} UTC"


def day(seconds: float) -> str:
    """The day of a moment."""
    return moment(seconds).partition(" ")[0]


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all documents."""


DocumentType = TypeVar("DocumentType")


def to_json(document: Struct) -> bytes:
    """A document as JSON; bytes become base64."""
    return msgspec.json.encode(document)


def from_json(data: bytes, kind: type[DocumentType]) -> DocumentType:
    """A document, or `DataError` with what is wrong in it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"not a valid document: {quoted(str(error))}") from None


# --- joining ------------------------------------------------------------------------------------


class Invitation(Document, frozen=True):
    """Operator → user, by a safe way: where to call, whom to believe, and a secret that admits once."""

    federation: Name
    name: Name
    role: Role
    url: Address
    operator_key: PublicKey
    token: Secret
    after: Version
    """Epochs up to this number are none of the user's, whoever shows them."""
    suite: Suite = "x25519"
    ca: str = ""
    """The private CA in PEM; empty where the public web PKI is used."""
    standbys: tuple[Address, ...] = ()
    """Where else the server may be: addresses of machines that take over."""
    expires: Moment = 0
    """When it admits nobody any more; 0 for never."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All places where the server may be."""
        return (self.url, *self.standbys)

    def __repr__(self) -> str:
        """Never show the token."""
        return f"Invitation({self.federation}, {self.name})"


class Enrolment(Document, frozen=True):
    """User → server → operator: my keys. The proof ties them to the invitation, so nobody can swap them."""

    name: Name
    signing_key: PublicKey
    holder_key: bytes
    """A frame with the `HolderKey` for the next epoch."""
    admission: Secret
    """Shows the server that an invitation stands behind this; derived from the token, which stays hidden."""
    proof: Secret
    """HMAC of name and signing key under the token: only user and operator can make it."""


class Admitted(Document, frozen=True):
    """Whom the operator admitted."""

    name: Name
    role: Role
    signing_key: PublicKey
    revoked: bool = False


# --- operator → server --------------------------------------------------------------------------


class Invite(Document, frozen=True, tag=True):
    """Expect an enrolment under this name; `admission_hash` is the SHA-256 of its admission."""

    name: Name
    admission_hash: Digest
    expires: Moment = 0


class Admit(Document, frozen=True, tag=True):
    """These keys belong to the federation; a contributor gets its credential for the present epoch."""

    member: Admitted
    credential: bytes | None = None


class Revoke(Document, frozen=True, tag=True):
    """Take nothing more from this member."""

    name: Name


class CloseEpoch(Document, frozen=True, tag=True):
    """Let the present epoch come to an end."""


class EndEpoch(Document, frozen=True, tag=True):
    """The operator's signed word that the present epoch is over: a frame with its `EpochEnd`."""

    frame: bytes


class AskForKeys(Document, frozen=True, tag=True):
    """Forget the sealing keys of these members, and let them know that others are wanted."""

    names: tuple[Name, ...]


class StartEpoch(Document, frozen=True, tag=True, omit_defaults=True):
    """A signed epoch (a frame) with the credentials (frames) of its contributors, by name."""

    epoch: bytes
    credentials: dict[str, bytes]
    last_version: Version | None = None
    """With this version the server closes the epoch by itself."""
    closes: Moment = 0
    """The server closes it then, by its own clock; 0 for never."""
    terms: bytes = b""
    """Of the study that it is: what its contract is the hash of. Empty for training."""


Order: TypeAlias = Invite | Admit | Revoke | CloseEpoch | EndEpoch | AskForKeys | StartEpoch


class Overview(Document, frozen=True, omit_defaults=True):
    """Server → operator: who waits, who is in, and where the epoch stands.

    The operator signs some of it, so it has the types of what is signed. Hashes are zeros without an epoch.
    """

    phase: Phase
    version: Version
    head: Digest
    """What the chain of the present epoch's models has come to."""
    model_size: int
    model_hash: Digest
    """Of the model that the next epoch begins with, which is of this version."""
    epoch_number: int
    epoch_id: Digest
    enrolments: tuple[Enrolment, ...]
    members: tuple[Admitted, ...]
    holder_keys: dict[str, bytes]
    """Frames, as they came; the operator checks them itself."""
    inconsistent: dict[str, int] = {}
    """How many answers of a holder were corrected in this epoch."""
    unapplied: dict[str, int] = {}
    """How many sums with a member were too long to be applied in this epoch."""
    trouble: str = ""
    """Why no sum is opened until the operator does something about it."""
    uptime: int = 0
    """Seconds since the server started."""
    seen: dict[str, int] = {}
    """How many seconds ago each member was last heard of, since the server started."""
    retired: tuple[str, ...] = ()
    """Holders that said since that they answer nothing more in this epoch: their stores were older copies."""
    last_version: Version | None = None
    """With this version the epoch closes by itself."""
    closes: Moment = 0
    """When it closes by itself; 0 for never."""
    protection: Protection = "basecagg"
    """Of the epoch: with 'none' the server sees every update."""


# --- studies ------------------------------------------------------------------------------------


class Stance(Document, frozen=True):
    """Centre → server: I answer this question; or not, for this reason."""

    number: Version
    consent: bytes = b""
    """The signed `Consent`."""
    refusal: Reason = ""


class Notice(Document, frozen=True):
    """Server → centres and analyst: the newest question for a version."""

    last: Version
    """The number of the newest question of all."""
    question: bytes = b""
    """As its analyst signed it; empty if there is none."""
    state: State = "asked"
    missing: tuple[Name, ...] = ()
    """Centres that have not said yet whether they answer."""
    refusals: dict[str, str] = {}
    """Why a centre does not answer, by its name."""
    consents: tuple[bytes, ...] = ()
    """Of all centres, as they signed them, once all have."""


class AuditPage(Document, frozen=True):
    """Server → operator: some entries of its audit log, and the log's signed end."""

    entries: list[bytes]
    end: AuditEnd | None
