"""What a cheating server can sign about the model that it makes: parts for each cheat, all by its true key."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from msgspec.structs import replace
from parties import make_federation, one_round

from basecagg.channels.identity import Identity
from basecagg.protocol.messages import (
    Answer,
    History,
    MaskName,
    Parts,
    RecoveryRequest,
    content_hash,
    signed,
    signed_digest,
    statement,
)
from basecagg.protocol.proofs import Account, DoubleRequest, Evidence, Fork, Miscalculation, Proof
from basecagg.protocol.recomputation import open_sum
from basecagg.protocol.server import link_to
from basecagg.protocol.step_rule import StepRule, state_from
from reproduction.bench import Federation

Cheat = Callable[[Federation, Parts], Parts]


@cache
def after(rounds: int = 2, **changes) -> tuple[Federation, Parts]:
    """A federation after some honest rounds, and the parts of its last version. Leave them as they are."""
    federation = make_federation(**changes)
    for _ in range(rounds):
        one_round(federation)
    return federation, parts_of(federation)


def parts_of(federation: Federation) -> Parts:
    parts = federation.server.opening.kept.parts(federation.server.version)
    assert parts is not None
    return parts


def release(federation: Federation, parts: Parts, **changes) -> Parts:
    """The parts under another release that the server signs."""
    changed = replace(parts.release, signature=b"", **changes)
    return replace(parts, release=signed(changed, federation.identity("server")))


def named(parts: Parts) -> tuple[tuple[int, bytes], ...]:
    """The answers as a release names them."""
    return tuple((a.holder, signed_digest(statement(a), a.signature)) for a in parts.answers)


def with_answers(federation: Federation, parts: Parts, answers) -> Parts:
    changed = replace(parts, answers=tuple(answers))
    return release(federation, changed, answers=named(changed))


def retold(parts: Parts, **changes) -> History:
    """The history with another last link."""
    history = parts.release.history
    return replace(history, links=(*history.links[:-1], replace(history.links[-1], **changes)))


def stepped(federation: Federation, parts: Parts, opened=None, step: StepRule | None = None):
    """The history after another sum, or another step."""
    agreement, version = federation.agreement, parts.release.history.last
    answers = {answer.holder: answer for answer in parts.answers}
    opened = opened or open_sum(agreement, parts.request, parts.uploads, answers)
    dtype = f"<f{len(parts.model) // agreement.parameters.model_size}"
    model = np.frombuffer(parts.model, dtype)
    rule = agreement.epoch.step
    state = (
        state_from(parts.state, rule, dtype, model.size) if parts.state else rule.fresh_state(model)
    )
    made = (step or rule).step(model, state, opened.weighted_sum, sum(opened.weights))
    link = link_to(version, *made, parts.request.digest)
    return retold(parts, model_hash=link.model_hash, state_hash=link.state_hash)


def _opened(federation: Federation, parts: Parts, request: RecoveryRequest | None = None):
    answers = {answer.holder: answer for answer in parts.answers}
    return open_sum(federation.agreement, request or parts.request, parts.uploads, answers)


# --- the cheats -------------------------------------------------------------------------------


def replaced_model(federation: Federation, parts: Parts) -> Parts:
    return release(federation, parts, history=retold(parts, model_hash=bytes(32)))


def replaced_sum(federation: Federation, parts: Parts) -> Parts:
    opened = _opened(federation, parts)
    opened.weighted_sum[7] += 1 / 2**16
    return release(federation, parts, history=stepped(federation, parts, opened))


def changed_weights(federation: Federation, parts: Parts) -> Parts:
    """One contributor counts more than its age allows. The normaliser shows it, if nothing else does."""
    opened = _opened(federation, parts)
    first, *others = opened.weights
    opened = type(opened)(opened.weighted_sum, (first + 1, *others), (), opened.digest)
    return release(federation, parts, history=stepped(federation, parts, opened))


def another_step_size(federation: Federation, parts: Parts) -> Parts:
    rule = replace(federation.agreement.epoch.step, rate=0.999)
    return release(federation, parts, history=stepped(federation, parts, step=rule))


def false_blame(federation: Federation, parts: Parts) -> Parts:
    return release(federation, parts, wrong=(parts.answers[0].holder,))


def forged_answer(federation: Federation, parts: Parts) -> Parts:
    """The server makes up what a holder said, and nobody signed it."""
    first, *others = parts.answers
    forged = replace(first, words=bytes(len(first.words)))
    return with_answers(federation, parts, [forged, *others])


def fitting_answer(federation: Federation, parts: Parts) -> Parts:
    """From U answers a server knows what any other holder would say, and says it in its name."""
    first, *others = parts.answers
    return with_answers(federation, parts, [replace(first, signature=bytes(64)), *others])


def stolen_answer(federation: Federation, parts: Parts) -> Parts:
    """A holder's true answer, to another request."""
    first, *others = parts.answers
    holder = federation.agreement.holder_names[first.holder]
    elsewhere = replace(first, digest=content_hash(b"another request"), signature=b"")
    return with_answers(
        federation, parts, [signed(elsewhere, federation.identity(holder)), *others]
    )


def answer_counted_twice(federation: Federation, parts: Parts) -> Parts:
    return with_answers(federation, parts, [parts.answers[0], *parts.answers])


def too_few_answers(federation: Federation, parts: Parts) -> Parts:
    needed = federation.agreement.parameters.recovery_threshold
    return with_answers(federation, parts, parts.answers[: needed - 1])


def unasked_sum(federation: Federation, parts: Parts) -> Parts:
    """One upload is left out of the sum: the holders never answered that."""
    request = replace(parts.request, tickets=parts.request.tickets[1:], signature=b"")
    request = signed(request, federation.identity("server"))
    changed = replace(
        parts,
        request=request,
        uploads=parts.uploads[1:],
        certificate=replace(parts.certificate, digest=request.digest)
        if parts.certificate
        else None,
    )
    return release(federation, changed, history=retold(parts, digest=request.digest))


MISCALCULATIONS: tuple[Cheat, ...] = (
    replaced_model,
    replaced_sum,
    changed_weights,
    another_step_size,
    false_blame,
    forged_answer,
    fitting_answer,
    stolen_answer,
    answer_counted_twice,
    too_few_answers,
)
"""They do not need a quorum of holders to go along."""


def miscalculation(cheat: Cheat) -> Callable[[Federation, Parts], Proof]:
    return lambda federation, parts: Miscalculation(cheat(federation, parts))


def fork(federation: Federation, parts: Parts) -> Proof:
    return Fork(parts.release, replaced_model(federation, parts).release)


def fork_in_a_request(federation: Federation, parts: Parts) -> Proof:
    """The chain that holders are asked about is not the one that contributors were shown."""
    history = retold(parts, model_hash=bytes(32))
    request = replace(
        parts.request, version=history.last, history=history, previous=None, signature=b""
    )
    return Fork(parts.release, signed(request, federation.identity("server")))


def double_request(federation: Federation, parts: Parts) -> Proof:
    """Two sums for one slot."""
    other = MaskName("user-6", bytes(16))
    tickets = tuple(replace(ticket, mask=other) for ticket in parts.request.tickets)
    request = replace(parts.request, tickets=tickets, signature=b"")
    return DoubleRequest(parts.request, signed(request, federation.identity("server")))


def request_after_a_burn(federation: Federation, parts: Parts) -> Proof:
    """The next attempt has a mask of the last one in it."""
    request = replace(parts.request, attempt=1, signature=b"")
    return DoubleRequest(parts.request, signed(request, federation.identity("server")))


CHEATS: dict[str, Callable[[Federation, Parts], Proof]] = {
    **{cheat.__name__: miscalculation(cheat) for cheat in MISCALCULATIONS},
    **{
        cheat.__name__: cheat
        for cheat in (fork, fork_in_a_request, double_request, request_after_a_burn)
    },
}


def evidence(federation: Federation, proof: Proof) -> Evidence:
    return Evidence(federation.agreement.epoch, proof, operator_key(federation))


def account_of(federation: Federation) -> Account:
    return Account(federation.agreement.epoch, parts_of(federation), operator_key(federation))


def operator_key(federation: Federation) -> bytes:
    return federation.identity("operator").public_key


def resigned(proof: Proof, stranger: Identity) -> Proof:
    """The same proof, with the words of somebody who is not the server."""

    def again(word):
        return signed(replace(word, signature=b""), stranger)

    if isinstance(proof, Miscalculation):
        return Miscalculation(replace(proof.parts, release=again(proof.parts.release)))
    return replace(proof, second=again(proof.second))


def lies(federation: Federation, answer: Answer) -> Answer:
    """Another answer by the same holder to the same request, properly signed."""
    holder = federation.agreement.holder_names[answer.holder]
    words = np.frombuffer(answer.words, "<u4").copy()
    words[0] = (int(words[0]) + 1) % federation.agreement.parameters.modulus
    said = replace(answer, words=words.tobytes(), signature=b"")
    return signed(said, federation.identity(holder))
