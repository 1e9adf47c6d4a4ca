"""What the machines store: one small type for each kind, encoded as MessagePack; to read and to write it.

Bulk data (shares, sealed parcels, uploads, models) is stored by itself, apart from the small values that a
machine loads when it starts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from basecagg.errors import StorageError
from basecagg.protocol.effects import Persist
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.messages import (
    PROTOCOL_VERSION,
    Certificate,
    Dealing,
    EpochEnd,
    History,
    Link,
    MaskName,
    RecoveryRequest,
    Release,
    Slot,
    Ticket,
    encode,
)
from basecagg.protocol.ports import Discreet, Lock, Records


class Stored(Struct, kw_only=True, gc=False):
    """The base of all stored values."""


RecordType = TypeVar("RecordType", bound=Struct)


def write(kind: str, key: str, record: Struct, *, irreversible: bool = False) -> Persist:
    """The effect that stores a value or a message."""
    return Persist(kind, key, encode(record), irreversible)


def parse(value: bytes, record_type: type[RecordType]) -> RecordType:
    """Decode a stored value, or `StorageError`."""
    try:
        return msgspec.msgpack.decode(value, type=record_type)
    except msgspec.MsgspecError as error:
        raise StorageError(f"a stored {record_type.__name__} cannot be read: {error}") from None


def load(records: Records, kind: str, record_type: type[RecordType]) -> dict[str, RecordType]:
    """All values of a kind by their keys."""
    return {key: parse(value, record_type) for key, value in records.scan(kind)}


def load_readable(
    records: Records, kind: str, record_type: type[RecordType]
) -> dict[str, RecordType]:
    """All values of a kind that this version can read. Only for values that others can send again."""
    found: dict[str, RecordType] = {}
    for key, value in records.scan(kind):
        with suppress(StorageError):
            found[key] = parse(value, record_type)
    return found


def recall(
    records: Records, kind: str, record_type: type[RecordType], key: str = ""
) -> RecordType | None:
    """A value, or None if it was never stored. The empty key is that of kinds with a single value."""
    stored = records.read(kind, key)
    return None if stored is None else parse(stored, record_type)


def require(records: Records, kind: str, key: str) -> bytes:
    """The bytes of a value that must be there."""
    value = records.read(kind, key)
    if value is None:
        raise StorageError(f"{kind}/{key} is missing from the store")
    return value


def version_key(version: int) -> str:
    """A version as a key. Keys sort as their versions do."""
    return f"{version:016d}"


def bind(records: Records, epoch: bytes) -> list[Persist]:
    """Tie a participant's store to its epoch when it is first used: masks never cross epochs."""
    bound = records.read("epoch", "")
    if bound is None:
        return [Persist("epoch", "", epoch)]
    if bound != epoch:
        raise StorageError(
            f"this store belongs to epoch {bound.hex()[:12]}…, not to {epoch.hex()[:12]}…:"
            " open a new one for each epoch"
        )
    return []


class OwnMask(Discreet, Stored):
    """A contributor's mask: its seed (a secret) and its state."""

    name: MaskName
    dealing: str
    seed: bytes
    state: str

    def _shown(self) -> dict[str, object]:
        return {"name": self.name.key, "state": self.state}


class LastBase(Stored):
    """The newest version that a contributor has uploaded from, and the masks that it used."""

    version: int = -1
    uploads: frozenset[str] = frozenset()
    burned: frozenset[str] = frozenset()
    """The uploads that the server has signed to be burned."""
    epochs: int = 1
    """In how many epochs it has uploaded from this model, the present one included."""
    before: int = 0
    """How many uploads from this model it made in earlier epochs."""


class Locks(Stored):
    """The locks that seal the shares of one dealing again, until enough holders have confirmed them."""

    of_holders: list[Lock]


class Spent(Stored):
    """What a contributor's uploads have cost in privacy, in all epochs: its privacy ledger."""

    uploads: list[tuple[float, float, int]] = []
    """ρ, the rate of sampling, and the number of uploads with these two."""
    order: int | None = None
    """The order at which uploads of records add up, fixed by the first upload; None for users."""
    everything: bool = False
    """Whether the store was found to be an older copy, so that nobody knows what else was uploaded."""


class HeldShare(Stored):
    """A holder's note on one share. The share itself is stored under 'share' with the same key."""

    name: MaskName
    dealer_key: bytes
    parcel_hash: bytes
    state: str
    digest: bytes = b""
    ticket: bytes | None = None
    """The digest of the only ticket that it serves, if its dealing names one."""


class Summed(Stored):
    """A sum that was asked for: its contributors, each with the base version of its update."""

    version: int
    members: tuple[tuple[str, int], ...]


class Progress(Stored):
    """A holder's view of time: the highest version, the heads of recent versions, its slots."""

    version: int
    heads: dict[int, bytes]
    slots: dict[int, bytes] = {}
    """For each attempt at this version, the digest of the request that was endorsed or answered."""
    retired: bool = False


class RelayedMask(Stored):
    """The server's note on one mask: its dealer, its dealing and its state."""

    name: MaskName
    dealing: str
    dealer_key: bytes
    state: str


class Relay(Stored):
    """A dealing's parcels without the envelopes, which are stored under 'shipment' with the same key."""

    dealing: Dealing
    leaves: tuple[bytes, ...]
    sizes: tuple[int, ...]
    """Bytes of each envelope; they are stored one after the other."""


class Kept(Stored):
    """The part of a holder's receipt that was new to the server."""

    holder: int
    dealings: tuple[str, ...]


class BufferedUpdate(Struct, frozen=True, kw_only=True, gc=False):
    """One admitted update. Its payload is stored under 'upload' with the key of its mask."""

    name: MaskName
    base_version: int
    head: bytes
    content_hash: bytes
    signature: bytes = b""
    staleness: int = 0

    @classmethod
    def of(cls, ticket: Ticket) -> BufferedUpdate:
        """What its ticket says."""
        return cls(
            name=ticket.mask,
            base_version=ticket.base_version,
            head=ticket.head,
            content_hash=ticket.upload_hash,
            signature=ticket.signature,
            staleness=ticket.staleness,
        )

    def ticket(self, epoch: bytes) -> Ticket:
        """The ticket again."""
        told = self.name, self.base_version, self.head, self.content_hash
        return Ticket(epoch, *told, self.staleness, self.signature)


class Past(Stored):
    """The slot of the server's last request, and the certificate of the last sum that it opened."""

    slot: Slot | None = None
    opened: Certificate | None = None
    suspects: frozenset[str] = frozenset()
    """Contributors to sums of this version that were given up."""


class Made(Stored):
    """What a version was made from. Uploads and answers are stored by themselves."""

    release: Release
    request: RecoveryRequest
    certificate: Certificate | None


class EndedUpdate(Stored):
    """The end of an update in clear, kept while a late copy of it could be taken for a new one."""

    verdict: Literal["opened", "burned", "refused"]
    until: int


class ModelState(Stored):
    """The global model's recent history, the type of its numbers, and the count of admitted updates."""

    history: History
    dtype: str
    admitted: int = 0


class Membership(Stored):
    """The epoch that a participant is or was in, and whether it still is."""

    epoch: bytes
    state: str
    late_since: int = 0
    """Since when its own clock says that the epoch is over; 0 while it does not."""


class StoredSealingKey(Discreet, Stored):
    """A sealing key. It never leaves the store that it was made in, so that it is lost with the store."""

    secret: bytes
    state: str
    born: int
    """Its number, counted from the first key: an epoch destroys all keys that are older than its own."""

    def _shown(self) -> dict[str, object]:
        return {"state": self.state}


class Refusals(Stored):
    """How often a participant refused something of one kind, and the last reason."""

    count: int
    reason: str


Role: TypeAlias = Literal["both", "contributor", "holder", "analyst"]
HOLDS, CONTRIBUTES = ("both", "holder"), ("both", "contributor")
"""What the roles do in an epoch. An analyst does neither, and asks."""


class Person(Discreet, Stored):
    """A person whom the operator knows: invited with a token, then admitted with a key and its proof."""

    role: Role
    state: str
    after: int
    """The person takes no part in epochs up to this number."""
    token: bytes = b""
    signing_key: bytes = b""
    expires: int = 0
    """When the invitation expires, in seconds since 1970; 0: never."""

    def _shown(self) -> dict[str, object]:
        return {"role": self.role, "state": self.state}


class Expectation(Stored):
    """The model that the next epoch is to begin with: given, traced or accepted by the operator."""

    first: Link
    size: int


class Standing(Stored):
    """The last epoch that the operator signed, and the end of it."""

    epoch: Epoch | None = None
    end: EpochEnd | None = None
    expected: Expectation | None = None
    suspended: bool = False
    """Whether the store was found to be an older copy, and nobody has said yet how many epochs were signed."""

    @classmethod
    def read_back(cls, stored: bytes | None) -> Standing:
        """The stored standing, without an epoch of an older protocol; suspended if it was lost."""
        if stored is None:
            return cls(suspended=True)
        try:
            standing = parse(stored, cls)
        except StorageError:
            standing = cls(suspended=parse(stored, _Suspended).suspended)
        if standing.epoch is not None and standing.epoch.protocol != PROTOCOL_VERSION:
            standing = cls(suspended=standing.suspended)
        return standing


class _Suspended(Stored):
    """The part of a standing that every version of basecagg can read."""

    suspended: bool
