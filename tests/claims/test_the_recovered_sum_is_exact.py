"""The server recovers Σ Q(2^−t·Δ) bit for bit; with field weights Σ s̄·Q(Δ), and everyone uses the same s̄."""

import numpy as np
import pytest
from parties import (
    USERS,
    at,
    deal,
    exact_sum,
    fresh_update,
    holder_at,
    make_federation,
    one_round,
    released,
    submit,
)

from basecagg.protocol import recomputation
from basecagg.protocol.messages import Answer, Endorsement, Upload
from basecagg.protocol.weighing import Weighing

MODES = ["certified", "honest-server"]
BOTH_MODES = pytest.mark.parametrize("consistency", MODES)


@BOTH_MODES
def test_of_one_buffer(consistency):
    federation = make_federation(consistency=consistency)
    submitted = one_round(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert federation.server.version == 1


def of_three_versions(federation, updates):
    """Downloads of versions 0, 1 and 2 meet in one buffer: what was sent, what was opened, and its weights."""
    downloads = []
    for names in (USERS[:3], USERS[3:6]):
        downloads.append((federation.server.version, federation.server.head))
        one_round(federation, names)
    downloads.append((federation.server.version, federation.server.head))
    federation.take_news()
    mixed = [
        submit(federation, name, update, base=version, head=head)
        for name, update, (version, head) in zip(USERS, updates, downloads, strict=False)
    ]
    federation.network.run()
    (news,) = released(federation)
    weights = dict(zip(news.members, news.weights, strict=True))
    return mixed, news, [weights[each.ticket.mask] for each in mixed]


@BOTH_MODES
def test_of_updates_made_from_different_versions(consistency):
    """Each was weighed by its contributor, so that in the field all weigh 1; the step divides by Σ 2^−t."""
    federation = make_federation(consistency=consistency, min_per_version=1, repeated_versions=True)
    p, updates = federation.agreement.parameters, [fresh_update() for _ in range(3)]
    mixed, news, weights = of_three_versions(federation, updates)
    # t = ⌊log₂(1 + τ)⌋ of τ = 2, 1, 0, worked out by hand.
    assert weights == [0.5, 0.5, 1.0]
    for each, update, weight in zip(mixed, updates, weights, strict=True):
        rounded = each.quantized[: p.model_size].astype(float)
        assert np.abs(rounded - weight * update * p.update_levels).max() < 1
    total = sum(each.quantized for each in mixed)
    assert (news.weighted_sum * p.update_levels == total[: p.model_size]).all()
    assert not total[p.model_size :].any()


@BOTH_MODES
def test_and_the_step_divides_by_what_contributors_weighed_by(consistency):
    federation = make_federation(consistency=consistency, min_per_version=1, repeated_versions=True)
    updates, models = [fresh_update() for _ in range(3)], []
    federation.network.observers.append(lambda _: models.append(federation.server.model.copy()))
    of_three_versions(federation, updates)
    before = next(model for model in reversed(models) if (model != federation.server.model).any())
    mean = (updates[0] / 2 + updates[1] / 2 + updates[2]) / 2
    error = np.abs(before - federation.server.model - mean)
    assert error.max() < 2 / federation.agreement.parameters.update_levels


@BOTH_MODES
def test_with_weights_in_the_field(consistency):
    """There server and holders weigh, by the age at which the sum is opened."""
    federation = make_federation(
        consistency=consistency,
        weights="field",
        weight_rounding="nearest",
        min_per_version=1,
        repeated_versions=True,
    )
    mixed, news, weights = of_three_versions(federation, [None] * 3)
    assert exact_sum(news, mixed, federation.agreement.parameters)
    # c_g·s(τ) = 64/(1 + τ) to the nearest, worked out by hand.
    assert weights == [21, 32, 64]


@BOTH_MODES
def test_with_coins_for_the_weights(consistency):
    """64/(1 + 2) = 21.33… becomes 21 or 22, the same for all parties; the sum is exact with either."""
    seen = set()
    while seen != {21, 22}:
        federation = make_federation(
            consistency=consistency, weights="field", repeated_versions=True
        )
        old = federation.server.version, federation.server.head
        one_round(federation, USERS[:3])
        one_round(federation, USERS[3:6])
        federation.take_news()
        mixed = [submit(federation, name, base=old[0], head=old[1]) for name in USERS[:3]]
        federation.network.run()
        (news,) = released(federation)
        assert exact_sum(news, mixed, federation.agreement.parameters)
        assert set(news.weights) <= {21, 22}
        seen |= set(news.weights)


@BOTH_MODES
@pytest.mark.parametrize("gone", [("user-0",), ("user-5", "user-6"), ("user-0", "user-3")])
def test_with_any_holders_gone(consistency, gone):
    federation = make_federation(consistency=consistency)
    deal(federation, *USERS[:3])
    for name in gone:
        federation.stop(holder_at(name))
    submitted = one_round(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


@BOTH_MODES
def test_with_late_and_duplicate_messages(consistency):
    """Everything arrives twice, the second time after the sum was opened."""
    federation = make_federation(consistency=consistency)
    seen = []
    federation.network.observers.append(seen.append)
    submitted = one_round(federation)
    (news,) = released(federation)
    model = federation.server.model.copy()
    federation.network.in_flight.extend(seen)
    federation.network.run()
    assert released(federation) == []
    assert (federation.server.model == model).all()
    assert exact_sum(news, submitted, federation.agreement.parameters)


@BOTH_MODES
def test_in_any_order_of_the_answers(consistency):
    federation = make_federation(consistency=consistency)
    submitted = [submit(federation, name) for name in USERS[:3]]
    generator = np.random.default_rng(4)
    while federation.network.in_flight:
        letters = list(federation.network.in_flight)
        federation.network.in_flight.clear()
        generator.shuffle(letters)
        for letter in letters:
            federation.network.deliver(letter.to, [letter])
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


@BOTH_MODES
def test_when_a_committee_holds_the_shares(consistency):
    """Holders who never contribute, contributors who never hold."""
    committee = [f"holder-{index}" for index in range(7)]
    federation = make_federation(consistency=consistency, holders=committee)
    submitted = one_round(federation, ["phone-1", "phone-22", "phone-333"])
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)
    assert at("holder-0") not in federation.network.nodes


@pytest.mark.parametrize("suite", ["x25519", "mlkem768-x25519"])
def test_with_either_suite(suite):
    federation = make_federation(suite=suite)
    submitted = one_round(federation)
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


@BOTH_MODES
def test_of_many_buffers_in_a_row(consistency):
    federation = make_federation(consistency=consistency)
    for turn in range(6):
        submitted = one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
        (news,) = released(federation)
        assert news.version == turn
        assert exact_sum(news, submitted, federation.agreement.parameters)


@BOTH_MODES
def test_when_buffers_fill_faster_than_they_open(consistency):
    """Nine uploads before the first holder says a word: three sums, in order of arrival."""
    federation = make_federation(consistency=consistency, holders=USERS)
    names = [f"phone-{index}" for index in range(9)]
    deal(federation, *names)
    submitted = [submit(federation, name, base=0) for name in names]
    federation.network.run()
    news = released(federation)
    assert [each.version for each in news] == [0, 1, 2]
    for turn, each in enumerate(news):
        members = submitted[3 * turn : 3 * turn + 3]
        assert exact_sum(each, members, federation.agreement.parameters)


@BOTH_MODES
def test_and_the_model_takes_the_weighted_mean_as_its_step(consistency):
    federation = make_federation(consistency=consistency)
    updates = [fresh_update() for _ in range(3)]
    for name, update in zip(USERS, updates, strict=False):
        submit(federation, name, update)
    federation.network.run()
    error = np.abs(federation.server.model + np.mean(updates, axis=0))
    assert error.max() < 1 / federation.agreement.parameters.update_levels


@pytest.mark.parametrize("weights", ["own", "field"])
def test_control_a_server_that_weighs_differently_gets_noise(monkeypatch, weights):
    """Holders weigh by themselves: with weights of its own the server subtracts the wrong masks."""
    federation = make_federation(weights=weights)

    class Generous(Weighing):
        def in_field(self, request):
            return [2 * each for each in super().in_field(request)]

    monkeypatch.setattr(recomputation, "Weighing", Generous)
    one_round(federation)
    federation.server.deadline()
    assert released(federation) == []
    assert federation.server.version == 0


@BOTH_MODES
def test_and_nobody_sends_more_than_one_upload_or_answer_per_mask(consistency):
    federation = make_federation(consistency=consistency)
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    one_round(federation)
    uploads = {message.ticket.mask: message for message in seen if isinstance(message, Upload)}
    assert len(uploads) == len([m for m in seen if isinstance(m, Upload)]) == 3
    answers = [message for message in seen if isinstance(message, Answer)]
    assert sorted(answer.holder for answer in answers) == list(range(7))
    endorsements = [message for message in seen if isinstance(message, Endorsement)]
    assert len(endorsements) == (7 if consistency == "certified" else 0)
