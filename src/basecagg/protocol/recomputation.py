"""Opening a sum and making the next model from signed parts: the server does it once, and anybody can again.

The server's signed `Release` names everything that a version is made from, by its hash: the request with its
tickets, and so the uploads; the answers with their holders' signatures; the version before. So changed or
missing parts convict nobody. If all parts are the ones that the server named, only the server can be the reason
for a different result: a lying holder, or a dealer whose shares do not fit, changes the result here in the same
way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.errors import (
    DecodingError,
    NotProven,
    PartsDamaged,
    Refused,
    StorageError,
    WrongModel,
)
from basecagg.maths.approved_rings import KEY_SIZE
from basecagg.maths.key_masks import unmask_with
from basecagg.maths.packing import sum_packed, unpack
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import squared_norm
from basecagg.maths.randomness import Words
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.epoch import SERVER, Agreement, accept
from basecagg.protocol.global_model import Model, model_hash
from basecagg.protocol.masking import masks_of
from basecagg.protocol.messages import (
    Answer,
    Link,
    Parts,
    RecoveryRequest,
    Release,
    content_hash,
    signed_digest,
    statement,
)
from basecagg.protocol.opening import Opened, require_numbers, sum_of_numbers
from basecagg.protocol.ports import Verifier
from basecagg.protocol.proofs import (
    Caught,
    DoubleRequest,
    Evidence,
    Fork,
    Miscalculation,
    Pedigree,
    contradiction,
)
from basecagg.protocol.server import link_to, stepped
from basecagg.protocol.step_rule import OptimiserState, state_from, state_hash
from basecagg.protocol.weighing import Weighing

Version: TypeAlias = tuple[Model, OptimiserState]
_DTYPES = {2: "<f2", 4: "<f4", 8: "<f8"}
"""Of a model, by the bytes of one number."""
TOGETHER = 32
"""Uploads that are in memory at one time."""


class NotOpenable(DecodingError):  # noqa: N818 - more answers may help
    """These answers open no sum."""

    def __init__(self, reason: str, wrong: int | None) -> None:
        """`wrong` answers are wrong, or more; None if no other answers could help."""
        super().__init__(reason, wrong=wrong or 0)
        self.helpless = wrong is None


class Miscalculated(Refused):
    """What a release says does not follow from the parts that it names."""


# --- opening: phase 3 of the paper ------------------------------------------------------------


def open_sum(
    agreement: Agreement,
    request: RecoveryRequest,
    uploads: Iterable[bytes],
    answers: Mapping[int, Answer],
) -> Opened:
    """Decode the sum of the masks, subtract it from that of the uploads, check; or `NotOpenable`.

    Of U + T answers that agree, U are honest and determine the sum. So answers that disagree are wrong.
    """
    shared, wrong = _decode(agreement, answers)
    p, agreeing, field = agreement.parameters, len(answers) - len(wrong), agreement.code.field
    weighing = Weighing.of(p)
    factors, weights = weighing.in_field(request), tuple(weighing.weights(request))
    total = weighted_sum(field, uploads, factors)
    # Another sum has n − U + 1 answers against it or this one: a distance of the code.
    others = None if p.agreed else agreeing - p.recovery_threshold + 1
    numbers, largest = _unmask(agreement, total, shared, others)
    # An element of an honest update is c_l·B before it is rounded, which adds 1 at most.
    most = p.update_levels * Fraction(p.clip) * Fraction(math.fsum(weights))
    # With privacy their length is checked instead: such a sum is opened, but not applied.
    if p.privacy is None and largest > most + sum(factors) * (1 + p.error_reach):
        raise NotOpenable("the sum is larger than clipped updates can make it", None)
    told = [ticket.staleness for ticket in request.tickets]
    honest = p.mechanism is None or within_bound(p, total[: p.model_size], told)
    return Opened(numbers, weights, wrong, request.digest, applied=honest)


def sum_in_clear(
    agreement: Agreement, request: RecoveryRequest, updates: Iterable[bytes]
) -> Opened:
    """The sum in an epoch without protection: of the members that the server signed, each as it was sent."""
    p = agreement.parameters
    numbers = (np.frombuffer(update, "<f4") for update in updates)
    weights = tuple(Weighing.of(p).weights(request))
    return Opened(sum_of_numbers(numbers, weights, p.model_size), weights, digest=request.digest)


def _unmask(
    agreement: Agreement, total: Words, shared: Words, others: int | None
) -> tuple[npt.NDArray[np.float64], int]:
    """Take the sum of the masks off `total`, in place: its numbers and the largest of them, in steps.

    `shared` is the sum of what was shared: of the masks, or of their keys. Where a pad is wrong the sum is
    discarded, never applied; `others` answers are wrong then.
    """
    p, masks = agreement.parameters, masks_of(shared, agreement.id, agreement.parameters)
    numbers, largest = unmask_with(masks, total[: p.model_size], p.update_levels, p.field_size)
    _, pad = unmask_with(masks, total[p.model_size :], 1, p.field_size)
    zeros = shared[KEY_SIZE:].any() if p.masks == "keys" else False
    if zeros or pad > p.buffer_size * p.error_reach:
        raise NotOpenable("the pad of the sum is not zero: a share or answer is wrong", others)
    return numbers, largest


def weighted_sum(field: PrimeField, uploads: Iterable[bytes], weights: Sequence[int]) -> Words:
    """Σ s(τ_i)·upload_i, some at a time: all K uploads of a large model need not fit into memory."""
    rows, total = iter(uploads), list[Words]()
    for at in range(0, len(weights), TOGETHER):
        some = sum_packed(field, list(islice(rows, TOGETHER)), weights[at : at + TOGETHER])
        total = [field.weighted_sum([*total, some], [1, 1])] if total else [some]
    return total[0]


def within_bound(p: ProtocolParameters, update: Words, told: Iterable[int]) -> bool:
    """Whether honest members that told these ages τ̂ can have made a sum as long as this one."""
    assert p.mechanism is not None
    return squared_norm(update, p.field_size) <= p.mechanism.squared_sum_bound(told)


def _decode(agreement: Agreement, answers: Mapping[int, Answer]) -> tuple[Words, tuple[int, ...]]:
    """The sum of the masks, and who does not agree with it."""
    p = agreement.parameters
    shares = {holder: unpack(each.words, p.field_size) for holder, each in answers.items()}
    try:
        return agreement.code.correct(shares, p.answers_needed)
    except DecodingError as error:
        raise NotOpenable(str(error), error.wrong) from None


# --- making a version again -------------------------------------------------------------------


def recompute(agreement: Agreement, parts: Parts) -> Version:
    """The model and optimiser state that follow from these parts, if they are what the server released.

    `Caught` if the server released something else; any other refusal convicts nobody: do not train from that
    version, and do not endorse a sum of it.
    """
    require_released(agreement, parts.release)
    _require_certified(agreement, parts)
    statements = [statement(answer) for answer in parts.answers]
    _require_named(parts, statements)
    before = _version_before(agreement, parts)
    try:
        return _make_again(agreement, parts, statements, before)
    except Refused as reason:
        raise Caught(Miscalculation(parts), str(reason)) from None
    except DecodingError as reason:
        raise Caught(Miscalculation(parts), f"its answers open no sum: {reason}") from None


def require_released(agreement: Agreement, release: Release) -> None:
    """Refuse what is not the server's word on a version that comes after the epoch's first."""
    agreement.require_from_server(release)
    if not release.history.links:
        raise WrongModel("the release tells of no version that follows from others", peer=SERVER)
    agreement.require_history(release.history)


def _require_certified(agreement: Agreement, parts: Parts) -> None:
    """Its sum was endorsed by a quorum, where it has to be."""
    if agreement.parameters.consistency != "certified":
        return
    certificate = parts.certificate
    if certificate is None or certificate.endorsed != parts.request.endorsed:
        raise PartsDamaged("the certificate of the request is missing")
    agreement.require_certificate(certificate)


def _require_named(parts: Parts, statements: list[bytes]) -> None:
    """Refuse parts that the release does not name by their hash: anybody could have changed them."""
    release, tickets = parts.release, parts.request.tickets
    if parts.request.digest != release.history.links[-1].digest:
        raise PartsDamaged("the request is not the one that the release names")
    if [content_hash(upload) for upload in parts.uploads] != [t.upload_hash for t in tickets]:
        raise PartsDamaged("the uploads are not those that the request names")
    said = zip(parts.answers, statements, strict=True)
    found = tuple((a.holder, signed_digest(words, a.signature)) for a, words in said)
    if found != release.answers:
        raise PartsDamaged("the answers are not those that the release names")


def _version_before(agreement: Agreement, parts: Parts) -> Version:
    """The model and state that the sum was applied to, if they are those of the chain."""
    links, size = parts.request.history.links, agreement.parameters.model_size
    link = links[-1] if links else agreement.epoch.first
    dtype = _DTYPES.get(len(parts.model) // size)
    if dtype is None or len(parts.model) % size:
        raise PartsDamaged(f"the model before has {len(parts.model)} bytes for d = {size} numbers")
    model = np.frombuffer(parts.model, dtype)
    if model_hash(link.version, model) != link.model_hash:
        raise PartsDamaged("the model before is not the one in the chain")
    if link is agreement.epoch.first:
        return model, agreement.epoch.step.fresh_state(model)
    return model, _state_before(agreement, parts, link, dtype)


def _state_before(agreement: Agreement, parts: Parts, link: Link, dtype: str) -> OptimiserState:
    size = agreement.parameters.model_size
    try:
        state = state_from(parts.state, agreement.epoch.step, dtype, size)
    except StorageError as error:
        raise PartsDamaged(str(error)) from None
    if state_hash(link.version, state) != link.state_hash:
        raise PartsDamaged("the optimiser's state before is not the one in the chain")
    return state


def _make_again(
    agreement: Agreement, parts: Parts, statements: list[bytes], before: Version
) -> Version:
    """What an honest server does with these parts; refused where it does not do, or releases something else."""
    release, request = parts.release, parts.request
    _require_asked(agreement, release, request)
    for answer, said in zip(parts.answers, statements, strict=True):
        require_answer(agreement, request, answer, said)
    for upload in parts.uploads:
        _require_upload(agreement, upload)
    answers = {answer.holder: answer for answer in parts.answers}
    if len(answers) != len(parts.answers):
        raise Miscalculated("it counts a holder twice")
    if agreement.parameters.is_masked:
        opened = open_sum(agreement, request, parts.uploads, answers)
    else:
        opened = sum_in_clear(agreement, request, parts.uploads)
    if opened.inconsistent_holders != release.wrong:
        raise Miscalculated(
            f"it blames the holders {list(release.wrong)}, wrong are {list(opened.inconsistent_holders)}"
        )
    if opened.applied != release.applied:
        raise Miscalculated(
            f"it says that the sum is {'' if release.applied else 'not '}applied, and that is wrong"
        )
    model, state = stepped(agreement.epoch.step, *before, opened)
    if link_to(release.history.last, model, state, request.digest) != release.history.links[-1]:
        raise Miscalculated("another model or optimiser state follows from the sum")
    return model, state


def _require_upload(agreement: Agreement, upload: bytes) -> None:
    p = agreement.parameters
    if p.is_masked:
        agreement.require_words(upload, p.padded_size, "an upload")
    else:
        require_numbers(upload, p.model_size)


def _require_asked(agreement: Agreement, release: Release, request: RecoveryRequest) -> None:
    """The request is for the version before, and its history the one that the release goes on from."""
    history, before = request.history, release.history.last - 1
    agreement.require_id(request.epoch)
    if (request.version, history.last) != (before, before) or not history.is_whole:
        raise Miscalculated(f"its sum is not one of version {before}")
    if history.head != release.history.heads[before]:
        raise Miscalculated(f"its sum was asked for in another chain of models up to {before}")
    weighing = Weighing.of(agreement.parameters)
    for ticket in request.tickets:
        weighing.require_timely(request.version, ticket)


def require_answer(
    agreement: Agreement, request: RecoveryRequest, answer: Answer, said: bytes
) -> None:
    """Refuse what is not a holder's signed answer to this request; `said` is its statement."""
    asked = (request.epoch, request.version, request.digest)
    if (answer.epoch, answer.version, answer.digest) != asked:
        raise Miscalculated(f"the answer of holder {answer.holder} is to another request")
    if not agreement.holder_said(said, answer.holder, answer.signature):
        raise Miscalculated(f"the answer is not signed by holder {answer.holder}")
    what = f"the answer of holder {answer.holder}"
    agreement.require_words(answer.words, agreement.parameters.share_size, what)


# --- judging ------------------------------------------------------------------------------------
#
# Evidence is checked from scratch, for the accuser may be lying. A judge needs the operator's key and
# nothing else: that leads to the epoch, the epoch names the keys of the server and of the holders, and the
# server's own signed words do the rest.


def judge(evidence: Evidence, operator_key: bytes, verifier: Verifier) -> str:
    """What the server did, or `NotProven` with the reason."""
    try:
        agreement = accept(evidence.epoch, operator_key, verifier)
        match evidence.proof:
            case Miscalculation(parts=parts):
                recompute(agreement, parts)
            case Fork() | DoubleRequest() as proof:
                _compare(agreement, proof)
    except Caught as caught:
        return str(caught)
    except Refused as refusal:
        raise NotProven(f"this convicts nobody: {refusal}") from None
    raise NotProven(
        "this convicts nobody: the server's words agree with each other and their parts"
    )


def _compare(agreement: Agreement, proof: Fork | DoubleRequest) -> None:
    """`Caught` if the server signed both words, and they contradict each other."""
    for word in (proof.first, proof.second):
        agreement.require_from_server(word)
    found = contradiction(proof.first, proof.second)
    if found is not None:
        raise Caught(found)


def trace(pedigree: Pedigree, model: Model, operator_key: bytes, verifier: Verifier) -> Link:
    """The place of these numbers in the chain of models that the operator's key leads to, or a refusal."""
    agreement = accept(pedigree.epoch, operator_key, verifier)
    link, _ = last_link(agreement, pedigree)
    if model.shape != (agreement.parameters.model_size,):
        raise WrongModel(
            f"it has {model.size} numbers, the epoch's models {agreement.parameters.model_size}"
        )
    if model_hash(link.version, model) != link.model_hash:
        raise WrongModel(f"these are not the numbers of version {link.version}", peer=SERVER)
    return link


def last_link(agreement: Agreement, pedigree: Pedigree) -> tuple[Link, bytes]:
    """The version that a pedigree leads to, and the head of the chain of models with it; or a refusal."""
    release = pedigree.release
    if release is None:
        return agreement.epoch.first, agreement.beginning.head
    require_released(agreement, release)
    _require_endorsed(agreement, release, pedigree)
    return release.history.links[-1], release.history.head


def _require_endorsed(agreement: Agreement, release: Release, pedigree: Pedigree) -> None:
    """Refuse a version without a quorum's certificate of its sum, in an epoch that needs one."""
    if agreement.parameters.consistency != "certified":
        return
    c, history = pedigree.certificate, release.history
    before, link = history.last - 1, history.links[-1]
    if c is None or (c.version, c.head, c.digest) != (before, history.heads[before], link.digest):
        raise PartsDamaged(
            f"the certificate of the sum that made version {history.last} is missing"
        )
    agreement.require_certificate(c)
