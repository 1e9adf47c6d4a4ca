"""The holder's machine: keeps, confirms, endorses, answers, forgets. What it refuses is in claims/."""

import numpy as np
import pytest
from parties import (
    QUORUM,
    USERS,
    answers,
    ask,
    at,
    certify,
    deal,
    endorse,
    holder_at,
    intercept,
    make_federation,
    one_hop,
    one_round,
    refuse,
    request_for,
    weigh,
)

from basecagg.errors import Malformed, MaskTaken, Retired
from basecagg.protocol.effects import Forget, Persist, Send, sends_of, writes_of
from basecagg.protocol.messages import (
    Answer,
    Closing,
    Endorsement,
    MaskName,
    Receipt,
    signed,
)
from basecagg.storage.in_memory import MemoryStore


def members(federation, *names):
    return [intercept(federation, name) for name in names or USERS[:3]]


def question_for(federation, request):
    certified = federation.agreement.parameters.consistency == "certified"
    return certify(federation, request) if certified else request


def store_of(federation, name="user-0"):
    return federation.network.nodes[holder_at(name)].store


# --- keeping ----------------------------------------------------------------------------------


def parcels(federation, *dealers):
    """The parcels for the first holder."""
    for name in dealers:
        federation.deal(name)
    letters = [each for each in one_hop(federation) if each.to == holder_at("user-0")]
    federation.network.in_flight.clear()
    return [each.message for each in letters]


def test_one_receipt_for_a_batch(federation):
    holder, batch = federation.holder("user-0"), parcels(federation, "ann", "bob", "cat")
    for parcel in batch:
        effects = holder.receive(parcel)
        assert [type(effect) for effect in effects] == [Persist, Persist]  # nothing is sent yet
        store_of(federation).commit(writes_of(effects))
    (send,) = holder.acknowledge()
    assert send.message.masks == tuple(parcel.dealing.masks[0] for parcel in batch)
    assert holder.acknowledge() == []


def test_the_same_parcel_again_is_confirmed_again_and_not_stored_again(federation):
    holder, (parcel,) = federation.holder("user-0"), parcels(federation, "ann")
    holder.receive(parcel)
    holder.acknowledge()
    assert holder.receive(parcel) == []
    assert len(holder.acknowledge()) == 1
    assert list(holder.states().values()) == ["held"]


def test_a_refused_parcel_is_not_confirmed(federation):
    holder, (parcel,) = federation.holder("user-1"), parcels(federation, "ann")
    with pytest.raises(Exception, match="not the one dealt"):
        holder.receive(parcel)
    assert holder.acknowledge() == []


# --- answering --------------------------------------------------------------------------------


def test_the_answer_is_the_weighted_sum_of_the_shares(federation):
    """Worked out here in Python's integers."""
    chosen = members(federation)
    request = request_for(federation, chosen)
    question = question_for(federation, request)
    q, store = federation.agreement.parameters.modulus, store_of(federation)
    wanted = sum(
        weigh(federation, ticket, 0)
        * np.frombuffer(store.read("share", ticket.mask.key), "<u4").astype(object)
        for ticket in request.tickets
    )
    (got,) = answers(federation, question, ["user-0"]).values()
    assert (got == wanted % q).all()


def test_spent_is_written_before_the_answer_is_sent(federation):
    question = question_for(federation, request_for(federation, members(federation)))
    effects = federation.holder("user-0").receive(question)
    assert isinstance(effects[-1], Send)
    assert len(sends_of(effects)) == 1
    written = [e for e in effects if isinstance(e, Persist)]
    kept = {"question", "certified"} if federation.agreement.parameters.quorum else {"question"}
    kept &= {effect.kind for effect in written if not effect.irreversible}
    assert {effect.kind for effect in written} == {"held", "answer", "progress", *kept}
    assert {effect.kind for effect in effects if isinstance(effect, Forget)} == {"share"}
    assert len([effect for effect in effects if isinstance(effect, Forget)]) == 3


def test_the_same_question_is_answered_with_the_same_bytes(federation):
    """Also after a restart, for the answer is kept until the next version."""
    question = question_for(federation, request_for(federation, members(federation)))
    first = ask(federation, "user-0", question)
    federation.start(holder_at("user-0"))
    assert ask(federation, "user-0", question) == first
    assert isinstance(first[0], Answer)


def test_the_shares_are_gone_when_the_answer_leaves(federation):
    question = question_for(federation, request_for(federation, members(federation)))
    assert len(store_of(federation).scan("share")) == 3
    ask(federation, "user-0", question)
    assert store_of(federation).scan("share") == []


def test_an_endorsement_is_written_before_it_is_sent(certified):
    request = request_for(certified, members(certified))
    effects = certified.holder("user-0").receive(request)
    assert isinstance(effects[-1].message, Endorsement)
    assert all(isinstance(effect, Persist) for effect in effects[:-1])
    assert {effect.kind for effect in effects[:-1] if not effect.irreversible} == {"question"}
    assert store_of(certified).scan("share") != []


def test_a_holder_that_was_not_asked_to_endorse_answers_a_certificate(certified):
    request = request_for(certified, members(certified))
    question = certify(certified, request, USERS[:QUORUM])
    assert sorted(answers(certified, question)) == list(range(7))


def test_a_plain_request_is_never_answered_in_certified_mode(certified):
    request = request_for(certified, members(certified))
    for _ in range(3):
        for name in USERS:
            (reply,) = ask(certified, name, request)
            assert isinstance(reply, Endorsement)


def test_whoever_answered_still_endorses_the_same_request(certified):
    """A server that lost its certificate gets it together again, also from those who never endorsed."""
    request = request_for(certified, members(certified))
    question = certify(certified, request, USERS[:QUORUM])
    assert len(answers(certified, question)) == 7
    for name in USERS:
        for _ in range(2):
            (reply,) = ask(certified, name, request)
            assert isinstance(reply, Endorsement)
        certified.start(holder_at(name))
        assert certified.holder(name).remembers(certify(certified, request).certificate)


def test_one_sum_after_another_at_one_version(certified):
    """A buffer that burned does not stop the next one at the same t."""
    first = request_for(certified, members(certified, *USERS[:3]))
    second = request_for(certified, members(certified, *USERS[3:6]))
    for request in (first, second):
        assert len(answers(certified, certify(certified, request))) == 7


# --- forgetting -------------------------------------------------------------------------------


def closing(federation, masks, outcome="opened"):
    message = Closing(federation.agreement.id, 1, tuple(masks), outcome)
    return signed(message, federation.identity("server"))


def test_closing_deletes_the_share_and_keeps_the_name(federation):
    deal(federation, "ann")
    (mask,) = federation.contributor("ann").ready
    assert ask(federation, "user-0", closing(federation, [mask])) == []
    assert store_of(federation).scan("share") == []
    assert federation.holder("user-0").states() == {mask.key: "closed"}
    assert ask(federation, "user-0", closing(federation, [mask])) == []  # twice is once


def test_a_closed_share_is_gone_for_good(federation):
    """An older copy of the store would still have it."""
    deal(federation, "ann")
    (mask,) = federation.contributor("ann").ready
    effects = federation.holder("user-0").receive(closing(federation, [mask]))
    assert Forget("share", mask.key) in effects
    assert [e.irreversible for e in effects if isinstance(e, Persist) and e.kind == "held"] == [
        True
    ]


def test_closing_deletes_the_answer(federation):
    request = request_for(federation, members(federation))
    ask(federation, "user-0", question_for(federation, request))
    assert len(store_of(federation).scan("answer")) == 1
    ask(federation, "user-0", closing(federation, request.masks))
    assert store_of(federation).scan("answer") == []


def test_closing_masks_that_are_not_known_changes_nothing(federation):
    before = store_of(federation).snapshot()
    ask(federation, "user-0", closing(federation, [MaskName("ann", bytes(16))]))
    assert store_of(federation).snapshot() == before


def test_a_late_certificate_for_closed_masks_is_refused(certified):
    """Endorsed, then burned, then certified after all: a refusal and not a crash."""
    request = request_for(certified, members(certified))
    question = certify(certified, request)
    ask(certified, "user-0", closing(certified, request.masks, "burned"))
    refuse(certified, "user-0", question, MaskTaken)
    refuse(certified, "user-0", request, MaskTaken)


def test_hashes_of_models_are_kept_as_long_as_updates_may_come_from_them(federation):
    """Else a server could show another model under an old version."""
    federation = make_federation(
        consistency=federation.agreement.parameters.consistency, max_staleness=2
    )
    for turn in range(5):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    assert sorted(federation.holder("user-0")._progress.heads) == [2, 3, 4]


def test_disk_use_stays_bounded(federation):
    """Shares, answers and names of the past are gone after mask_lifetime versions; only votes stay."""
    federation = make_federation(
        consistency=federation.agreement.parameters.consistency,
        max_staleness=2,
        mask_lifetime=3,
    )
    sizes = []
    for turn in range(12):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
        kinds = store_of(federation).snapshot()
        sizes.append(sum(len(records) for kind, records in kinds.items() if kind != "vote"))
        assert len(kinds.get("vote", {})) <= turn + 1
    assert max(sizes[6:]) <= max(sizes[:6])
    assert len(store_of(federation).scan("answer")) <= 1
    assert len(federation.holder("user-0").states()) <= 3 * 5


def test_unused_masks_expire(federation):
    federation = make_federation(
        consistency=federation.agreement.parameters.consistency,
        max_staleness=1,
        mask_lifetime=2,
    )
    deal(federation, "idle")
    (mask,) = federation.contributor("idle").ready
    for turn in range(4):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    assert mask.key not in federation.holder("user-0").states()
    assert store_of(federation).read("share", mask.key) is None


# --- restarts and copies ----------------------------------------------------------------------


def test_a_restart_in_every_state(certified):
    """Each holder is rebuilt from its records between any two messages."""
    submitted = members(certified)

    def restart():
        for name in USERS:
            before = certified.holder(name).states(), certified.holder(name).version
            certified.start(holder_at(name))
            assert (certified.holder(name).states(), certified.holder(name).version) == before

    restart()
    request = request_for(certified, submitted)
    votes = endorse(certified, request)
    restart()
    assert endorse(certified, request) == votes
    question = certify(certified, request)
    restart()
    first = answers(certified, question)
    restart()
    again = answers(certified, question)
    assert all((first[index] == again[index]).all() for index in range(7))


def test_an_older_copy_ends_the_holders_epoch(federation):
    """It may have answered since: everything is deleted, and everything refused from now on."""
    deal(federation, "ann")
    copy = MemoryStore(store_of(federation).snapshot())
    copy.rolled_back = True
    federation.start(holder_at("user-0"), copy)
    assert copy.scan("share") == []
    holder = federation.holder("user-0")
    assert set(holder.states().values()) == {"closed"}
    copy.rolled_back = False
    federation.start(holder_at("user-0"))  # for good
    with pytest.raises(Retired):
        federation.holder("user-0").receive(parcels(federation, "bob")[0])


def test_training_goes_on_without_a_retired_holder(federation):
    copy = MemoryStore(store_of(federation).snapshot())
    copy.rolled_back = True
    federation.start(holder_at("user-0"), copy)
    one_round(federation)
    assert federation.server.version == 1


def test_an_unexpected_message(federation):
    holder = federation.holder("user-0")
    for message in (
        Receipt(federation.agreement.id, 0, ()),
        federation.agreement.epoch,
        intercept(federation, "ann").upload,
    ):
        with pytest.raises(Malformed):
            holder.receive(message)


def test_committee_members_need_not_contribute():
    committee = [f"holder-{index}" for index in range(7)]
    federation = make_federation(holders=committee)
    one_round(federation, ["p1", "p2", "p3"])
    assert federation.server.version == 1
    assert not any(at(name) in federation.network.nodes for name in committee)
