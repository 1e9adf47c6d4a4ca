"""Only `quorum` true signatures of different holders on this very digest open a sum."""

import msgspec
import pytest
from parties import (
    QUORUM,
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

from basecagg.channels.unprotected import NoVerifier
from basecagg.errors import BadCertificate, MaskTaken, WrongMembers
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import Answer, CertifiedRequest, endorsement_of, signed


@pytest.fixture
def federation():
    return make_federation()


@pytest.fixture
def request_(federation):
    return request_for(federation, [intercept(federation, name) for name in USERS[:3]])


def shown(request, votes, **changes):
    certificate = msgspec.structs.replace(certificate_of(request, votes), **changes)
    return CertifiedRequest(request, certificate)


@pytest.mark.parametrize("votes", range(QUORUM))
def test_too_short(federation, request_, votes):
    collected = endorse(federation, request_, USERS[:votes])
    all_refuse(federation, shown(request_, collected), BadCertificate)


def test_one_signer_twice(federation, request_):
    votes = endorse(federation, request_, USERS[: QUORUM - 1])
    all_refuse(federation, shown(request_, [*votes, votes[0]]), BadCertificate)
    full = endorse(federation, request_)
    all_refuse(federation, shown(request_, [*full, full[0]]), BadCertificate)


def test_one_signature_under_two_names(federation, request_):
    votes = endorse(federation, request_, USERS[: QUORUM - 1])
    copied = msgspec.structs.replace(votes[0], holder=6)
    all_refuse(federation, shown(request_, [*votes, copied]), BadCertificate)


def test_signed_by_somebody_who_is_no_holder(federation, request_):
    votes = endorse(federation, request_, USERS[: QUORUM - 1])
    for index in (5, 6, 7, 99_999):
        forged = signed(endorsement_of(request_, index), federation.identity("server"))
        all_refuse(federation, shown(request_, [*votes, forged]), BadCertificate)


@pytest.mark.parametrize("signature", [b"", bytes(64), b"\xff" * 63])
def test_forged(federation, request_, signature):
    votes = endorse(federation, request_)
    votes[3] = msgspec.structs.replace(votes[3], signature=signature)
    all_refuse(federation, shown(request_, votes), BadCertificate)


def test_of_another_request(federation, request_):
    """The certificate is true, but for other members."""
    votes = endorse(federation, request_)
    others = [intercept(federation, name) for name in USERS[3:6]]
    other = request_for(federation, others)
    stolen = CertifiedRequest(other, certificate_of(request_, votes))
    all_refuse(federation, stolen, BadCertificate)
    relabelled = msgspec.structs.replace(stolen.certificate, digest=other.digest)
    all_refuse(federation, CertifiedRequest(other, relabelled), BadCertificate)


def test_of_another_version(federation, request_):
    votes = endorse(federation, request_)
    all_refuse(federation, shown(request_, votes, version=1), BadCertificate)


def test_of_another_epoch(federation, request_):
    votes = endorse(federation, request_)
    other = make_federation().agreement.id
    all_refuse(federation, shown(request_, votes, epoch=other), BadCertificate)


def test_of_receipts_or_answers_instead_of_endorsements(federation, request_):
    """Every kind of statement has its own name: a signature on one is none on another."""
    votes = []
    for index, name in enumerate(USERS):
        answer = Answer(federation.agreement.id, 0, request_.digest, index, b"")
        votes.append(signed(answer, federation.identity(name)))
    all_refuse(federation, shown(request_, votes), BadCertificate)


def test_a_true_one_is_answered_once_and_repeated_identically(federation, request_):
    question = shown(request_, endorse(federation, request_))
    first, second = (answers(federation, question) for _ in range(2))
    assert sorted(first) == list(range(7))
    assert all((first[index] == second[index]).all() for index in first)


def test_a_known_one_does_not_vouch_for_its_forgeries(federation, request_):
    """What was checked once is remembered whole: version, digest, signers and signatures."""
    true = certificate_of(request_, endorse(federation, request_))
    assert len(answers(federation, CertifiedRequest(request_, true), ["user-0"])) == 1
    for signatures in (true.signatures[:4], (*true.signatures[:6], (6, bytes(64)))):
        forged = msgspec.structs.replace(true, signatures=signatures)
        refuse(federation, "user-1", CertifiedRequest(request_, forged), BadCertificate)
    members = [intercept(federation, name) for name in ("ann", "bob", "cat")]
    for change in ({"version": 4}, {"digest": bytes(32)}):
        forged = msgspec.structs.replace(true, **change)
        following = request_for(federation, members, forged.version + 1, forged)
        refuse(federation, "user-1", following, BadCertificate)


def test_a_true_one_does_not_lift_the_other_rules(federation):
    """All holders but one are corrupt and certify a sum of two: the honest one does not answer."""
    request = request_for(federation, [intercept(federation, name) for name in USERS[:2]])
    votes = [colluding_endorsement(federation, name, request) for name in USERS[:6]]
    refuse(federation, USERS[6], shown(request, votes), WrongMembers)


def test_a_true_one_does_not_bring_a_spent_mask_back(federation, request_):
    members = [intercept(federation, name) for name in ("ann", "bob")]
    answers(federation, shown(request_, endorse(federation, request_)))
    second = request_for(federation, [request_.tickets[0], *members])
    votes = [colluding_endorsement(federation, name, second) for name in USERS[:6]]
    refuse(federation, USERS[6], shown(second, votes), MaskTaken)


# --- the same with the rule removed -----------------------------------------------------------


def test_control_without_the_check_a_server_needs_no_endorsements(federation, monkeypatch):
    monkeypatch.setattr(Agreement, "require_certificate", lambda self, certificate: None)
    members = [intercept(federation, name) for name in ("ann", "bob", "cat", "dan")]
    first = request_for(federation, members[:3])
    second = request_for(federation, [*members[:2], members[3]])
    sums = []
    for request, names in ((first, USERS[:3]), (second, USERS[3:6])):
        collected = colluding_answer(federation, USERS[6], request)
        collected |= answers(federation, shown(request, []), names)
        sums.append(unmasked_sum(federation, request, members, collected))
    known = weigh(federation, members[3].ticket, 0) * members[3].quantized
    assert reveals(federation, sums[0] - sums[1] + known, 1, members[2])


def test_control_a_verifier_that_believes_everything_takes_a_forged_certificate(
    federation, request_
):
    votes = [endorsement_of(request_, index) for index in range(7)]
    all_refuse(federation, shown(request_, votes), BadCertificate)
    federation.agreement.verifier = NoVerifier()
    assert len(answers(federation, shown(request_, votes))) == 7
