"""Different requests to different holders: a certified sum is one sum, whatever the server shows to whom.

The attack: T = 1 holder and one contributor work with the server. Holders 0–2 are asked for a + b + c,
holders 3–5 for a + b + d, the colluder answers both: 3 + 1 = U answers for either sum. Their difference is
c − d, and d is known.
"""

import msgspec
import pytest
from parties import (
    USERS,
    all_refuse,
    answers,
    certificate_of,
    colluding_answer,
    colluding_endorsement,
    endorse,
    intercept,
    make_federation,
    refuse,
    request_for,
    reveals,
    unmasked_sum,
    weigh,
)

from basecagg.errors import BadCertificate, BadSignature, MaskTaken
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import CertifiedRequest, signed

ONE_HALF, OTHER_HALF, COLLUDER = USERS[:3], USERS[3:6], USERS[6]


def two_requests(federation):
    members = [intercept(federation, name) for name in ("ann", "bob", "victim", "friend")]
    first = request_for(federation, [*members[:2], members[2]])
    second = request_for(federation, [*members[:2], members[3]])
    return members, first, second


def difference_reveals_the_victim(federation, members, first, second, collected):
    sums = [
        unmasked_sum(federation, request, members, shares)
        for request, shares in zip((first, second), collected, strict=True)
    ]
    victim, friend = members[2:]
    known = weigh(federation, friend.ticket, 0) * friend.quantized
    weight = weigh(federation, victim.ticket, 0)
    return reveals(federation, sums[0] - sums[1] + known, weight, victim)


def questions_of(federation, first, second):
    """Each half endorses what it is shown, and the colluder both."""
    for request, names in ((first, ONE_HALF), (second, OTHER_HALF)):
        votes = endorse(federation, request, names)
        votes.append(colluding_endorsement(federation, COLLUDER, request))
        yield CertifiedRequest(request, certificate_of(request, votes))


def test_neither_sum_is_certified():
    federation = make_federation()
    _, first, second = two_requests(federation)
    for question in questions_of(federation, first, second):
        all_refuse(federation, question, BadCertificate)


def test_nobody_endorses_twice():
    federation = make_federation()
    _, first, second = two_requests(federation)
    assert len(endorse(federation, first)) == 7
    all_refuse(federation, second, MaskTaken)


def test_the_same_members_at_another_version_are_another_request():
    federation = make_federation()
    (*members, _), first, _ = two_requests(federation)
    endorse(federation, first)
    certificate = certificate_of(first, endorse(federation, first))
    all_refuse(federation, request_for(federation, members, 1, certificate), MaskTaken)


def test_an_answer_is_given_for_one_request_only():
    federation = make_federation()
    _, first, second = two_requests(federation)
    certified = CertifiedRequest(first, certificate_of(first, endorse(federation, first)))
    assert len(answers(federation, certified)) == 7
    all_refuse(federation, second, MaskTaken)


def test_without_certificates_too_a_holder_answers_once():
    federation = make_federation(consistency="honest-server")
    _, first, second = two_requests(federation)
    assert len(answers(federation, first)) == 7
    all_refuse(federation, second, MaskTaken)


def test_control_in_honest_server_mode_the_attack_succeeds():
    """What the paper's model does not promise: the certificate is what stops it."""
    federation = make_federation(consistency="honest-server")
    members, first, second = two_requests(federation)
    collected = []
    for request, names in ((first, ONE_HALF), (second, OTHER_HALF)):
        colluder = colluding_answer(federation, COLLUDER, request)
        collected.append(answers(federation, request, names) | colluder)
    assert difference_reveals_the_victim(federation, members, first, second, collected)


def test_control_with_a_smaller_quorum_the_attack_succeeds(monkeypatch):
    monkeypatch.setattr(ProtocolParameters, "quorum", 4)
    federation = make_federation()
    members, first, second = two_requests(federation)
    collected = []
    for question, names in zip(
        list(questions_of(federation, first, second)), (ONE_HALF, OTHER_HALF), strict=True
    ):
        colluder = colluding_answer(federation, COLLUDER, question.request)
        collected.append(answers(federation, question, names) | colluder)
    assert difference_reveals_the_victim(federation, members, first, second, collected)


@pytest.mark.parametrize("who", [0, 6])
def test_a_request_that_the_server_did_not_sign_is_refused(who):
    federation = make_federation()
    _, first, _ = two_requests(federation)
    forged = msgspec.structs.replace(first, signature=b"")
    refuse(federation, USERS[who], forged, BadSignature)
    refuse(federation, USERS[who], signed(forged, federation.identity("ann")), BadSignature)
