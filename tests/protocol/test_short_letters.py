"""Short letters: what a holder has is not sent again, and a holder that cannot follow gets the long form."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from participants import DEALERS, Ann, Town, quick  # noqa: F401 - a fixture
from parties import (
    AT_SERVER,
    USERS,
    ask,
    certify,
    deal,
    history_at,
    holder_at,
    intercept,
    make_federation,
    nothing_changes,
    one_hop,
    one_round,
    refuse,
    released,
    request_for,
    server_refuses,
    submit,
)

from basecagg.errors import BadCertificate, NotEnrolled, UnknownMask, WrongEpoch
from basecagg.protocol.effects import Convicted, Forget, PartsWanted, StoreLost
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Answer,
    CannotFollow,
    Certificate,
    CertifiedRequest,
    Endorsement,
    RecoveryRequest,
    ShortRequest,
    signed,
)
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import DoubleRequest, Fork
from basecagg.protocol.recomputation import judge
from basecagg.protocol.short_letters import shortened
from basecagg.protocol.stored import recall
from basecagg.storage.in_memory import MemoryStore

LATE = USERS[0]
pytestmark = pytest.mark.usefixtures("quick")
SHORT, LONG = (ShortRequest, Certificate), (RecoveryRequest, CertifiedRequest)


def kinds_to(letters, name):
    """What a holder was asked, in which form."""
    to = [each.message for each in letters if each.to == holder_at(name)]
    return [type(message) for message in to if isinstance(message, (*SHORT, *LONG))]


def watched(**changes):
    federation, seen = make_federation(**changes), []
    federation.network.observers.append(seen.append)
    return federation, seen


def said_by(letters, name, kind):
    return [
        each.message for each in letters if each.sender == name and isinstance(each.message, kind)
    ]


# --- who was there before ---------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["certified", "honest-server"])
def test_who_was_there_gets_short_letters_only(consistency):
    federation, seen = watched(consistency=consistency)
    for version in range(4):
        one_round(federation)
        assert federation.server.version == version + 1
    asked = [ShortRequest, Certificate] if consistency == "certified" else [ShortRequest]
    assert all(kinds_to(seen, name) == 4 * asked for name in USERS)
    assert not said_by(seen, LATE, CannotFollow)


def test_it_is_completed_to_the_request_that_the_server_signed(certified):
    for _ in range(2):
        one_round(certified)
    for name in USERS[:3]:
        submit(certified, name)
    while not certified.server.is_opening:
        one_hop(certified)
    request = certified.server.opening._request
    assert certified.holder(LATE).completed(shortened(request)) == request
    assert request.previous is not None


def test_another_attempt_is_followed_too(certified):
    """Of a sum that was given up: its request tells the links, and the certificate of the version before."""
    one_round(certified)
    for names in (USERS[:3], USERS[3:6]):
        for name in names:
            submit(certified, name)
        while not certified.server.is_opening:
            one_hop(certified)
        one_hop(certified)  # they endorse it
        request = certified.server.opening._request
        assert certified.holder(LATE).completed(shortened(request)) == request
        certified.network.in_flight.clear()
        burned = certified.server._release(certified.server._members, "burn", "a test")
        certified.network.perform(AT_SERVER, burned)
        certified.network.run()
    assert request.attempt == 1


# --- who was not --------------------------------------------------------------------------------


def absent_for_a_version(federation):
    station = federation.network.nodes.pop(holder_at(LATE))
    one_round(federation, USERS[1:4])
    assert released(federation)
    federation.network.nodes[holder_at(LATE)] = station


def test_who_missed_a_version_gets_the_long_form_and_goes_on():
    federation, seen = watched()
    one_round(federation)
    absent_for_a_version(federation)
    seen.clear()
    one_round(federation)
    assert kinds_to(seen, LATE) == [ShortRequest, RecoveryRequest, Certificate]
    assert len(said_by(seen, LATE, CannotFollow)) == 1
    assert said_by(seen, LATE, Endorsement)
    assert said_by(seen, LATE, Answer)
    seen.clear()
    one_round(federation)
    assert kinds_to(seen, LATE) == [ShortRequest, Certificate]


def test_with_a_fresh_store_it_cannot_follow_and_the_long_form_is_judged_by_its_rules():
    federation, seen = watched()
    one_round(federation)
    deal(federation, *USERS[:3])
    federation.start(holder_at(LATE), MemoryStore())
    one_round(federation)
    assert RecoveryRequest in kinds_to(seen, LATE)
    refused = {
        (to, type(refusal)) for to, refusal in federation.network.refusals if to != AT_SERVER
    }
    assert refused == {(holder_at(LATE), UnknownMask)}
    assert federation.server.version == 2
    seen.clear()
    for _ in range(2):
        one_round(federation)
    assert kinds_to(seen, LATE)[-2:] == [ShortRequest, Certificate]


def test_after_a_restart_it_still_follows(certified):
    one_round(certified)
    for name in USERS[:3]:
        submit(certified, name)
    while not certified.server.is_opening:
        one_hop(certified)
    short = shortened(certified.server.opening._request)
    certified.start(holder_at(LATE))
    (vote,) = ask(certified, LATE, short)
    assert isinstance(vote, Endorsement)
    certified.start(holder_at(LATE))
    assert certified.holder(LATE).completed(short) is not None


@pytest.mark.parametrize("lost", ["question", "certified"])
def test_control_without_what_it_wrote_down_it_cannot(certified, lost):
    one_round(certified)
    for name in USERS[:3]:
        submit(certified, name)
    while not certified.server.is_opening:
        one_hop(certified)
    short = shortened(certified.server.opening._request)
    certified.network.nodes[holder_at(LATE)].store.commit([Forget(lost, "")])
    certified.start(holder_at(LATE))
    assert ask(certified, LATE, short) == [CannotFollow(short.epoch, short.digest)]


def test_when_its_word_is_lost_the_long_form_comes_with_the_deadline():
    federation, seen = watched()
    one_round(federation)
    absent_for_a_version(federation)
    one_by_one = [submit(federation, name) for name in USERS[1:4]]
    for name in USERS[4:]:  # without her no sum opens
        federation.network.nodes.pop(holder_at(name))
    while not said_by(seen, LATE, CannotFollow):
        one_hop(federation)
    flying = federation.network.in_flight
    kept = [each for each in flying if not isinstance(each.message, CannotFollow)]
    flying.clear()
    flying.extend(kept)
    federation.network.run()
    assert not said_by(seen, LATE, Endorsement)[1:]
    federation.network.perform(AT_SERVER, federation.server.deadline())
    federation.network.run()
    assert len(said_by(seen, LATE, Endorsement)) == 2
    assert len(one_by_one) == 3


def test_a_certificate_comes_before_its_request():
    """Letters change places on the way: the certificate cannot be followed, and nothing changes."""
    federation, seen = watched()
    for name in USERS[:3]:
        submit(federation, name)
    while not any(isinstance(each.message, Certificate) for each in seen):
        mine = [e for e in federation.network.in_flight if e.to == holder_at(LATE)]
        if any(isinstance(each.message, ShortRequest) for each in mine):
            held_back = [each for each in mine if isinstance(each.message, ShortRequest)]
            for each in held_back:
                federation.network.in_flight.remove(each)
        one_hop(federation)
    federation.network.run()
    assert kinds_to(seen, LATE) == [ShortRequest, Certificate, CertifiedRequest]
    assert federation.server.version == 1
    assert said_by(seen, LATE, Answer)


def test_a_server_that_starts_again_asks_in_the_long_form(certified):
    """It does not know any more who endorsed, and who endorsed is sent all that it may lack."""
    one_round(certified)
    for name in USERS[:3]:
        submit(certified, name)
    while not (certified.server.opening.stage() or (b"", False))[1]:
        one_hop(certified)
    certified.network.in_flight.clear()
    certified.start(AT_SERVER)
    again = certified.server.opening.unanswered(LATE, 1)
    assert isinstance(again[-1], CertifiedRequest)
    for name in USERS:
        certified.network.perform(AT_SERVER, certified.server.reconnect(name))
    certified.network.run()
    assert certified.server.version == 2


# --- what does not fit --------------------------------------------------------------------------


def asked(federation):
    one_round(federation)
    for name in USERS[:3]:
        submit(federation, name)
    while not federation.server.is_opening:
        one_hop(federation)
    return federation.server.opening._request


@pytest.mark.parametrize("field", ["link", "digest", "version", "attempt", "tickets", "member"])
def test_what_was_changed_on_the_way_cannot_be_followed_and_changes_nothing(certified, field):
    request = asked(certified)
    short = shortened(request)
    first = short.tickets[0]
    other = {
        "link": {"link": replace(short.link, model_hash=bytes(32))},
        "digest": {"digest": bytes(32)},
        "version": {"version": 2},
        "attempt": {"attempt": 1},
        "tickets": {"tickets": short.tickets[1:]},
        "member": {"tickets": (replace(first, upload_hash=bytes(32)), *short.tickets[1:])},
    }
    changed = replace(short, **other[field])
    with nothing_changes(certified, holder_at(LATE)):
        said = ask(certified, LATE, changed)
    assert said == [CannotFollow(short.epoch, changed.digest)]


def test_a_short_letter_of_another_epoch_is_refused(certified):
    request = asked(certified)
    refuse(certified, LATE, replace(shortened(request), epoch=bytes(32)), WrongEpoch)
    first = certified.server.opening._past.opened
    refuse(certified, LATE, replace(first, epoch=bytes(32)), WrongEpoch)


def test_a_certificate_alone_is_checked_like_any_other(certified):
    request = asked(certified)
    (vote,) = ask(certified, LATE, shortened(request))
    few = Certificate(*request.endorsed, ((vote.holder, vote.signature),))
    refuse(certified, LATE, few, BadCertificate)
    forged = replace(few, signatures=tuple((index, bytes(64)) for index in range(len(USERS))))
    refuse(certified, LATE, forged, BadCertificate)


def test_a_certificate_lists_its_holders_in_order(certified):
    """Else whoever passes it on makes another certificate of it, which nobody can follow."""
    request = asked(certified)
    votes = [ask(certified, name, shortened(request))[0] for name in USERS]
    signatures = tuple((vote.holder, vote.signature) for vote in votes)
    whole = Certificate(*request.endorsed, signatures)
    refuse(certified, LATE, replace(whole, signatures=signatures[::-1]), BadCertificate)
    assert [type(said) for said in ask(certified, LATE, whole)] == [Answer]


def test_the_certificate_of_another_request_than_the_last_is_not_followed(certified):
    """After a split vote: she endorsed one, the others another. The long form tells her which."""
    one, other = (request_for(certified, three) for three in overlapping(certified))
    (vote,) = ask(certified, LATE, one)
    assert isinstance(vote, Endorsement)
    whole = certify(certified, other, USERS[1:])
    assert ask(certified, LATE, whole.certificate) == [CannotFollow(other.epoch, other.digest)]
    assert [type(said) for said in ask(certified, LATE, whole)] == [Answer]


def overlapping(federation):
    members = [intercept(federation, name) for name in USERS[:4]]
    return members[:3], members[1:]


def test_a_late_answer_about_an_earlier_sum_does_not_change_what_she_can_follow(certified):
    """Holder 0 endorsed a sum of version 0 and heard of its certificate only after the next request."""
    first = request_for(certified, [intercept(certified, name) for name in USERS[:3]])
    whole = certify(certified, first)
    certified.server._state.history = history_at(certified, 1)
    again = [intercept(certified, name) for name in USERS[:3]]
    second = request_for(certified, again, 1, whole.certificate)
    (vote,) = ask(certified, LATE, second)
    assert isinstance(vote, Endorsement)
    assert [type(said) for said in ask(certified, LATE, whole)] == [Answer]
    alone = Certificate(*second.endorsed, ())
    assert certified.holder(LATE).completed(alone) == CertifiedRequest(second, alone)


def test_a_copy_with_a_bad_signature_is_not_kept(certified):
    """The server's own signature on the request is evidence: a copy that was answered does not replace it."""
    request = asked(certified)
    ask(certified, LATE, shortened(request))
    votes = [ask(certified, name, shortened(request))[0] for name in USERS]
    certificate = Certificate(*request.endorsed, tuple((v.holder, v.signature) for v in votes))
    ask(certified, LATE, CertifiedRequest(replace(request, signature=bytes(64)), certificate))
    store = certified.network.nodes[holder_at(LATE)].store
    assert recall(store, "question", RecoveryRequest) == request
    assert recall(store, "certified", Certificate) == certificate


def test_only_a_holder_that_is_waited_for_gets_the_long_form(certified):
    request = asked(certified)
    lost = CannotFollow(request.epoch, request.digest)
    (send,) = certified.server.receive(LATE, lost)
    assert (send.recipient, send.message) == (LATE, request)
    assert certified.server.receive(LATE, replace(lost, digest=bytes(32))) == []
    server_refuses(certified, "mallory", lost, NotEnrolled)
    server_refuses(certified, LATE, replace(lost, epoch=bytes(32)), WrongEpoch)
    certified.network.run()
    assert certified.server.receive(LATE, lost) == []  # the sum is opened


# --- behind the door: clones, forks, double requests ---------------------------------------------


@pytest.fixture
def town():
    return Town()


@pytest.fixture
def ann(town, tmp_path):
    ann = Ann(town, tmp_path / "ann")
    yield ann
    ann.store.close()


def dealt(ann, epoch):
    both = [ann.town.deal(epoch, dealer) for dealer in DEALERS]
    ann.hear(*(parcel for parcel, _ in both))
    return [ticket for _, ticket in both]


def tell(ann, request):
    """The server asks in short. What she says about it is judged as if it came from the long one."""
    ann.judge.requests[request.digest] = request
    return ann.hear(shortened(request))


def lost(ann):
    return any(isinstance(news, StoreLost) for news in ann.news)


def test_a_clone_is_noticed_by_a_certificate_that_comes_alone(ann, town):
    """Also by one that she cannot follow, for the request never came to her."""
    epoch = ann.join()
    request = town.request(epoch, dealt(ann, epoch)[:3])
    ann.hear(town.certificate(request, town.vote(request, 0)))
    assert ann.news[-1] == StoreLost("somebody else endorsed a request with my key")
    assert ann.machine.holder is None


def test_a_clone_is_noticed_although_she_endorsed_another_request(ann, town):
    epoch = ann.join()
    tickets = dealt(ann, epoch)
    (vote,) = tell(ann, town.request(epoch, tickets[:3]))
    assert isinstance(vote, Endorsement)
    other = town.request(epoch, tickets[1:])
    ann.hear(town.certificate(other, town.vote(other, 0)))
    assert lost(ann)


def test_control_where_certificates_alone_are_not_looked_at_a_clone_goes_unnoticed(
    ann, town, monkeypatch
):
    monkeypatch.setattr(Holder, "remembers", lambda holder, certificate: True)
    epoch = ann.join()
    request = town.request(epoch, dealt(ann, epoch)[:3])
    (said,) = ann.hear(town.certificate(request, town.vote(request, 0)))
    assert isinstance(said, CannotFollow)
    assert not lost(ann)


def test_her_own_vote_in_a_certificate_alone_is_no_reason_to_forget(ann, town):
    epoch = ann.join()
    request = town.request(epoch, dealt(ann, epoch)[:3])
    (vote,) = tell(ann, request)
    (answer,) = ann.hear(town.certificate(request, vote))
    assert isinstance(answer, Answer)
    (again,) = ann.hear(town.certificate(request, vote))
    assert again == answer
    assert not lost(ann)


def convicts(ann, epoch, kind):
    (evidence,) = [news.evidence for news in ann.news if isinstance(news, Convicted)]
    assert isinstance(evidence.proof, kind)
    assert all(
        isinstance(word, RecoveryRequest) for word in (evidence.proof.first, evidence.proof.second)
    )
    judge(evidence, ann.town.key("operator"), ann.machine._verifier)
    return True


def test_a_double_request_in_short_letters_is_convicted_with_long_ones(ann, town):
    epoch = ann.join()
    tickets = dealt(ann, epoch)
    tell(ann, town.request(epoch, tickets[:3]))
    assert tell(ann, town.request(epoch, tickets[1:])) == []
    assert convicts(ann, epoch, DoubleRequest)


def test_a_replaced_model_in_short_letters_is_convicted_with_long_ones(ann, town):
    """Two attempts of version 1 with two different models under it."""
    epoch = ann.join()
    tickets = dealt(ann, epoch)
    first = town.request(epoch, tickets[:3])
    (vote,) = tell(ann, first)
    certificate = town.certificate(first, vote)
    ann.hear(certificate)
    late = [town.deal(epoch, dealer) for dealer in DEALERS]
    ann.hear(*(parcel for parcel, _ in late))
    members = [town.ticket(epoch, ticket.mask, 1, certificate) for _, ticket in late]
    second = town.request(epoch, members[:3], 1, certificate)
    (vote,) = tell(ann, second)
    assert isinstance(vote, Endorsement)
    link = replace(second.history.links[-1], model_hash=b"Y" * 32)
    history = replace(second.history, links=(*second.history.links[:-1], link))
    other = replace(second, attempt=1, history=history)
    other = signed(other, town.identities["server"])
    said = tell(ann, other)
    assert said == [CannotFollow(other.epoch, other.digest)]  # she has another link there
    ann.hear(other)
    assert convicts(ann, epoch, Fork)


# --- a question that waits until its version is made again -----------------------------------------


def test_a_certificate_alone_finds_the_question_that_waits(ann, town, monkeypatch):
    epoch = ann.join()
    tickets = dealt(ann, epoch)
    due = [True]
    monkeypatch.setattr(ModelWatch, "is_due", lambda *_: due[0])
    request = town.request(epoch, tickets[:3])
    assert tell(ann, request) == []
    certificate = town.certificate(request)
    assert ann.hear(certificate) == []
    assert sum(isinstance(news, PartsWanted) for news in ann.news) == 2
    due[0] = False
    sent = ann.do(ann.machine._take_up())
    assert [type(message) for message in sent] == [Answer]
