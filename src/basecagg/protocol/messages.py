"""Every message of the protocol, as data.

A message is an array on the wire, so it has one encoding only. What is signed is `statement(message)`: it is
derived from *all* fields but the signature, which always comes last, so that none can be forgotten. A field of
the type `Bulk` enters by its `content_hash`. Each kind has a tag that stays when its class is renamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from basecagg.errors import LocalProtocolError

if TYPE_CHECKING:
    from basecagg.protocol.ports import Signer

PROTOCOL_VERSION = 7
MAX_HOLDERS = 100_000
MAX_MASKS = 256
"""Of one dealing."""

Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
SealingKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=2048)]
Signature: TypeAlias = Annotated[bytes, Meta(max_length=64)]
_BULK = Meta(extra={"signed by": "hash"})
Bulk: TypeAlias = Annotated[bytes, _BULK]
"""A payload that may be large: a statement has its hash."""
Suite: TypeAlias = Literal["x25519", "mlkem768-x25519"]
"""How shares are sealed."""
Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=64, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._@-]*\Z")
]
"""It may become the name of a file, so it does not begin with a dot."""
Version: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
MAX_LINKS = 10_000
"""Versions that one history may tell of."""
Attempt: TypeAlias = Annotated[int, Meta(ge=0, lt=2**16)]
"""Which request of a version it is: the first is 0, and each burn makes one more."""
Slot: TypeAlias = tuple[Version, Attempt]
"""One sum of one version."""
HolderIndex: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_HOLDERS)]
Endorsed: TypeAlias = tuple[bytes, int, int, bytes, bytes]
"""Epoch, version, attempt, head and digest of a request."""
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
MAX_REASON = 500
Reason: TypeAlias = Annotated[str, Meta(max_length=MAX_REASON)]


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The base of all messages: frozen, hashable, one canonical encoding.

    `gc=False`, as for stored values, effects and letters: they refer to nothing that could refer back, and the
    garbage collector took 5 % of a busy process's time to look at them.
    """


class MaskName(Message, frozen=True, tag="MaskName", order=True, dict=True, gc=True):
    """A mask's name within its epoch. It says when the mask expires, so no name ever comes back.

    Differs from the paper: its (i, t_i) collides when a user downloads one version twice.
    """

    contributor: Name
    serial: Annotated[bytes, Meta(min_length=16, max_length=16)]
    expires: Version = 0
    """The last version that the mask may be used at; 0 for an update in clear, which no mask hides."""

    @cached_property
    def key(self) -> str:
        """The name as a key of stores and logs."""
        until = f"-{self.expires}" if self.expires else ""
        return f"{self.contributor}/{self.serial.hex()}{until}"


# --- enrolment --------------------------------------------------------------------------------


class Credential(Message, frozen=True, tag="Credential"):
    """The enrolment key's word that a contributor belongs to the epoch."""

    epoch: Digest
    contributor: Name
    signing_key: PublicKey
    signature: Signature = b""


class HolderKey(Message, frozen=True, tag="HolderKey"):
    """Participant → operator: seal to this key in the next epoch that I join."""

    federation: Name
    name: Name
    suite: Suite
    sealing_key: SealingKey
    after: Version
    """The number of the last epoch that the participant joined."""
    signature: Signature = b""


class EpochEnd(Message, frozen=True, tag="EpochEnd"):
    """Operator → participants: this epoch is over. Nothing else ends one before its time."""

    epoch: Digest
    last_version: Version
    head: Digest
    """What the chain of its models had come to."""
    signature: Signature = b""


# --- the chain of models ------------------------------------------------------------------------

_CHAIN = b"basecagg/chain/"


class Chain(Struct, frozen=True):
    """A hash chain: what stands in it can be neither changed, moved nor taken out without changing its head.

    head₀ = H(purpose), head_n = H(head_{n−1}, entry_n). A head vouches for all entries up to it. That no more
    follow is said by the last entry, or by a signature over the head.
    """

    head: bytes
    length: Annotated[int, Meta(ge=0, lt=2**62)]

    @classmethod
    def begin(cls, purpose: str) -> Chain:
        """An empty chain. Chains of different purposes have no head in common."""
        return cls(hashlib.sha256(_CHAIN + purpose.encode()).digest(), 0)

    def after(self, entry: bytes) -> Chain:
        """The chain with one more entry. All heads have one length, so nothing is ambiguous."""
        return Chain(hashlib.sha256(self.head + entry).digest(), self.length + 1)

    def statement(self, purpose: str) -> bytes:
        """What is signed to say that the chain ends here."""
        return _CHAIN + purpose.encode() + b"/end/" + self.length.to_bytes(8, "big") + self.head


class Link(Message, frozen=True, tag="Link"):
    """One version of the model, and what it came from."""

    version: Version
    model_hash: Digest
    state_hash: Digest
    """Of the server optimiser's state; zeros if it has none."""
    digest: Digest
    """Of the request whose sum made it."""


class History(Message, frozen=True, tag="History", dict=True, gc=True):
    """The last links of the chain: head_t = H(head_{t−1}, link_t), beginning with the head of some version."""

    version: Version
    """Of the root."""
    root: Digest
    links: Annotated[tuple[Link, ...], Meta(max_length=MAX_LINKS)] = ()

    @cached_property
    def heads(self) -> dict[int, bytes]:
        """The head of every version that it tells of."""
        chain, heads = Chain(self.root, self.version), {self.version: self.root}
        for link in self.links:
            chain = chain.after(encode(link))
            heads[chain.length] = chain.head
        return heads

    @property
    def last(self) -> int:
        """t: the version that it has come to."""
        return self.version + len(self.links)

    @property
    def head(self) -> bytes:
        """head_t."""
        return self.heads[self.last]

    @property
    def opened(self) -> frozenset[bytes]:
        """The digests of the sums that its versions were made from."""
        return frozenset(link.digest for link in self.links)

    @property
    def is_whole(self) -> bool:
        """Whether each link is of the version after the one before."""
        versions = [link.version for link in self.links]
        return versions == list(range(self.version + 1, self.last + 1))

    def after(self, link: Link, most: int) -> History:
        """With one more link; the root moves up so that there are `most` of them, but one at least."""
        longer = History(self.version, self.root, (*self.links, link))
        root = max(self.version, longer.last - max(1, most))
        return History(root, longer.heads[root], longer.links[root - self.version :])


class Release(Message, frozen=True, tag="Release"):
    """Server → members: the model of version t, and what it was made from."""

    epoch: Digest
    history: History
    answers: Annotated[tuple[tuple[HolderIndex, Digest], ...], Meta(max_length=MAX_HOLDERS)]
    """The `signed_digest` of each answer that opened the sum, by holder: none can be changed unseen."""
    wrong: Annotated[tuple[HolderIndex, ...], Meta(max_length=MAX_HOLDERS)]
    """Whose answers did not agree with the others."""
    applied: bool = True
    """Whether the model moved by the sum: one that is longer than honest members can make it is not applied."""
    signature: Signature = b""


# --- dealing: phase 1, offline encoding and sharing of masks ----------------------------------


class Dealing(Message, frozen=True, tag="Dealing", dict=True, gc=True):
    """The dealer's signature over what it sealed to the N holders, through the root of a hash tree.

    It is for one mask or several: a holder gets its shares of all of them in one envelope.
    """

    epoch: Digest
    masks: Annotated[tuple[MaskName, ...], Meta(min_length=1, max_length=MAX_MASKS)]
    root: Digest
    credential: Credential
    ticket: Digest | None = None
    """Of the ticket that it comes with: its mask hides no other update. None for masks dealt ahead."""
    signature: Signature = b""

    @cached_property
    def key(self) -> str:
        """What a dealing goes by in stores."""
        return digest_of(self).hex()

    @property
    def expires(self) -> int:
        """The last version that its masks may be used at: the same for all of them."""
        return self.masks[0].expires


class Shipment(Message, frozen=True, tag="Shipment"):
    """Contributor → server: a dealing with its N envelopes, in the order of the holders."""

    dealing: Dealing
    leaves: Annotated[tuple[Digest, ...], Meta(min_length=2, max_length=MAX_HOLDERS)]
    sealed: Annotated[tuple[bytes, ...], Meta(min_length=2, max_length=MAX_HOLDERS)]


class Parcel(Message, frozen=True, tag="Parcel"):
    """Server → holder: its envelope, with what ties it to the signed root: a path, or the top of the tree."""

    dealing: Dealing
    holder: HolderIndex
    path: Annotated[tuple[Digest, ...], Meta(max_length=27)]
    sealed: Bulk


class Receipt(Message, frozen=True, tag="Receipt", dict=True, gc=True):
    """Holder → server → contributors: these shares are kept."""

    epoch: Digest
    holder: HolderIndex
    masks: Annotated[tuple[MaskName, ...], Meta(min_length=1, max_length=100_000)]
    signature: Signature = b""

    @cached_property
    def statement(self) -> bytes:
        """What is signed, for all the dealers to whom a server passes it on."""
        return _statement(self)


# --- uploading: phase 2, training, quantising, masking ----------------------------------------


class Ticket(Message, frozen=True, tag="Ticket"):
    """The dealer's word on one upload: which mask, trained from which model, which bytes."""

    epoch: Digest
    mask: MaskName
    base_version: Version
    head: Digest
    """What the chain of models had come to at that version, as the dealer knows it."""
    upload_hash: Digest
    staleness: Version = 0
    """τ̂: how old the dealer knew the update to be when it weighed it; 0 with field weights."""
    signature: Signature = b""


class Upload(Message, frozen=True, tag="Upload"):
    """Contributor → server: the masked update Δ̃ as little-endian 32-bit words, with its ticket."""

    ticket: Ticket
    words: Bulk


class Contribution(Message, frozen=True, tag="Contribution"):
    """Contributor → server, in one message: a dealing with its N envelopes, and the update that its mask hides.

    A contributor that grows masks from keys comes once, and may be gone while holders confirm their shares.
    """

    dealing: Dealing
    leaves: Annotated[tuple[Digest, ...], Meta(min_length=2, max_length=MAX_HOLDERS)]
    sealed: Annotated[tuple[bytes, ...], Meta(min_length=2, max_length=MAX_HOLDERS)]
    ticket: Ticket
    words: Bulk

    @property
    def shipment(self) -> Shipment:
        """The part that is for the holders."""
        return Shipment(self.dealing, self.leaves, self.sealed)


class PlainUpdate(Message, frozen=True, tag="PlainUpdate"):
    """Contributor → server: an update (before − after) in clear, for protection 'none' (FedBuff)."""

    ticket: Ticket
    """As for a masked update. Its mask is only a name, and never expires."""
    values: Bulk
    """The numbers of the update, little-endian."""
    credential: Credential | None = None
    """Whose key signed the ticket. None where the driver knows who sent it, and nobody else is to check."""

    @classmethod
    def unsigned(
        cls, mask: MaskName, base_version: int, head: bytes, values: bytes, staleness: int = 0
    ) -> PlainUpdate:
        """An update in no epoch, which its driver vouches for: in simulations and on Flower."""
        told = base_version, head, content_hash(values), staleness
        return cls(Ticket(bytes(32), mask, *told), values)


class Verdict(Message, frozen=True, tag="Verdict"):
    """Server → contributor: what became of an update. 'opened', 'burned' and 'refused' end the mask.

    An update is 'parked' until enough holders confirm their shares, and then 'admitted'. If they take too long
    it is 'returned': it may come again, byte for byte, and is not a new update then.
    """

    epoch: Digest
    mask: MaskName
    outcome: Literal["parked", "admitted", "returned", "refused", "opened", "burned"]
    reason: Reason = ""


# --- opening: phase 3, one-shot recovery of the sum -------------------------------------------


class Certificate(Message, frozen=True, tag="Certificate"):
    """`quorum` endorsements of one digest: no other for its slot, or with one of its masks, can have them."""

    epoch: Digest
    version: Version
    attempt: Attempt
    head: Digest
    digest: Digest
    signatures: Annotated[tuple[tuple[HolderIndex, Signature], ...], Meta(max_length=MAX_HOLDERS)]

    @property
    def endorsed(self) -> Endorsed:
        """What was endorsed."""
        return self.epoch, self.version, self.attempt, self.head, self.digest


class RecoveryRequest(Message, frozen=True, tag="RecoveryRequest", dict=True, gc=True):
    """Server → holders: open the weighted sum of these K updates at version t."""

    epoch: Digest
    version: Version
    attempt: Attempt
    history: History
    """The links of the last τ_max versions, up to this one."""
    tickets: Annotated[tuple[Ticket, ...], Meta(min_length=1, max_length=MAX_HOLDERS)]
    previous: Annotated[Certificate | None, _BULK]
    """Of the request that opened the version before."""
    signature: Signature = b""

    @cached_property
    def digest(self) -> bytes:
        """What holders endorse: all that the server signed."""
        return digest_of(self)

    @property
    def endorsed(self) -> Endorsed:
        """The content of an endorsement, in the order of an `Endorsement`'s fields."""
        return self.epoch, self.version, self.attempt, self.history.head, self.digest

    @property
    def masks(self) -> tuple[MaskName, ...]:
        """S(t): the masks of the members."""
        return tuple(ticket.mask for ticket in self.tickets)


class Endorsement(Message, frozen=True, tag="Endorsement"):
    """Holder → server: I endorse this digest, and no other for its slot or with any of its masks."""

    epoch: Digest
    version: Version
    attempt: Attempt
    head: Digest
    digest: Digest
    holder: HolderIndex
    signature: Signature = b""


def certificate_of(request: RecoveryRequest, votes: tuple[tuple[int, bytes], ...]) -> Certificate:
    """The signatures of those who endorsed the request."""
    return Certificate(*request.endorsed, votes)


def endorsement_of(asked: RecoveryRequest | Certificate, holder: int) -> Endorsement:
    """The endorsement that a holder signs for the request, or has signed in the certificate."""
    return Endorsement(*asked.endorsed, holder)


class CertifiedRequest(Message, frozen=True, tag="CertifiedRequest"):
    """Server → holders: enough of you endorsed this request; now answer it."""

    request: RecoveryRequest
    certificate: Certificate


class ShortTicket(Message, frozen=True):
    """A ticket without what the request around it says: the epoch, and the heads of recent versions."""

    contributor: Name
    serial: Nonce
    expires: Version
    base_version: Version
    staleness: Version
    signature: Signature
    upload_hash: Digest

    @property
    def mask(self) -> MaskName:
        """The name of the mask."""
        return MaskName(self.contributor, self.serial, self.expires)


class ShortRequest(Message, frozen=True, tag="ShortRequest"):
    """Server → holders: a request without what they have who answered for the version before."""

    epoch: Digest
    version: Version
    attempt: Attempt
    link: Link | None
    """The last one of the history; None at the epoch's first version."""
    tickets: Annotated[tuple[ShortTicket, ...], Meta(min_length=1, max_length=MAX_HOLDERS)]
    signature: Signature
    """Of the whole request."""
    digest: Digest
    """Of the whole request."""

    @property
    def masks(self) -> tuple[MaskName, ...]:
        """S(t): the masks of the members."""
        return tuple(ticket.mask for ticket in self.tickets)


class CannotFollow(Message, frozen=True, tag="CannotFollow"):
    """Holder → server: I lack what a short letter about this request builds on; send me the long one."""

    epoch: Digest
    digest: Digest


class Answer(Message, frozen=True, tag="Answer"):
    """Holder → server: Σ s̄·share over the members, as little-endian 32-bit words."""

    epoch: Digest
    version: Version
    digest: Digest
    holder: HolderIndex
    words: Bulk
    signature: Signature = b""


class Inquiry(Message, frozen=True, tag="Inquiry"):
    """Server → holders, after a restart: how far have you seen me go? My store may be an older copy."""

    epoch: Digest
    nonce: Nonce


class Witness(Message, frozen=True, tag="Witness"):
    """Holder → server: the last request that I endorsed or answered was for this slot."""

    epoch: Digest
    nonce: Nonce
    holder: HolderIndex
    slot: Slot | None
    signature: Signature = b""


class Parts(Message, frozen=True, tag="Parts"):
    """Server → members: all that a version was made from, so that anybody can recompute it."""

    release: Release
    request: RecoveryRequest
    certificate: Certificate | None
    """None where the server is trusted to ask for one sum only."""
    uploads: Annotated[tuple[bytes, ...], Meta(max_length=MAX_HOLDERS)]
    """In the order of the request's tickets."""
    answers: Annotated[tuple[Answer, ...], Meta(max_length=MAX_HOLDERS)]
    model: bytes
    """The version before, as little-endian numbers."""
    state: bytes
    """The optimiser's state at that version."""


class Closing(Message, frozen=True, tag="Closing"):
    """Server → holders: these masks are over, opened or burned; delete what you still have of them.

    Contributor → server: I never used these masks of mine and never will."""

    epoch: Digest
    version: Version
    masks: Annotated[tuple[MaskName, ...], Meta(min_length=1, max_length=MAX_HOLDERS)]
    outcome: Literal["opened", "burned"]
    signature: Signature = b""


class Refusal(Message, frozen=True, tag="Refusal"):
    """Anyone → sender: your message was refused, and why. Never carries a byte of a share."""

    code: Name
    reason: Reason


# --- what is signed ---------------------------------------------------------------------------

_ENCODER = msgspec.msgpack.Encoder()


def _tagged(role: str, content: Sequence[object]) -> bytes:
    return _ENCODER.encode(("basecagg", PROTOCOL_VERSION, role, *content))


def content_hash(words: bytes) -> bytes:
    """BLAKE3 of a large payload: three times as fast as SHA-256, and uploads are most of what is hashed."""
    return blake3(words).digest()


def _hashed(value: bytes | Struct | None) -> bytes | None:
    """What stands for a large field in a statement."""
    return content_hash(encode(value) if isinstance(value, Struct) else value) if value else None


def statement(message: Message) -> bytes:
    """The bytes that a signature of this message covers."""
    return _STATEMENTS.get(type(message), _statement)(message)


def digest_of(message: Message) -> bytes:
    """What a signed message goes by: the hash of its statement."""
    return hashlib.sha256(statement(message)).digest()


def signed_digest(said: bytes, signature: bytes) -> bytes:
    """The hash of a statement together with its signature, for those who vouch for both."""
    return hashlib.sha256(said + signature).digest()


def _statement(message: Message) -> bytes:
    content = list(msgspec.structs.astuple(message)[:-1])
    for place in _bulk_in(type(message)):
        content[place] = _hashed(content[place])
    return _tagged(str(message.__struct_config__.tag), content)


@lru_cache(maxsize=1 << 13)
def _known_statement(message: Message) -> bytes:
    return _statement(message)


_STATEMENTS: dict[type[Message], Callable[[Any], bytes]] = {
    Receipt: lambda receipt: receipt.statement,
    Ticket: _known_statement,
    Dealing: _known_statement,
    Credential: _known_statement,
    Endorsement: _known_statement,
}
"""A server and its holders meet these again and again. No other kind is remembered: it may be large."""


@lru_cache
def _bulk_in(kind: type[Message]) -> tuple[int, ...]:
    """The places of a signed message's large fields."""
    if kind.__struct_fields__[-1] != "signature":
        raise LocalProtocolError(f"{kind.__name__} is not a message that is signed")
    hints = get_type_hints(kind, include_extras=True)
    fields = enumerate(kind.__struct_fields__)
    return tuple(place for place, name in fields if _BULK in get_args(hints[name]))


SignedMessage = TypeVar("SignedMessage", bound=Message)


def signed(message: SignedMessage, signer: Signer) -> SignedMessage:
    """The same message with its signature filled in."""
    return msgspec.structs.replace(message, signature=signer.sign(statement(message)))


def sealing_context(epoch: bytes, masks: Sequence[MaskName], holder: int) -> bytes:
    """What is bound to an envelope: nobody can deliver it to another holder or under other names."""
    return _tagged("Shares", (epoch, masks, holder))


def admission_statement(federation: str, name: str, signing_key: bytes) -> bytes:
    """What an invitation's secret vouches for: this key belongs to who was invited under this name."""
    return _tagged("Enrolment", (federation, name, signing_key))


def coin_of(epoch: bytes, mask: MaskName) -> bytes:
    """The name of the coin that rounds this mask's staleness weight."""
    return _tagged("Coin", (epoch, mask))


def encode(message: Struct) -> bytes:
    """The one encoding of a message or record."""
    return _ENCODER.encode(message)
