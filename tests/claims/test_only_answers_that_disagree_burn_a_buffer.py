"""Silence: the identical question again. Answers that disagree burn the buffer, and training goes on."""

import pytest
from parties import (
    USERS,
    deal,
    exact_sum,
    holder_at,
    make_federation,
    one_round,
    refuse,
    released,
    submit,
)
from test_wrong_answers_are_corrected_and_named import lie

from basecagg.channels.wire import pack
from basecagg.errors import MaskTaken
from basecagg.protocol.effects import Abandoned, MaskEnded, sends_of
from basecagg.protocol.messages import Closing, ShortRequest
from reproduction.bench import AT_SERVER

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])
GONE = USERS[3:]


def stuck(consistency, **changes):
    """Three uploads are in, four of seven holders are away."""
    federation = make_federation(consistency=consistency, **changes)
    deal(federation, *USERS[:3])
    nodes = federation.network.nodes
    away = {holder_at(name): nodes.pop(holder_at(name)) for name in GONE}
    seen = []
    federation.network.observers.append(seen.append)
    submitted = one_round(federation)
    assert federation.server.version == 0
    return federation, submitted, seen, lambda: nodes.update(away)


def deadline(federation):
    federation.network.perform(AT_SERVER, federation.server.deadline())
    federation.network.run()


@MODES
def test_the_same_question_again_byte_for_byte(consistency):
    """In its long form, for nobody knows how much of the short one arrived."""
    federation, _, _, _ = stuck(consistency)
    request = federation.server.opening._request
    again = {send.recipient: send.message for send in sends_of(federation.server.deadline())}
    assert set(again) == set(GONE)  # those who have answered are not asked again
    assert {pack(message) for message in again.values()} == {pack(request)}


@MODES
def test_it_helps_those_who_come_back(consistency):
    federation, submitted, _, bring_back = stuck(consistency)
    bring_back()
    deadline(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_silence_burns_nothing():
    """Else a server could have one sum after the other given up, and open them all."""
    federation, submitted, seen, bring_back = stuck("certified")
    request = federation.server.opening._request
    seen.clear()
    federation.take_news()
    for _ in range(20):
        deadline(federation)
    assert not federation.take_news()
    assert {pack(letter.message) for letter in seen} == {pack(request)}
    bring_back()
    deadline(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def four_answer(correctness):
    """Three uploads are in, and U of seven holders answer."""
    federation = make_federation(consistency="honest-server", correctness=correctness)
    deal(federation, *USERS[:3])
    for name in USERS[4:]:
        federation.network.nodes.pop(holder_at(name))
    return federation, one_round(federation)


def test_u_answers_are_enough_when_holders_are_honest():
    federation, submitted = four_answer("honest-holders")
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_u_answers_never_open_a_sum_when_answers_have_to_agree():
    """A liar among the four would write it: U + T = 5 are waited for."""
    federation, _ = four_answer("agreed")
    for _ in range(5):
        deadline(federation)
    assert federation.server.is_opening
    assert federation.server.version == 0


# --- answers that disagree ----------------------------------------------------------------------


def quarrel(consistency, dealers=USERS[:3], **changes):
    """Three uploads are in, one of seven holders lies and two are away: four answers agree, five should."""
    federation = make_federation(consistency=consistency, correctness="agreed", **changes)
    deal(federation, *dealers)
    nodes = federation.network.nodes
    away = {holder_at(name): nodes.pop(holder_at(name)) for name in USERS[5:]}
    lie(federation, USERS[:1], slice(0, 1))
    seen = []
    federation.network.observers.append(seen.append)
    submitted = one_round(federation)
    assert federation.server.version == 0
    return federation, submitted, seen, lambda: nodes.update(away)


@MODES
def test_then_the_buffer_burns_and_everyone_is_told(consistency):
    federation, submitted, seen, _ = quarrel(consistency)
    model = federation.server.model.copy()
    deadline(federation)
    assert not any(isinstance(news, Abandoned) for news in federation.take_news())
    deadline(federation)
    news = federation.take_news()
    (burned,) = [each for each in news if isinstance(each, Abandoned)]
    assert set(burned.members) == {each.ticket.mask for each in submitted}
    assert burned.reason.startswith("5 answers disagree: 5 have to agree (")
    ended = {each.mask: each.state for each in news if isinstance(each, MaskEnded)}
    assert ended == dict.fromkeys(burned.members, "burned")
    assert federation.server.version == 0
    assert (federation.server.model == model).all()
    closings = [letter for letter in seen if isinstance(letter.message, Closing)]
    assert {letter.to.name for letter in closings} == set(USERS)
    for name in USERS[:3]:
        assert not federation.network.nodes[holder_at(name)].store.scan("share")


@MODES
def test_it_helps_if_the_others_come_back(consistency):
    federation, submitted, _, bring_back = quarrel(consistency)
    bring_back()
    deadline(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert news.inconsistent_holders == (0,)


@MODES
def test_training_goes_on(consistency):
    federation, _, _, bring_back = quarrel(consistency)
    for _ in range(2):
        deadline(federation)
    bring_back()
    federation.take_news()
    submitted = one_round(federation, USERS[2:5])
    (news,) = released(federation)
    assert news.version == 0
    assert exact_sum(news, submitted, federation.agreement.parameters)


@MODES
def test_not_for_ever(consistency):
    """One sum of a version may be given up, and no more: then a new epoch is needed."""
    federation, _, seen, bring_back = quarrel(consistency, max_burns=1)
    for _ in range(2):
        deadline(federation)
    one_round(federation, USERS[2:5])
    for _ in range(2):
        deadline(federation)
    requests = {each.message.digest for each in seen if isinstance(each.message, ShortRequest)}
    assert len(requests) == 2
    bring_back()
    one_round(federation, [*USERS[:2], USERS[5]])
    requests = {each.message.digest for each in seen if isinstance(each.message, ShortRequest)}
    assert len(requests) == 2
    assert not released(federation)


@MODES
def test_who_has_closed_a_burned_request_does_not_answer_it_any_more(consistency):
    federation, _, _, bring_back = quarrel(consistency)
    asked = federation.server.opening._request
    for _ in range(2):
        deadline(federation)
    bring_back()
    for name in USERS[:3]:
        refuse(federation, name, asked, MaskTaken)


@MODES
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_as_often_as_the_driver_wants(consistency, retries):
    federation, _, _, _ = quarrel(consistency, retries=retries)
    for turn in range(retries + 1):
        assert federation.server.is_opening, turn
        deadline(federation)
    assert not federation.server.is_opening
    assert sum(isinstance(news, Abandoned) for news in federation.take_news()) == 1


@MODES
def test_updates_that_waited_behind_go_next(consistency):
    federation, _, _, bring_back = quarrel(consistency)
    bring_back()
    for _ in range(2):
        federation.network.perform(AT_SERVER, federation.server.deadline())
        federation.network.in_flight.clear()
    federation.take_news()
    submitted = [submit(federation, name) for name in USERS[3:6]]
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_suspected_dealers_are_left_out_of_the_next_attempt_while_others_are_there():
    """One of them may have dealt shares that do not fit together: nobody can say which."""
    federation, _, _, bring_back = quarrel("certified", dealers=USERS[:6])
    for _ in range(2):
        deadline(federation)
    bring_back()
    for name in (*USERS[:2], USERS[3]):
        submit(federation, name)
    federation.network.run()
    assert not federation.server.is_opening
    for name in USERS[4:6]:
        submit(federation, name)
    federation.network.run()
    (news,) = released(federation)
    assert {mask.contributor for mask in news.members} == set(USERS[3:6])


def test_suspected_dealers_are_taken_where_nobody_else_is():
    federation, _, _, bring_back = quarrel("certified")
    for _ in range(2):
        deadline(federation)
    bring_back()
    federation.take_news()
    one_round(federation)
    (news,) = released(federation)
    assert {mask.contributor for mask in news.members} == set(USERS[:3])
