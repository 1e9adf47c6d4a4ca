"""An epoch: the holders of shares and the parameters, signed by the operator whose key everyone has pinned.

Its digest is the epoch id that every message carries. A change of holders or parameters is a new epoch, and
masks never cross epochs. Contributors are not listed: each carries a credential, so that one more device
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from basecagg.errors import (
    BadCertificate,
    BadSignature,
    Malformed,
    MaskTaken,
    NotEnrolled,
    ParameterError,
    QuotaExceeded,
    WrongEpoch,
    WrongModel,
    WrongVersion,
)
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.packing import largest
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.global_model import Model, model_hash
from basecagg.protocol.messages import (
    MAX_HOLDERS,
    PROTOCOL_VERSION,
    Attempt,
    Certificate,
    Chain,
    Closing,
    Credential,
    Dealing,
    Digest,
    History,
    Link,
    Message,
    Name,
    PublicKey,
    RecoveryRequest,
    Release,
    SealingKey,
    Signature,
    Suite,
    Ticket,
    digest_of,
    endorsement_of,
    signed,
    statement,
)
from basecagg.protocol.ports import Signer, Verifier
from basecagg.protocol.step_rule import PAPER_STEP, StepRule, state_hash

_REMEMBERED_CREDENTIALS, _REMEMBERED_CERTIFICATES = 1 << 14, 8
SERVER = "server"
"""The server's name among the participants."""
Good = TypeVar("Good", Certificate, Credential)
ServerWord: TypeAlias = Release | RecoveryRequest | Closing
"""What the server signs."""
NEVER = 2**62 - 1
MAX_VERSIONS = 1_000_000
"""Of one epoch. A contributor has only the server's word for a version, and believes in no later one."""


class Seat(Message, frozen=True, tag="Seat"):
    """A holder's place in the committee: its name and public keys."""

    name: Name
    signing_key: PublicKey
    sealing_key: SealingKey


class Epoch(Message, frozen=True, tag="Epoch"):
    """All that the participants agree on. The holders' order is their index 0 … N−1."""

    protocol: Annotated[int, Meta(ge=1, lt=2**16)]
    """The version of the protocol that its messages speak."""
    federation: Name
    number: Annotated[int, Meta(ge=1, lt=2**62)]
    first: Link
    """The model that it begins with. Where it goes on from another epoch the digest is that one's last head."""
    step: StepRule
    """How a sum becomes the next model."""
    max_burns: Attempt
    """How often a version's sum may be given up for another. Each one given up may have been opened all the
    same."""
    ends: Annotated[int, Meta(ge=0, lt=2**62)]
    """When it is over by everybody's own clock, in seconds since 1970."""
    parameters: ProtocolParameters
    suite: Suite
    holders: Annotated[tuple[Seat, ...], Meta(max_length=MAX_HOLDERS)]
    """Nobody where updates are in clear."""
    points: Annotated[tuple[int, ...], Meta(max_length=MAX_HOLDERS)]
    server_key: PublicKey
    enrolment_key: PublicKey
    contract: Digest = bytes(32)
    """The hash of what else a driver has everybody do in the same way; zeros for nothing."""
    signature: Signature = b""

    @property
    def id(self) -> bytes:
        """The digest that every message of this epoch carries."""
        return digest_of(self)

    @property
    def first_version(self) -> int:
        """The version that it begins with."""
        return self.first.version


class Agreement:
    """An epoch that has been checked, with what the machines look up in it."""

    def __init__(self, epoch: Epoch, verifier: Verifier, operator_key: bytes = b"") -> None:
        """Prepare only. Use `accept`, which checks the epoch first."""
        self.epoch = epoch
        self.operator_key = operator_key
        """The key whose signature `accept` has checked; empty if the epoch was checked elsewhere."""
        self.id = epoch.id
        self.beginning = History(epoch.first_version, Chain.begin("models").after(self.id).head)
        """The chain of models before the first sum. Its head vouches for the epoch, and so for the model."""
        self.parameters = epoch.parameters
        self.verifier = verifier
        self.holder_names = tuple(holder.name for holder in epoch.holders)
        self._holder_keys = tuple(holder.signing_key for holder in epoch.holders)
        self._indices = {name: index for index, name in enumerate(self.holder_names)}
        self.checks_saved = 0
        """Signatures that were not checked again because all of a certificate or credential was known."""
        self._credentials: dict[Credential, None] = {}
        self._certificates: dict[Certificate, None] = {}

    @cached_property
    def code(self) -> MaskCode:
        """The T-private MDS code of this epoch."""
        p = self.parameters
        return MaskCode(p.num_holders, p.recovery_threshold, p.max_colluders, modulus=p.field_size)

    def holder_index(self, name: str) -> int | None:
        """The index of a holder, or None for anybody else."""
        return self._indices.get(name)

    @property
    def holders_needed(self) -> int:
        """Holders that must have a share of every member: enough to open, and enough to certify."""
        p = self.parameters
        if not p.is_masked:
            return 0
        enough = p.recovery_threshold + p.recovery_margin
        return max(enough, p.quorum) if p.consistency == "certified" else enough

    @property
    def masks_per_contributor(self) -> int:
        """The most live masks of one contributor: those dealt ahead, and as many that wait to be summed."""
        return 2 * self.parameters.mask_quota

    def signed_by_holder(self, message: Message, holder: int, signature: bytes) -> bool:
        """Whether holder number `holder` signed the message."""
        return self.holder_said(statement(message), holder, signature)

    def holder_said(self, said: bytes, holder: int, signature: bytes) -> bool:
        """Whether holder number `holder` signed the statement."""
        keys = self._holder_keys
        return 0 <= holder < len(keys) and self.verifier.verify(keys[holder], said, signature)

    def require_id(self, epoch_id: bytes) -> None:
        """Refuse a message of another epoch."""
        if epoch_id != self.id:
            raise WrongEpoch(f"epoch {epoch_id.hex()[:12]}… is not {self.id.hex()[:12]}…")

    def require_signed(self, message: Message, key: bytes, signature: bytes) -> None:
        """Refuse a message that the key did not sign."""
        if not self.verifier.verify(key, statement(message), signature):
            raise BadSignature(f"the signature of {type(message).__name__} does not verify")

    def require_from_server(self, message: ServerWord) -> None:
        """Refuse what is of another epoch, or not signed by this epoch's server."""
        self.require_id(message.epoch)
        self.require_signed(message, self.epoch.server_key, message.signature)

    def require_signed_by_holder(self, message: Message, holder: int, signature: bytes) -> None:
        """Refuse a message that the holder did not sign."""
        if not self.signed_by_holder(message, holder, signature):
            raise BadSignature(f"{type(message).__name__} is not signed by holder {holder}")

    def require_words(self, words: bytes, size: int, what: str) -> None:
        """Refuse what is not `size` elements of the field."""
        width, q = self.parameters.word_bytes, self.parameters.field_size
        if len(words) != width * size:
            raise Malformed(
                f"{what} has {size} words of {width} bytes, this one {len(words)} bytes"
            )
        if largest(words, q) >= q:
            raise Malformed(f"a word of {what} is not below q")

    def require_holder(self, holder: int, sender: str) -> None:
        """Refuse a message in a holder's name that another sender has sent."""
        if self.holder_index(sender) != holder:
            raise NotEnrolled(f"holder {holder} is somebody else", peer=sender)

    def require_history(self, history: History) -> None:
        """Refuse a chain of models that has gaps, or another beginning than the epoch's."""
        first = self.beginning
        known = history.heads.get(first.version, first.root)
        if not history.is_whole or history.version < first.version or known != first.root:
            raise WrongModel("the chain of models does not begin with the epoch", peer=SERVER)

    def require_enrolled(self, credential: Credential, contributor: str) -> None:
        """Refuse a contributor whom the enrolment key did not admit to this epoch."""
        if credential.epoch != self.id or credential.contributor != contributor:
            raise NotEnrolled("the credential is for another epoch or name", peer=contributor)
        if contributor == SERVER:
            raise NotEnrolled(f"no participant may be called '{SERVER}'", peer=contributor)
        if credential in self._credentials:
            self.checks_saved += 1
            return
        key, signature = self.epoch.enrolment_key, credential.signature
        if not self.verifier.verify(key, statement(credential), signature):
            raise NotEnrolled("the credential is not signed by the enrolment key", peer=contributor)
        _remember(credential, self._credentials, _REMEMBERED_CREDENTIALS)

    def require_dealt(self, dealing: Dealing) -> None:
        """Refuse a dealing that is not a contributor's word on masks of its own, each named once."""
        owner, most = dealing.credential.contributor, self.masks_per_contributor
        if len(dealing.masks) > most:
            raise QuotaExceeded(f"{len(dealing.masks)} masks, {most} may live at a time")
        self.require_enrolled(dealing.credential, dealing.masks[0].contributor)
        if any(mask.contributor != owner for mask in dealing.masks):
            raise NotEnrolled("not all of the masks are the dealer's own", peer=owner)
        if len(set(dealing.masks)) != len(dealing.masks):
            raise Malformed("a mask is named twice in one dealing", peer=owner)
        if any(mask.expires != dealing.expires for mask in dealing.masks):
            raise Malformed("not all masks of the dealing expire together", peer=owner)
        if (dealing.ticket is not None) != self.parameters.one_visit:
            raise Malformed("here masks are dealt with their updates, or never so", peer=owner)
        if dealing.ticket is not None and len(dealing.masks) != 1:
            raise Malformed(f"{len(dealing.masks)} masks are dealt with one update", peer=owner)
        self.require_signed(dealing, dealing.credential.signing_key, dealing.signature)

    def require_promised(self, ticket: Ticket, promised: bytes | None) -> None:
        """Where each mask is dealt with its update, refuse another ticket than the dealing's.

        Refuse also a mask that does not expire with its update.
        """
        if not self.parameters.one_visit:
            return
        mask, last = ticket.mask, ticket.base_version + self.parameters.max_staleness
        if digest_of(ticket) != promised:
            raise MaskTaken(f"mask {mask.key} was dealt with another update", peer=mask.contributor)
        if mask.expires != last:
            raise WrongVersion(
                f"mask {mask.key} is to expire at version {mask.expires}, its update at {last}",
                peer=mask.contributor,
            )

    def require_certificate(self, certificate: Certificate) -> None:
        """Refuse a certificate that is too small, forged, or does not list its holders in order, each once."""
        self.require_id(certificate.epoch)
        if certificate in self._certificates:
            self.checks_saved += len(certificate.signatures)
            return
        quorum, holders = self.parameters.quorum, [holder for holder, _ in certificate.signatures]
        if holders != sorted(set(holders)) or len(holders) < quorum:
            count = len(set(holders))
            raise BadCertificate(f"{count} holders endorsed, in order a quorum of {quorum} has to")
        for holder, signature in certificate.signatures:
            if not self.signed_by_holder(endorsement_of(certificate, holder), holder, signature):
                raise BadCertificate(f"the endorsement of holder {holder} is forged")
        _remember(certificate, self._certificates, _REMEMBERED_CERTIFICATES)


def _remember(good: Good, known: dict[Good, None], most: int) -> None:
    """Remember what was checked: a holder sees a certificate twice, and a credential with every parcel."""
    known[good] = None
    if len(known) > most:
        del known[next(iter(known))]


def draft_epoch(
    *,
    federation: str,
    parameters: ProtocolParameters,
    holders: Sequence[Seat],
    server_key: bytes,
    enrolment_key: bytes,
    operator: Signer,
    first: Link,
    step: StepRule = PAPER_STEP,
    max_burns: int = 1,
    number: int = 1,
    ends: int = NEVER,
    suite: Suite = "x25519",
    contract: bytes = bytes(32),
) -> Epoch:
    """Make an epoch and sign it: the operator's part."""
    epoch = Epoch(
        PROTOCOL_VERSION,
        federation,
        number,
        first,
        step,
        max_burns,
        ends,
        parameters,
        suite,
        tuple(holders),
        _points_of(parameters),
        server_key,
        enrolment_key,
        contract,
    )
    return signed(epoch, operator)


def _points_of(p: ProtocolParameters) -> tuple[int, ...]:
    """The points of the code at which shares are made; none where there are no shares."""
    if not p.is_masked:
        return ()
    code = MaskCode(p.num_holders, p.recovery_threshold, p.max_colluders, modulus=p.field_size)
    return tuple(int(point) for point in code.points)


def first_link(model: Model, version: int = 0, previous: bytes = bytes(32)) -> Link:
    """What an epoch begins with: a model, and the head of the epoch that it goes on from.

    The optimiser begins anew, so everybody knows its state.
    """
    return Link(version, model_hash(version, model), state_hash(version, ()), previous)


def accept(
    epoch: Epoch, operator_key: bytes, verifier: Verifier, floor: LocalFloor | None = None
) -> Agreement:
    """Take an epoch only if the pinned operator signed it and it is sound: every participant's part.

    A caller without a floor uploads nothing, so it accepts any unit of privacy, and updates in clear.
    """
    agreement = _checked(epoch, epoch.id, operator_key, verifier)
    (floor or LocalFloor(unit="record", allow_clear=True)).require(
        epoch.parameters, epoch.max_burns
    )
    return agreement


@lru_cache(maxsize=8)
def _checked(epoch: Epoch, epoch_id: bytes, operator_key: bytes, verifier: Verifier) -> Agreement:
    """Members in one process that share a verifier check an epoch once, and look things up in one agreement.

    The id is among the arguments because 1 and 1.0 are equal but not the same bytes.
    """
    if not verifier.verify(operator_key, statement(epoch), epoch.signature):
        raise BadSignature("the epoch is not signed by the operator's key pinned here")
    agreement = Agreement(epoch, verifier, operator_key)
    _require_sound(agreement)
    return agreement


def _require_sound(agreement: Agreement) -> None:
    epoch, p, names = agreement.epoch, agreement.parameters, agreement.holder_names
    keys, n = {holder.signing_key for holder in epoch.holders}, p.num_holders
    own = f"it speaks version {epoch.protocol} of the protocol, we speak {PROTOCOL_VERSION}"
    for reason, wrong in {
        own: epoch.protocol != PROTOCOL_VERSION,
        "allow_wraparound is for experiments; no epoch may use it": p.allow_wraparound,
        f"{len(names)} holders are listed, N = {n}": len(names) != n,
        "a holder is listed twice": len(set(names)) != n,
        f"no participant may be called '{SERVER}'": SERVER in names,
        "two holders have the same signing key": len(keys) != n,
    }.items():
        if wrong:
            raise WrongEpoch(reason)
    for holder in epoch.holders:
        if not agreement.verifier.fits(epoch.suite, holder.sealing_key):
            raise WrongEpoch(f"the sealing key of {holder.name} is none of the suite {epoch.suite}")
    try:
        epoch.step.require_fits(p.model_size)
    except ParameterError as error:
        raise WrongEpoch(str(error)) from None
    points = agreement.code.points if p.is_masked else ()
    if epoch.points != tuple(int(point) for point in points):
        raise WrongEpoch("the evaluation points are not the code's distinct, nonzero points")
