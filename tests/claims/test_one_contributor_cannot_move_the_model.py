"""With a bound on lengths a sum that contains a lie is not applied: the model stays, and all can check that."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from cheats import parts_of, release
from parties import (
    SIZE,
    USERS,
    fresh_update,
    intercept,
    make_federation,
    one_round,
    released,
    submit,
)
from private import bounded, make, private

from basecagg.protocol import recomputation
from basecagg.protocol.messages import Upload, content_hash, signed
from basecagg.protocol.proofs import Caught
from basecagg.protocol.recomputation import recompute
from reproduction.bench import AT_SERVER, Letter

LIAR = USERS[2]
MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def lie(federation, shift):
    """An upload whose every element is moved by so many steps, whatever the machine would have done."""
    p = federation.agreement.parameters
    honest = intercept(federation, LIAR, np.zeros(SIZE) + fresh_update(1e-3))
    words = np.frombuffer(honest.upload.words, "<u4").astype(object).copy()
    words[:SIZE] = (words[:SIZE] + shift) % p.modulus
    changed = words.astype("<u4").tobytes()
    ticket = msgspec.structs.replace(
        honest.ticket, upload_hash=content_hash(changed), signature=b""
    )
    ticket = signed(ticket, federation.identity(LIAR))
    federation.network.in_flight.append(Letter(LIAR, AT_SERVER, Upload(ticket, changed)))
    federation.network.run()


def attacked(options, scale=2.9, **changes):
    """Two honest members, and one that moves every element by 2.9 times what one may send."""
    federation = make_federation(**(options | changes))
    p = federation.agreement.parameters
    for name in USERS[:2]:
        submit(federation, name, fresh_update(1e-3))
    federation.network.run()
    reach = p.privacy.clip_norm if p.privacy else p.clip
    lie(federation, int(scale * reach * p.update_levels))
    (news,) = released(federation)
    return federation, news


def test_without_a_bound_one_contributor_moves_everything():
    """Negative control: B bounds every element of a sum, and that is all that is checked."""
    federation, news = attacked({})
    assert news.applied
    assert np.abs(federation.server.model).min() > 3.8


@MODES
def test_with_a_bound_the_model_stays_and_training_goes_on(consistency):
    federation, news = attacked(bounded(), consistency=consistency)
    assert not news.applied
    assert {name.contributor for name in news.members} == set(USERS[:3])
    assert (federation.server.version, federation.server.model.any()) == (1, False)
    one_round(federation, USERS[3:6])
    assert released(federation)[0].applied
    assert federation.server.model.any()


def test_the_optimisers_memory_stays_too():
    from basecagg.protocol.server import stepped
    from basecagg.protocol.step_rule import StepRule

    federation, _ = attacked(bounded())
    rule, model = StepRule("momentum", 0.5), np.ones(SIZE)
    opened = recomputation.Opened(np.ones(SIZE), (1.0,), applied=False)
    assert stepped(rule, model, (np.ones(SIZE),), opened)[0] is model
    assert federation.server.optimiser_state == ()


def test_with_noise_a_lie_that_stands_out_is_not_applied():
    _, news = attacked(private(), 10)
    assert not news.applied


@pytest.mark.parametrize("scale", [0.01, 0.02])
def test_what_hides_in_the_noise_moves_the_model_by_no_more_than_the_bound(scale):
    federation, news = attacked(private(), scale)
    p = federation.agreement.parameters
    most = math.sqrt(p.mechanism.squared_sum_bound([0, 0, 0])) / p.update_levels / 3
    assert news.applied
    assert np.linalg.norm(federation.server.model) <= most


@pytest.mark.parametrize("options", [private(), bounded()], ids=["noise", "no noise"])
def test_honest_sums_are_applied(options):
    """Also when all members send the longest update that there is, in the same direction."""
    federation = make(options)
    for round_ in range(3):
        for name in USERS[:3]:
            submit(federation, name, np.full(SIZE, 100.0) + fresh_update(1e-6) + round_)
        federation.network.run()
    assert [news.applied for news in released(federation)] == [True] * 3


# --- everybody can check it -----------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.9, 0.01], ids=["a lie", "an honest sum"])
def test_the_version_is_made_again(scale):
    federation, news = attacked(bounded(), scale)
    parts = parts_of(federation)
    assert parts.release.applied is news.applied is (scale < 1)
    model, _ = recompute(federation.agreement, parts)
    assert (model == federation.server.model).all()


@pytest.mark.parametrize("scale", [2.9, 0.01], ids=["a lie", "an honest sum"])
def test_a_server_that_says_otherwise_is_caught(scale):
    federation, news = attacked(bounded(), scale)
    parts = release(federation, parts_of(federation), applied=not news.applied)
    with pytest.raises(Caught, match="applied, and that is wrong"):
        recompute(federation.agreement, parts)


def test_a_server_that_applies_a_lie_is_caught(monkeypatch):
    """It says that the sum is honest, and steps by it."""
    with monkeypatch.context() as cheating:
        cheating.setattr(recomputation, "squared_norm", lambda values, modulus: 0)
        federation, news = attacked(bounded())
        assert news.applied
    with pytest.raises(Caught):
        recompute(federation.agreement, parts_of(federation))
