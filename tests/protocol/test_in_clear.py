"""No update leaves in clear unless the participant wrote that down: its machine decides it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from participants import (
    ANN,
    MODEL,
    STRANGER,
    Ann,
    Town,
    quick,  # noqa: F401 - a fixture
)

from basecagg.errors import LocalProtocolError, ParameterError, WrongEpoch
from basecagg.parameters import ProtocolParameters
from basecagg.privacy import Privacy
from basecagg.protocol.effects import Declined, Joined
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import MaskName, PlainUpdate, Upload, Verdict

pytestmark = pytest.mark.usefixtures("quick")
CLEAR = ProtocolParameters.in_clear(buffer_size=3, model_size=5)
UPDATE = np.arange(5, dtype=np.float32)
ALLOWED = LocalFloor(allow_clear=True)
STRICT = LocalFloor(consistency="certified", correctness="agreed", verify="auto")


@pytest.fixture
def ann(tmp_path):
    return Ann(Town(), tmp_path)


def epoch_in_clear(ann, number=1):
    return ann.town.epoch(b"", number, parameters=CLEAR, holders=[])


def again(ann, floor):
    """The same participant, started anew with another floor."""
    ann.floor = floor
    return ann.restart()


def everything_a_server_can_say(ann, epoch):
    """Verdicts, models, the epoch and its credential, again and again: signed rightly, too."""
    mask = MaskName(ANN, bytes(16))
    for outcome in ("admitted", "refused", "burned", "opened"):
        yield Verdict(epoch.id, mask, outcome)
    yield ann.town.closing(epoch, mask)
    yield ann.town.credential(epoch)
    yield ann.town.end(epoch, by="server")
    yield epoch


def in_clear(messages):
    return [message for message in messages if isinstance(message, PlainUpdate)]


@pytest.mark.parametrize("floor", [LocalFloor(), STRICT, LocalFloor(consistency="honest-server")])
def test_nothing_leaves_in_clear_whatever_server_and_operator_say(ann, floor):
    again(ann, floor)
    epoch = epoch_in_clear(ann)  # signed by the true operator
    news = ann.offer(epoch, ann.town.credential(epoch))
    assert isinstance(news, Declined)
    assert "allow-clear" in news.reason
    for message in everything_a_server_can_say(ann, epoch):
        ann.hear(message)
        with pytest.raises(LocalProtocolError):
            ann.submit(UPDATE)
    assert ann.machine.contributor is None
    ann.restart()
    ann.do(ann.machine.reconnect())
    assert in_clear(ann.sent) == []


def test_the_control_with_the_word_it_leaves(ann):
    again(ann, ALLOWED)
    epoch = epoch_in_clear(ann)
    news = ann.offer(epoch, ann.town.credential(epoch))
    assert isinstance(news, Joined)
    (sent,) = ann.submit(UPDATE)
    assert isinstance(sent, PlainUpdate)
    assert sent.values == UPDATE.astype("<f4").tobytes()
    assert ann.restart() == [sent]  # byte for byte, until there is a verdict
    ann.hear(Verdict(epoch.id, sent.ticket.mask, "admitted"))
    assert not ann.machine.may_train
    ann.hear(Verdict(epoch.id, sent.ticket.mask, "opened"))
    assert ann.machine.may_train
    assert ann.restart() == []


def test_with_the_word_a_protected_epoch_is_protected(ann):
    again(ann, ALLOWED)
    epoch = ann.join()
    ann.ready_mask(epoch)
    (sent,) = ann.submit(UPDATE)
    assert isinstance(sent, Upload)
    assert in_clear(ann.sent) == []


def test_the_word_can_be_taken_back(ann):
    """What was stored for sending stays in the store: a stricter floor sends it no more."""
    again(ann, ALLOWED)
    epoch = epoch_in_clear(ann)
    ann.offer(epoch, ann.town.credential(epoch))
    assert len(ann.submit(UPDATE)) == 1
    before = len(in_clear(ann.sent))
    assert in_clear(again(ann, LocalFloor())) == []
    ann.do(ann.machine.reconnect())
    with pytest.raises(LocalProtocolError):
        ann.submit(UPDATE)
    assert ann.machine.contributor is None
    assert len(in_clear(ann.sent)) == before
    assert len(in_clear(again(ann, ALLOWED))) == 1  # the control


def test_a_protected_epoch_cannot_be_turned_into_one_in_clear(ann):
    """Under the same number, or from a stranger: the next one has to be signed, and is asked of the floor."""
    again(ann, LocalFloor())
    epoch = ann.join(1)
    for number, operator in product((1, 2), (ann.town.identities["operator"], STRANGER)):
        clear = ann.town.epoch(b"", number, parameters=CLEAR, holders=[], operator=operator)
        assert isinstance(ann.offer(clear, ann.town.credential(clear)), Declined)
    assert ann.machine.agreement.id == epoch.id
    assert ann.machine.agreement.parameters.is_masked


def test_a_budget_of_privacy_allows_nothing_in_clear():
    ALLOWED.require(CLEAR)
    with pytest.raises(WrongEpoch, match="ε = 1"):
        LocalFloor(allow_clear=True, max_epsilon=1.0).require(CLEAR)


def test_one_update_at_a_time(ann):
    again(ann, ALLOWED)
    epoch = epoch_in_clear(ann)
    ann.offer(epoch, ann.town.credential(epoch))
    ann.submit(UPDATE)
    with pytest.raises(LocalProtocolError, match="on its way"):
        ann.submit(UPDATE)
    assert len(in_clear(ann.sent)) == 1


def test_the_end_of_the_epoch_forgets_what_waited(ann):
    again(ann, ALLOWED)
    epoch = epoch_in_clear(ann)
    ann.offer(epoch, ann.town.credential(epoch))
    ann.submit(UPDATE)
    ann.hear(ann.town.end(epoch))
    assert not list(ann.store.keys("upload")) + list(ann.store.keys("ticket"))
    assert ann.machine.state == "outside"


@pytest.mark.parametrize(
    "change",
    [
        {"num_holders": 7},
        {"consistency": "certified"},
        {"correctness": "agreed"},
        {"liars": 1},
        {"privacy": Privacy(clip_norm=1.0, noise=1.0, epsilon=8.0)},
        {"buffer_size": 0},
        {"model_size": 0},
        {"max_staleness": -1},
        {"min_per_version": 9},
    ],
)
def test_parameters_in_clear_promise_nothing(change):
    told = {"buffer_size": 3, "model_size": 5, "max_dropouts": 0, "max_colluders": 0}
    told |= {"num_holders": 0, "recovery_threshold": 0, "consistency": "honest-server"}
    assert ProtocolParameters(**told, protection="none") == CLEAR
    with pytest.raises(ParameterError):
        ProtocolParameters(**told | change, protection="none")


def test_nobody_signs_an_epoch_in_clear_with_holders(ann):
    epoch = ann.town.epoch(b"\0" * 32, 1, parameters=CLEAR)
    again(ann, ALLOWED)
    news = ann.offer(epoch, ann.town.credential(epoch))
    assert isinstance(news, Declined)
    assert "4 holders are listed" in news.reason
    assert MODEL  # of the town
