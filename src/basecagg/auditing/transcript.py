"""A transcript: what a server saw, as JSON lines. Who sent which message about which mask, and no payload.

One transcript is of one epoch. The first line describes the epoch and has the format's version; every other
line is one fact. A fact may stand twice (a retry, or a recorder that was restarted and appends to the file). A
line that cannot be read, or that makes no sense after the ones before, is refused with its number.

Each line carries the head of a hash chain over all lines up to it, so none can be changed or taken out of the
middle. The last line says that it is the last, signed with the server's key: a file without it is still being
written, or was cut. The first line carries the epoch as the operator signed it, which names the server's key.
So those who know the operator's key know whether that server signed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import ChannelError, DataError, Refused
from basecagg.maths.primes import is_prime
from basecagg.parameters import ProtocolParameters
from basecagg.privacy import Mechanism
from basecagg.protocol.epoch import Epoch, accept
from basecagg.protocol.messages import Chain
from basecagg.protocol.ports import Signer
from basecagg.storage import disk

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
Word: TypeAlias = Annotated[int, Meta(ge=0, lt=2**32)]
Label: TypeAlias = Annotated[str, Meta(max_length=200, pattern=r"\A[ -~]+\Z")]
"""Printable, so that no name does anything to a terminal."""
Hex: TypeAlias = Annotated[str, Meta(max_length=128, pattern=r"\A([0-9a-f]{2})*\Z")]
Ending: TypeAlias = Literal["signed", "closed", "open", "cut"]
_PURPOSE = "transcript"


class TranscriptLine(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base of all lines."""


class EpochLine(TranscriptLine, frozen=True, tag="epoch", kw_only=True):
    """The numbers that the algebra needs; always the first line."""

    format: Literal[2, 3]
    """Those of format 2 carry no signed epoch."""
    id: Label
    num_holders: Count
    """N"""
    recovery_threshold: Count
    """U"""
    max_colluders: Count
    """T"""
    buffer_size: Count
    """K"""
    modulus: Word
    """q"""
    points: tuple[Word, ...]
    """β_j of every holder, in the order of their indices."""
    server_key: Hex = ""
    """Who signs the end."""
    mechanism: Mechanism | None = None
    """What each upload costs in privacy, where there is noise."""
    signed: bytes = b""
    """The epoch as its operator signed it, a frame. All the numbers here are taken from it."""
    operator_key: Hex = ""
    """Who is said to have signed the epoch. Anybody can write a key here: compare it with the one you know."""

    @classmethod
    def of(cls, epoch: Epoch, operator_key: bytes = b"") -> EpochLine:
        """The first line of an epoch's transcript."""
        p = epoch.parameters
        return cls(
            format=3,
            id=epoch.id.hex(),
            num_holders=p.num_holders,
            recovery_threshold=p.recovery_threshold,
            max_colluders=p.max_colluders,
            buffer_size=p.buffer_size,
            modulus=p.field_size,
            points=epoch.points,
            server_key=epoch.server_key.hex(),
            mechanism=p.mechanism if p.mechanism and p.mechanism.variance else None,
            signed=pack(epoch),
            operator_key=operator_key.hex(),
        )

    @property
    def parameters(self) -> ProtocolParameters | None:
        """All parameters, from the signed epoch; None where the line carries none."""
        return _carried(self).parameters if self.signed else None

    @property
    def pieces(self) -> int:
        """U − T: the pieces of an update, and the dimensions that one sum has."""
        return self.recovery_threshold - self.max_colluders


class UploadLine(TranscriptLine, frozen=True, tag="upload"):
    """A contributor sent an update under a mask. `update` names it by a hash of the masked bytes."""

    mask: Label
    contributor: Label
    base_version: Count
    update: Label
    staleness: Count = 0
    """τ̂, as its ticket tells it: what it costs in privacy depends on it."""


class PlainLine(TranscriptLine, frozen=True, tag="plain"):
    """A contributor sent an update in clear: the server has all of it."""

    mask: Label
    contributor: Label
    base_version: Count


class RequestMember(Struct, frozen=True, forbid_unknown_fields=True):
    """One update in a sum, with the weight s̄ that holders give its mask."""

    mask: Label
    update: Label
    weight: Word


class RequestLine(TranscriptLine, frozen=True, tag="request"):
    """The server asked holders for a weighted sum of masks."""

    digest: Label
    version: Count
    members: Annotated[tuple[RequestMember, ...], Meta(min_length=1)]

    @property
    def masks(self) -> frozenset[str]:
        """S(t): the masks of the members."""
        return frozenset(member.mask for member in self.members)


class AnswerLine(TranscriptLine, frozen=True, tag="answer"):
    """A holder answered a request."""

    holder: Count
    digest: Label


class ShareLine(TranscriptLine, frozen=True, tag="share"):
    """A holder that works with the server can open its share of a mask."""

    holder: Count
    mask: Label


class OutcomeLine(TranscriptLine, frozen=True, tag="outcome"):
    """The server declared masks to be over."""

    version: Count
    masks: Annotated[tuple[Label, ...], Meta(min_length=1)]
    outcome: Literal["opened", "burned"]


class EndLine(TranscriptLine, frozen=True, tag="end"):
    """Nothing comes after this. The signature, if there is one, is over the chain of all lines before."""

    signature: Hex = ""


AnyLine: TypeAlias = (
    EpochLine
    | UploadLine
    | PlainLine
    | RequestLine
    | AnswerLine
    | ShareLine
    | OutcomeLine
    | EndLine
)


class Linked(Struct, frozen=True, forbid_unknown_fields=True):
    """A line as it stands in the file: its bytes, and the head of the chain with it."""

    line: msgspec.Raw
    chain: Hex


_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)
_LINKED: msgspec.json.Decoder[Linked] = msgspec.json.Decoder(Linked)
_ENCODER = msgspec.json.Encoder()


class Transcript:
    """All facts of a transcript, checked one by one as they are added."""

    def __init__(self, lines: Iterable[AnyLine] = ()) -> None:
        self._epoch: EpochLine | None = None
        self.ending: Ending = "open"
        """How it ends: signed, closed without a signature, still being written, or cut off."""
        self.plain: dict[str, PlainLine] = {}
        """Updates in clear, by the name that a mask would have had."""
        self.uploads: dict[str, dict[str, UploadLine]] = {}
        """By mask, then by update: an honest mask has one."""
        self.requests: dict[str, RequestLine] = {}
        self.answers: dict[str, set[int]] = {}
        """The holders that answered, by digest."""
        self.shares: dict[str, set[int]] = {}
        """The colluding holders that have a share, by mask."""
        self.outcomes: dict[frozenset[str], str] = {}
        for line in lines:
            self.add(line)

    @property
    def epoch(self) -> EpochLine:
        """The first line."""
        if self._epoch is None:
            raise DataError("the transcript is empty; its first line must be the epoch")
        return self._epoch

    def add(self, line: AnyLine) -> None:
        """Take one more fact, or refuse it with `DataError`."""
        if self._epoch is None and not isinstance(line, EpochLine):
            kind = type(line).__struct_config__.tag
            raise DataError(f"the first line must be the epoch, not '{kind}'")
        if self.ending in ("signed", "closed"):
            raise DataError("a line after the end")
        match line:
            case EpochLine():
                self._begin(line)
            case UploadLine():
                _require_owner(line)
                self.uploads.setdefault(line.mask, {}).setdefault(line.update, line)
            case PlainLine():
                _require_owner(line)
                self.plain.setdefault(line.mask, line)
            case RequestLine():
                self._add_request(line)
            case AnswerLine():
                self._add_answer(line)
            case ShareLine():
                self.require_holder(line.holder)
                self.shares.setdefault(line.mask, set()).add(line.holder)
            case OutcomeLine():
                # The server's own word, for the report only: what was learned follows from the answers.
                masks = frozenset(line.masks)
                if line.outcome == "opened" or masks not in self.outcomes:
                    self.outcomes[masks] = line.outcome
            case EndLine():
                self.ending = "signed" if line.signature else "closed"

    def _begin(self, line: EpochLine) -> None:
        if self._epoch not in (None, line):
            raise DataError("a second, different epoch: one transcript is one epoch")
        _require_sound(line)
        if line.signed and line != EpochLine.of(_carried(line), bytes.fromhex(line.operator_key)):
            raise DataError("its numbers or keys are not those of the epoch that it carries")
        self._epoch = line

    def require_signed_by(self, operator_key: bytes) -> None:
        """Refuse the transcript of an epoch that this operator did not sign: its server may be anybody."""
        if not self.epoch.signed:
            raise DataError(
                "the transcript carries no epoch that an operator signed, so nobody can say whose key signs it:"
                " it is of an older basecagg, or somebody took the epoch out"
            )
        try:
            accept(_carried(self.epoch), operator_key, Ed25519Verifier())
        except Refused as refusal:
            raise DataError(
                f"the transcript is not of an epoch of {operator_key.hex()}: {refusal}"
            ) from None

    def _add_request(self, line: RequestLine) -> None:
        if len(line.masks) != len(line.members):
            raise DataError(f"request {line.digest} has a mask twice")
        too_large = [m.mask for m in line.members if m.weight >= self.epoch.modulus]
        if too_large:
            raise DataError(f"request {line.digest}: the weight of {too_large[0]} is not below q")
        if self.requests.setdefault(line.digest, line) != line:
            raise DataError(f"request {line.digest} stands here before, with other contents")

    def _add_answer(self, line: AnswerLine) -> None:
        self.require_holder(line.holder)
        if line.digest not in self.requests:
            raise DataError(
                f"an answer to request {line.digest}, which is not in the transcript: record from the"
                " epoch's start, else nobody can say what was learned"
            )
        self.answers.setdefault(line.digest, set()).add(line.holder)

    def require_holder(self, holder: int) -> None:
        """Refuse an index that no holder has."""
        if not 0 <= holder < self.epoch.num_holders:
            raise DataError(f"there is no holder {holder}; N = {self.epoch.num_holders}")


class Scribe:
    """Writes a transcript, line by line, each tied to those before it."""

    def __init__(self, write: Callable[[str], object], chain: Chain | None = None) -> None:
        """Hand the text of every line to `write`; go on from the `chain` of a transcript that is not closed."""
        self._write = write
        self._chain = chain or Chain.begin(_PURPOSE)

    def add(self, line: AnyLine) -> None:
        """Write one line."""
        text = _ENCODER.encode(line)
        self._chain = self._chain.after(text)
        linked = Linked(msgspec.Raw(text), self._chain.head.hex())
        self._write(_ENCODER.encode(linked).decode() + "\n")

    def close(self, signer: Signer) -> None:
        """Write the last line, with the server's signature over all of them."""
        self.add(EndLine(signer.sign(self._chain.statement(_PURPOSE)).hex()))


def read_transcript(path: Path) -> Transcript:
    """Read a transcript strictly; `DataError` names the first bad line."""
    return _read(path)[0]


def chain_of(path: Path) -> Chain:
    """The chain over all lines of an unfinished transcript, for a scribe that goes on with it."""
    return _read(path)[1]


def _read(path: Path) -> tuple[Transcript, Chain]:
    transcript, chain = Transcript(), Chain.begin(_PURPOSE)
    with path.open("rb") as file:
        is_growing = disk.is_locked(file.fileno())  # by the process that writes it
        for number, text in enumerate(file, start=1):
            try:
                chain = _take(transcript, chain, text)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise DataError(f"{path.name}, line {number}: {error}") from None
    if not chain.length:
        raise DataError(f"{path.name}, line 1: the file is empty")
    if transcript.ending == "open" and not is_growing:
        transcript.ending = "cut"
    return transcript, chain


def _take(transcript: Transcript, before: Chain, text: bytes) -> Chain:
    """Add one line of a file to the transcript, if it is tied to the lines before it."""
    linked = _LINKED.decode(text)
    chain = before.after(bytes(linked.line))
    if chain.head.hex() != linked.chain:
        raise DataError("the chain is broken: a line was changed, moved or taken out")
    line = _DECODER.decode(linked.line)
    transcript.add(line)
    if isinstance(line, EndLine) and line.signature:
        key, signature = map(bytes.fromhex, (transcript.epoch.server_key, line.signature))
        if not Ed25519Verifier().verify(key, before.statement(_PURPOSE), signature):
            raise DataError("the end is not signed with the server's key for these lines")
    return chain


def _carried(line: EpochLine) -> Epoch:
    """The epoch in the first line."""
    try:
        epoch = unpack(line.signed, MAX_CONTROL_BYTES)
    except ChannelError as error:
        raise DataError(f"the epoch that it carries cannot be read: {error}") from None
    if not isinstance(epoch, Epoch):
        raise DataError("what it carries is no epoch")
    return epoch


def contributor_of(mask: str) -> str:
    """The dealer of a mask, from its key."""
    return mask.rpartition("/")[0]


def _require_owner(line: UploadLine | PlainLine) -> None:
    if contributor_of(line.mask) != line.contributor:
        raise DataError(f"{line.mask} is not one of {line.contributor}'s")


def _require_sound(epoch: EpochLine) -> None:
    """Check what the algebra needs. Zero or equal points are no error: the audit shows what they give away."""
    e = epoch
    if not is_prime(e.modulus):
        raise DataError(f"the modulus q = {e.modulus} is not prime")
    if len(e.points) != e.num_holders or not all(point < e.modulus for point in e.points):
        raise DataError(f"not N = {e.num_holders} evaluation points below q")
    if not 0 <= e.max_colluders < e.recovery_threshold <= e.num_holders:
        raise DataError(
            f"T = {e.max_colluders} < U = {e.recovery_threshold} ≤ N = {e.num_holders} does not hold"
        )
    if e.mechanism is not None and not _is_countable(e.mechanism):
        raise DataError("nothing can be accounted for by the numbers of its noise")


def _is_countable(mechanism: Mechanism) -> bool:
    """Whether ε follows from these numbers: a stranger wrote them, and may have made that impossible."""
    try:
        noisy = mechanism.variance > 0 and mechanism.honest > 0 and mechanism.conversion_delta > 0
        return noisy and mechanism.epsilon >= 0
    except (ArithmeticError, AssertionError, ValueError):
        return False
