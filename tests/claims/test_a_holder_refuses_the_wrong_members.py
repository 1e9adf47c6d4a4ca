"""Exactly K members, each a contributor of its own who uploaded, in one order; else nothing is endorsed."""

import msgspec
import pytest
from parties import (
    USERS,
    all_refuse,
    answers,
    ask,
    certificate_of,
    certify,
    deal,
    endorse,
    intercept,
    make_federation,
    one_round,
    request_for,
    reveals,
    sign_request,
    unmasked_sum,
)

from basecagg.channels.unprotected import NoVerifier
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import BadSignature, ChannelError, UnknownMask, WrongEpoch, WrongMembers
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import MaskName, Ticket, signed

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def uploads(federation, *names, base=None):
    return [intercept(federation, name, base=base) for name in names]


@MODES
@pytest.mark.parametrize("count", [1, 2, 4])
def test_not_exactly_k(consistency, count):
    federation = make_federation(consistency=consistency)
    members = uploads(federation, *USERS[:count])
    all_refuse(federation, request_for(federation, members), WrongMembers)


@MODES
def test_k_contributors_with_more_than_k_masks(consistency):
    federation = make_federation(consistency=consistency, repeated_versions=True)
    members = uploads(federation, "ann", "ann", "bob", "cat")
    all_refuse(federation, request_for(federation, members), WrongMembers)


def test_nobody_at_all():
    """No such frame can be sent; a holder does not rely on that, for a signature on nothing skips versions."""
    federation = make_federation()
    nothing = sign_request(federation, ())
    with pytest.raises(ChannelError):
        unpack(pack(nothing), MAX_CONTROL_BYTES)
    with pytest.raises(WrongMembers):
        federation.holder("user-0").receive(nothing)


@MODES
def test_one_mask_twice(consistency):
    federation = make_federation(consistency=consistency)
    first, second = uploads(federation, "ann", "bob")
    all_refuse(federation, request_for(federation, [first, first, second]), WrongMembers)


@MODES
def test_one_contributor_twice(consistency):
    """Two masks of one user: the server would need one honest update less."""
    federation = make_federation(consistency=consistency, repeated_versions=True)
    members = uploads(federation, "ann", "ann", "bob")
    all_refuse(federation, request_for(federation, members), WrongMembers)


@MODES
def test_another_order(consistency):
    """One set of members has one digest."""
    federation = make_federation(consistency=consistency)
    tickets = request_for(federation, uploads(federation, *USERS[:3])).tickets
    all_refuse(federation, sign_request(federation, tickets[::-1]), WrongMembers)


@MODES
def test_somebody_who_dealt_but_did_not_upload(consistency):
    federation = make_federation(consistency=consistency)
    members = uploads(federation, "ann", "bob")
    deal(federation, "cat")
    (mask,) = federation.contributor("cat").ready
    invented = Ticket(federation.agreement.id, mask, 0, federation.server.head, bytes(32))
    for signer in ("server", "ann"):  # the server has neither cat's key nor a friend with it
        ticket = signed(invented, federation.identity(signer))
        all_refuse(federation, request_for(federation, [*members, ticket]), BadSignature)


@MODES
def test_a_mask_that_was_never_dealt(consistency):
    federation = make_federation(consistency=consistency)
    members = uploads(federation, "ann", "bob")
    friend = federation.identity("friend")
    invented = MaskName("friend", bytes(16))
    ticket = Ticket(federation.agreement.id, invented, 0, federation.server.head, bytes(32))
    request = request_for(federation, [*members, signed(ticket, friend)])
    all_refuse(federation, request, UnknownMask)


@MODES
@pytest.mark.parametrize(
    ("field", "value", "base"),
    [
        ("base_version", 0, 1),
        ("head", bytes(32), 1),
        ("upload_hash", bytes(32), 1),
        ("staleness", 0, 0),  # it was weighed at the age 1
    ],
    ids=["base_version", "head", "upload_hash", "staleness"],
)
def test_a_ticket_that_was_changed(consistency, field, value, base):
    federation = make_federation(consistency=consistency, min_per_version=1, repeated_versions=True)
    one_round(federation, USERS[4:7])
    members = uploads(federation, *USERS[:3], base=base)
    previous = federation.server.opening._past.opened
    assert getattr(members[0].ticket, field) != value
    changed = msgspec.structs.replace(members[0].ticket, **{field: value})
    request = request_for(federation, [changed, *members[1:]], 1, previous)
    all_refuse(federation, request, BadSignature)


@MODES
def test_a_ticket_of_another_epoch(consistency):
    federation, other = (make_federation(consistency=consistency) for _ in range(2))
    members = uploads(federation, "ann", "bob")
    deal(federation, "cat")
    (mask,) = federation.contributor("cat").ready
    foreign = Ticket(other.agreement.id, mask, 0, federation.server.head, bytes(32))
    ticket = signed(foreign, federation.identity("cat"))
    all_refuse(federation, request_for(federation, [*members, ticket]), WrongEpoch)


@MODES
def test_a_request_of_another_epoch(consistency):
    federation, other = (make_federation(consistency=consistency) for _ in range(2))
    request = request_for(federation, uploads(federation, *USERS[:3]))
    for name in USERS:
        with pytest.raises(WrongEpoch):
            other.holder(name).receive(request)
    foreign = msgspec.structs.replace(request, epoch=other.agreement.id, signature=b"")
    all_refuse(federation, signed(foreign, federation.identity("server")), WrongEpoch)


@MODES
def test_too_few_of_one_base_version(consistency):
    """`min_per_version`: a model shown to one user only would single that user out."""
    federation = make_federation(
        consistency=consistency,
        min_per_version=2,
        max_colluding_contributors=0,
        buffer_size=4,
    )
    old = uploads(federation, *USERS[:3])
    one_round(federation, USERS[3:7])
    new = uploads(federation, "ann")
    previous = federation.server.opening._past.opened
    all_refuse(federation, request_for(federation, [*old, *new], 1, previous), WrongMembers)
    new += uploads(federation, "bob")
    allowed = request_for(federation, [*old[:2], *new], 1, previous)
    assert len(ask(federation, "user-0", allowed)) == 1


def two_tiers(federation):
    """Of six updates made from version 0, three were weighed at the age 0 and three at the age 1."""
    fresh = uploads(federation, *USERS[:3])
    one_round(federation, [f"phone-{index}" for index in range(6)])
    late = uploads(federation, *USERS[3:6], base=0)
    assert [each.ticket.staleness for each in (*fresh, *late)] == [0, 0, 0, 1, 1, 1]
    return fresh, late, federation.server.opening._past.opened


@MODES
def test_two_weights_of_one_base_version(consistency):
    """Who delays some of them would otherwise leave the others with weights of their own."""
    federation = make_federation(consistency=consistency, buffer_size=6, min_per_version=3)
    fresh, late, previous = two_tiers(federation)
    all_refuse(federation, request_for(federation, [*fresh, *late], 1, previous), WrongMembers)


@MODES
def test_two_base_versions_of_different_weights(consistency):
    """What is new was weighed by 1, what is old by one half: each version has one weight."""
    federation = make_federation(consistency=consistency, buffer_size=6, min_per_version=3)
    _, late, previous = two_tiers(federation)
    new = uploads(federation, *USERS[:3])
    request = request_for(federation, [*late, *new], 1, previous)
    assert len(ask(federation, "user-0", request)) == 1


# --- the same with the rule removed -----------------------------------------------------------


@MODES
def test_control_without_the_rule_two_weights_of_one_version_are_taken(monkeypatch, consistency):
    monkeypatch.setattr(Holder, "_require_members", lambda self, request: None)
    federation = make_federation(consistency=consistency, buffer_size=6, min_per_version=3)
    fresh, late, previous = two_tiers(federation)
    request = request_for(federation, [*fresh, *late], 1, previous)
    assert len(ask(federation, "user-0", request)) == 1


@MODES
def test_control_a_sum_of_one_is_that_update(monkeypatch, consistency):
    monkeypatch.setattr(Holder, "_require_members", lambda self, request: None)
    federation = make_federation(consistency=consistency)
    (victim,) = uploads(federation, "victim")
    request = request_for(federation, [victim])
    question = certify(federation, request) if consistency == "certified" else request
    total = unmasked_sum(federation, request, [victim], answers(federation, question))
    assert reveals(federation, total, 1, victim)


def test_control_friends_of_one_name_surround_the_victim(monkeypatch):
    """Two masks of one friend: the sum minus what the friend knows is the victim's update."""
    monkeypatch.setattr(Holder, "_require_members", lambda self, request: None)
    federation = make_federation(repeated_versions=True)
    members = uploads(federation, "friend", "friend", "victim")
    request = request_for(federation, members)
    collected = answers(federation, certify(federation, request))
    total = unmasked_sum(federation, request, members, collected)
    known = members[0].quantized + members[1].quantized
    assert reveals(federation, total - known, 1, members[2])


def test_control_a_verifier_that_believes_everything_takes_a_forged_ticket():
    federation = make_federation()
    members = uploads(federation, "ann", "bob")
    deal(federation, "cat")
    (mask,) = federation.contributor("cat").ready
    forged = Ticket(federation.agreement.id, mask, 0, federation.server.head, bytes(32))
    federation.agreement.verifier = NoVerifier()
    request = request_for(federation, [*members, forged])
    votes = endorse(federation, request)
    assert len(votes) == 7
    assert certificate_of(request, votes).digest == request.digest
