"""Too few answers: the identical question again, then the buffer burns, and training goes on."""

import re

import pytest
from parties import (
    USERS,
    deal,
    exact_sum,
    holder,
    make_federation,
    one_round,
    refuse,
    released,
    submit,
)

from basecagg.channels.wire import pack
from basecagg.errors import MaskTaken
from basecagg.protocol.effects import Abandoned, MaskEnded, sends_of
from basecagg.protocol.messages import CertifiedRequest, Closing, RecoveryRequest
from basecagg.simulation.loopback import AT_SERVER

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])
GONE = USERS[3:]


def questions(letters):
    return {
        letter.to.name: pack(letter.message)
        for letter in letters
        if isinstance(letter.message, RecoveryRequest | CertifiedRequest)
    }


def stuck(consistency, **changes):
    """Three uploads are in, four of seven holders are away."""
    federation = make_federation(consistency=consistency, **changes)
    deal(federation, *USERS[:3])
    nodes = federation.network.nodes
    away = {holder(name): nodes.pop(holder(name)) for name in GONE}
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
    federation, _, seen, _ = stuck(consistency)
    first = questions(seen)
    seen.clear()
    again = {send.recipient: pack(send.message) for send in sends_of(federation.server.deadline())}
    assert set(again) == set(GONE)  # those who have answered are not asked again
    assert all(again[name] == first[name] for name in GONE)


@MODES
def test_it_helps_those_who_come_back(consistency):
    federation, submitted, _, bring_back = stuck(consistency)
    bring_back()
    deadline(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def four_answer(correctness):
    """Three uploads are in, and U of seven holders answer."""
    federation = make_federation(consistency="honest-server", correctness=correctness)
    deal(federation, *USERS[:3])
    for name in USERS[4:]:
        federation.network.nodes.pop(holder(name))
    return federation, one_round(federation)


def test_u_answers_are_enough_when_holders_are_honest():
    federation, submitted = four_answer("honest-holders")
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_u_answers_never_open_a_sum_when_answers_have_to_agree():
    """A liar among the four would write it; U + T = 5 are waited for, and then the buffer burns."""
    federation, _ = four_answer("agreed")
    for _ in range(2):
        deadline(federation)
    (burned,) = [news for news in federation.take_news() if isinstance(news, Abandoned)]
    assert burned.reason.endswith("4 answers are not enough: 5 answers have to agree")
    assert federation.server.version == 0


@MODES
def test_then_the_buffer_burns_and_everyone_is_told(consistency):
    federation, submitted, seen, _ = stuck(consistency)
    model = federation.server.model.copy()
    deadline(federation)
    assert not any(isinstance(news, Abandoned) for news in federation.take_news())
    deadline(federation)
    news = federation.take_news()
    (burned,) = [each for each in news if isinstance(each, Abandoned)]
    assert set(burned.members) == {each.ticket.mask for each in submitted}
    told = r"[03] endorsements and [03] answers are not enough: [45] answers have to agree"
    assert re.fullmatch(told, burned.reason)
    ended = {each.mask: each.state for each in news if isinstance(each, MaskEnded)}
    assert ended == dict.fromkeys(burned.members, "burned")
    assert federation.server.version == 0
    assert (federation.server.model == model).all()
    closings = [letter for letter in seen if isinstance(letter.message, Closing)]
    assert {letter.to.name for letter in closings} == set(USERS)
    for name in USERS[:3]:
        assert not federation.network.nodes[holder(name)].store.scan("share")


@MODES
def test_training_goes_on(consistency):
    federation, _, _, bring_back = stuck(consistency)
    for _ in range(2):
        deadline(federation)
    bring_back()
    federation.take_news()
    submitted = one_round(federation, USERS[2:5])
    (news,) = released(federation)
    assert news.version == 0
    assert exact_sum(news, submitted, federation.agreement.parameters)


@MODES
def test_who_has_closed_a_burned_request_does_not_answer_it_any_more(consistency):
    federation, _, seen, bring_back = stuck(consistency)
    asked = [each.message for each in seen if isinstance(each.message, RecoveryRequest)]
    for _ in range(2):
        deadline(federation)
    bring_back()
    for name in USERS[:3]:
        refuse(federation, name, asked[0], MaskTaken)


@MODES
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_as_often_as_the_driver_wants(consistency, retries):
    federation, _, _, _ = stuck(consistency, retries=retries)
    for turn in range(retries + 1):
        assert federation.server.is_opening, turn
        deadline(federation)
    assert not federation.server.is_opening
    assert sum(isinstance(news, Abandoned) for news in federation.take_news()) == 1


@MODES
def test_updates_that_waited_behind_go_next(consistency):
    federation, _, _, bring_back = stuck(consistency)
    bring_back()
    for _ in range(2):
        federation.network.perform(AT_SERVER, federation.server.deadline())
        federation.network.in_flight.clear()
    federation.take_news()
    submitted = [submit(federation, name) for name in USERS[3:6]]
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
