"""Half of the holders endorse one request, half another with the same masks: nothing opens, all goes on."""

import pytest
from parties import (
    QUORUM,
    USERS,
    answers,
    ask,
    certificate_of,
    certify,
    colluding_answer,
    endorse,
    exact_sum,
    holder_at,
    intercept,
    make_federation,
    one_round,
    refuse,
    released,
    request_for,
    reveals,
    unmasked_sum,
    weigh,
)

from basecagg.errors import MaskTaken
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import CertifiedRequest, Closing, Endorsement, signed


def split_vote(federation, majority):
    """The first `majority` holders endorse a + b + c, the others a + b + d."""
    members = [intercept(federation, name) for name in ("ann", "bob", "cat", "dan")]
    first = request_for(federation, members[:3], attempt=10)
    second = request_for(federation, [*members[:2], members[3]], attempt=11)
    votes = endorse(federation, first, USERS[:majority])
    others = endorse(federation, second, USERS[majority:])
    assert (len(votes), len(others)) == (majority, 7 - majority)
    return members, first, votes, second, others


def test_training_goes_on_with_other_masks():
    federation = make_federation()
    split_vote(federation, 4)
    submitted = one_round(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_training_goes_on_after_the_masks_are_closed():
    federation = make_federation()
    members, *_ = split_vote(federation, 4)
    masks = tuple(member.ticket.mask for member in members)
    closing = signed(
        Closing(federation.agreement.id, 0, masks, "burned"), federation.identity("server")
    )
    for name in USERS:
        assert ask(federation, name, closing) == []
        assert federation.network.nodes[holder_at(name)].store.scan("share") == []
    one_round(federation)
    assert federation.server.version == 1


def test_a_certificate_overrides_an_endorsement_of_another_request():
    """Five endorsed the first request, so no certificate of the second can exist: the others may answer too."""
    federation = make_federation()
    members, first, votes, second, _ = split_vote(federation, QUORUM)
    question = CertifiedRequest(first, certificate_of(first, votes))
    collected = answers(federation, question)
    assert sorted(collected) == list(range(7))
    total = unmasked_sum(federation, first, members, collected)
    wanted = sum(member.quantized.astype(object) for member in members[:3])
    assert (total == wanted % federation.agreement.parameters.modulus).all()
    for name in USERS:
        refuse(federation, name, second, MaskTaken)


def test_the_mask_left_over_is_usable_in_the_endorsed_request_only():
    """Holder 6 endorsed a + b + d and answered a + b + c: dan's mask serves no other request there."""
    federation = make_federation()
    members, first, votes, *_ = split_vote(federation, QUORUM)
    answers(federation, CertifiedRequest(first, certificate_of(first, votes)))
    others = [intercept(federation, name) for name in ("eve", "fay")]
    previous = certificate_of(first, votes)
    request = request_for(federation, [members[3], *others], 1, previous)
    refuse(federation, USERS[6], request, MaskTaken)
    (vote,) = ask(federation, USERS[0], request)
    assert isinstance(vote, Endorsement)
    # And yet, with a certificate, it answers.
    assert len(answers(federation, certify(federation, request, USERS[:5]), USERS)) == 7


@pytest.mark.parametrize("majority", [1, 2, 3, 4])
def test_only_a_quorum_is_answered(majority):
    federation = make_federation()
    _, first, votes, second, others = split_vote(federation, majority)
    for request, signatures in ((first, votes), (second, others)):
        question = CertifiedRequest(request, certificate_of(request, signatures))
        if len(signatures) >= QUORUM:
            assert len(answers(federation, question)) == 7
        else:
            assert answers(federation, question) == {}


def test_control_an_override_without_a_certificate_reveals_an_update(monkeypatch):
    """If votes could be changed at will, both requests were certified: 3 + 3 answers and a colluder."""
    checked = Holder._require_usable
    monkeypatch.setattr(
        Holder,
        "_require_usable",
        lambda self, ticket, version, certified: checked(self, ticket, version, certified=True),
    )
    federation = make_federation()
    members = [intercept(federation, name) for name in ("ann", "bob", "cat", "dan")]
    first = request_for(federation, members[:3])
    second = request_for(federation, [*members[:2], members[3]])
    questions = [certify(federation, request) for request in (first, second)]
    sums = []
    for question, names in zip(questions, (USERS[:3], USERS[3:6]), strict=True):
        shares = colluding_answer(federation, USERS[6], question.request)
        shares |= answers(federation, question, names)
        sums.append(unmasked_sum(federation, question.request, members, shares))
    known = weigh(federation, members[3].ticket, 0) * members[3].quantized
    assert reveals(federation, sums[0] - sums[1] + known, 1, members[2])
