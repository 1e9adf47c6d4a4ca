"""What the machines write down: one small type per kind of record, encoded as MessagePack.

Bulk data (shares, sealed parcels, uploads, models) are records of their own kinds, apart from the small ones
that a machine loads when it starts.
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
    encode,
)
from basecagg.protocol.ports import Discreet, Lock, Records


class Stored(Struct, kw_only=True, gc=False):
    """The base of all records."""


RecordType = TypeVar("RecordType", bound=Struct)


def write(kind: str, key: str, record: Struct, *, irreversible: bool = False) -> Persist:
    """The effect that writes a record or a message."""
    return Persist(kind, key, encode(record), irreversible)


def parse(value: bytes, record_type: type[RecordType]) -> RecordType:
    """A record read back."""
    try:
        return msgspec.msgpack.decode(value, type=record_type)
    except msgspec.MsgspecError as error:
        raise StorageError(f"a stored {record_type.__name__} cannot be read: {error}") from None


def load(records: Records, kind: str, record_type: type[RecordType]) -> dict[str, RecordType]:
    """All records of a kind by their keys."""
    return {key: parse(value, record_type) for key, value in records.scan(kind)}


def load_readable(
    records: Records, kind: str, record_type: type[RecordType]
) -> dict[str, RecordType]:
    """Those records of a kind that are not of an older basecagg; only for what others can say again."""
    found: dict[str, RecordType] = {}
    for key, value in records.scan(kind):
        with suppress(StorageError):
            found[key] = parse(value, record_type)
    return found


def recall(
    records: Records, kind: str, record_type: type[RecordType], key: str = ""
) -> RecordType | None:
    """A record, if it was written; most kinds that are read one by one have but one."""
    stored = records.read(kind, key)
    return None if stored is None else parse(stored, record_type)


def require(records: Records, kind: str, key: str) -> bytes:
    """A record that must be there."""
    value = records.read(kind, key)
    if value is None:
        raise StorageError(f"the record {kind}/{key} is missing from the store")
    return value


def version_key(version: int) -> str:
    """A version as a key, so that keys are in the order of versions."""
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
    """A contributor's mask: its seed (a secret) and how far it has come."""

    name: MaskName
    dealing: str
    seed: bytes
    state: str

    def _shown(self) -> dict[str, object]:
        return {"name": self.name.key, "state": self.state}


class LastBase(Stored):
    """The newest version that a contributor has uploaded from, and by which masks."""

    version: int = -1
    uploads: frozenset[str] = frozenset()
    burned: frozenset[str] = frozenset()
    """Those of them that the server has signed to be burned."""
    most: int = 0
    """Uploads from this model in all epochs, where an earlier one has seen it; 0 where none has."""


class Locks(Stored):
    """What seals the shares of one dealing again, as long as not enough holders have confirmed them."""

    of_holders: list[Lock]


class Spent(Stored):
    """What a contributor's uploads have cost it in privacy, in all epochs."""

    uploads: list[tuple[float, float, int]] = []
    """ρ and the rate of sampling, and how many uploads had them."""
    order: int | None = None
    """The order at which uploads of records add up, fixed by the first of them; None for users."""
    everything: bool = False
    """Whether this was found to be an older copy of itself: nobody knows what else was uploaded."""


class HeldShare(Stored):
    """A holder's note on one share; the share itself is the record 'share' of the same key."""

    name: MaskName
    dealer_key: bytes
    parcel_hash: bytes
    state: str
    digest: bytes = b""


class Summed(Stored):
    """A sum that was asked for, and who was in it with an update from which version."""

    version: int
    members: tuple[tuple[str, int], ...]


class Progress(Stored):
    """A holder's view of time: the highest version, the head of each recent one, the slots given away."""

    version: int
    heads: dict[int, bytes]
    slots: dict[int, bytes] = {}
    """The digest that each attempt of this version was given to."""
    certified: tuple[int, bytes, bytes] = (-1, b"", b"")
    """Version, head and digest of the last certificate."""
    retired: bool = False


class RelayedMask(Stored):
    """The server's note on one mask: who dealt it, in which dealing, and how far it has come."""

    name: MaskName
    dealing: str
    dealer_key: bytes
    state: str


class Relay(Stored):
    """What makes parcels of the envelopes of a shipment; those are the record 'shipment' of the same key."""

    dealing: Dealing
    leaves: tuple[bytes, ...]
    sizes: tuple[int, ...]
    """Bytes of each envelope: they lie one behind the other."""


class Kept(Stored):
    """A holder's receipt, as far as it told the server something new."""

    holder: int
    dealings: tuple[str, ...]


class BufferedUpdate(Struct, frozen=True, kw_only=True, gc=False):
    """One admitted update; its payload is the record 'upload' of the same mask."""

    name: MaskName
    base_version: int
    head: bytes
    content_hash: bytes
    signature: bytes = b""
    staleness: int = 0


class Past(Stored):
    """What the server asked the holders for last, and the certificate of what it opened last."""

    slot: Slot | None = None
    opened: Certificate | None = None
    suspects: frozenset[str] = frozenset()
    """Contributors to sums of this version that had to be given up."""


class Made(Stored):
    """What a version was made from, besides uploads and answers, which are records of their own."""

    release: Release
    request: RecoveryRequest
    certificate: Certificate | None


class EndedUpdate(Stored):
    """What became of an update in clear, as long as a late copy of it could be taken for a new one."""

    verdict: Literal["opened", "burned", "refused"]
    until: int


class ModelState(Stored):
    """The global model's recent history, how its numbers are kept, and updates admitted so far."""

    history: History
    dtype: str
    admitted: int = 0


class Membership(Stored):
    """A participant's life: which epoch it is or was in, and whether it still is."""

    epoch: bytes
    state: str
    late_since: int = 0
    """Since when its own clock has been saying that the epoch is over; 0 if it does not say so."""


class StoredSealingKey(Discreet, Stored):
    """A sealing key. It is born in the store and never leaves it, so that it shares the store's fate."""

    secret: bytes
    state: str
    born: int
    """Which one it is, counted from the first: an epoch destroys all that are older than its own."""

    def _shown(self) -> dict[str, object]:
        return {"state": self.state}


class Refusals(Stored):
    """How often a participant refused something of one kind, and why it did so the last time."""

    count: int
    reason: str


Role: TypeAlias = Literal["both", "contributor", "holder"]


class Person(Discreet, Stored):
    """Whom the operator knows: invited with a token, admitted once a key has come with its proof."""

    role: Role
    state: str
    after: int
    """Epochs up to this number are none of theirs."""
    token: bytes = b""
    signing_key: bytes = b""
    expires: int = 0
    """When the invitation admits nobody any more, in seconds since 1970; 0 for never."""

    def _shown(self) -> dict[str, object]:
        return {"role": self.role, "state": self.state}


class Expectation(Stored):
    """The model that the operator's next epoch begins with: given by it, traced, or accepted."""

    first: Link
    size: int


class Standing(Stored):
    """How far the operator has come: the last epoch that it signed, and its end."""

    epoch: Epoch | None = None
    end: EpochEnd | None = None
    expected: Expectation | None = None
    suspended: bool = False
    """Whether this was found to be an older copy of the operator, and nobody has said yet how far it was."""

    @classmethod
    def read_back(cls, stored: bytes | None) -> Standing:
        """As it was; without an epoch of an older basecagg, whose number is kept elsewhere. None was lost."""
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
    """What every version of basecagg says of an operator's standing."""

    suspended: bool
