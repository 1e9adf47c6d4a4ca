"""Whether evidence convicts a server. It is checked from scratch: whoever hands it in may be lying.

A judge needs the operator's key and nothing else. That leads to the epoch, the epoch names the keys of the
server and of the holders, and the server's own signed words do the rest.
"""

from __future__ import annotations

from basecagg.errors import NotProven, PartsDamaged, Refused, WrongModel
from basecagg.protocol.epoch import SERVER, Agreement, accept
from basecagg.protocol.global_model import Model, model_hash
from basecagg.protocol.messages import Link, Release
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
from basecagg.protocol.recomputation import recompute, require_released


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
        agreement.require_id(word.epoch)
        agreement.require_signed(word, agreement.epoch.server_key, word.signature)
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
    """A quorum of holders endorsed the very sum that made the version, where they have to."""
    if agreement.parameters.consistency != "certified":
        return
    c, history = pedigree.certificate, release.history
    before, link = history.last - 1, history.links[-1]
    if c is None or (c.version, c.head, c.digest) != (before, history.heads[before], link.digest):
        raise PartsDamaged(
            f"the certificate of the sum that made version {history.last} is missing"
        )
    agreement.require_certificate(c)
