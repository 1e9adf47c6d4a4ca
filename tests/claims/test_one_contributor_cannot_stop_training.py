"""Whatever one contributor deals, uploads or repeats, the others' updates are summed."""

import pytest
from parties import (
    USERS,
    at,
    deal,
    exact_sum,
    holder_at,
    make_federation,
    one_round,
    released,
    submit,
)

from basecagg.errors import QuotaExceeded
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol.effects import MaskEnded
from basecagg.protocol.messages import Shipment
from lying import lie
from reproduction.bench import AT_SERVER

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def without(federation, *names):
    """Take these holders away; the returned function brings them back as they were."""
    nodes = federation.network.nodes
    away = {holder_at(name): nodes.pop(holder_at(name)) for name in names}
    return lambda: nodes.update(away)


def kept_by_five(federation, name):
    """A mask that exactly the first five holders keep: bad envelopes for the others."""
    bring_back = without(federation, *USERS[5:])
    deal(federation, name)
    bring_back()


@MODES
def test_with_a_mask_that_few_holders_keep(consistency):
    """The first holder leaves for good, so mallory's five and anybody else's have four in common."""
    federation = make_federation(consistency=consistency, correctness="agreed")
    kept_by_five(federation, "mallory")
    without(federation, "user-0")
    submit(federation, "mallory")
    submitted = one_round(federation, ["ann", "bob", "cat"])
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


@MODES
def test_and_its_own_update_is_told_when_it_is_too_old(consistency):
    federation = make_federation(
        consistency=consistency,
        correctness="agreed",
        max_staleness=1,
        mask_lifetime=50,
        min_per_version=1,
        repeated_versions=True,
    )
    kept_by_five(federation, "mallory")
    without(federation, "user-0")
    submit(federation, "mallory")
    for _ in range(3):
        one_round(federation, ["ann", "bob", "cat"])
    assert federation.server.version == 3
    ended = [each for each in federation.take_news() if isinstance(each, MaskEnded)]
    (burned,) = [each for each in ended if each.mask.contributor == "mallory"]
    assert (burned.state, burned.reason) == ("burned", "too old before it could be summed")


def test_updates_that_fit_are_summed_in_order_of_arrival():
    federation = make_federation(consistency="honest-server", correctness="agreed")
    kept_by_five(federation, "mallory")
    deal(federation, "ann")
    bring_back = without(federation, "user-0", "user-1")
    deal(federation, "bob", "cat")
    bring_back()
    for name in ("mallory", "ann", "bob"):
        submit(federation, name)
    federation.network.run()
    assert not released(federation)  # mallory and bob have three holders in common
    cat = submit(federation, "cat")
    federation.network.run()
    (news,) = released(federation)
    assert {mask.contributor for mask in news.members} == {"ann", "bob", "cat"}
    assert cat.ticket.mask in news.members


def test_a_receipt_that_was_missing_makes_them_fit():
    federation = make_federation(consistency="honest-server", correctness="agreed")
    kept_by_five(federation, "ann")
    bring_back = without(federation, "user-0")
    deal(federation, "bob", "cat")
    bring_back()
    submitted = [submit(federation, name) for name in ("ann", "bob", "cat")]
    federation.network.run()
    assert not released(federation)
    for name in USERS[5:]:
        federation.start(holder_at(name))  # it comes back, and ann's share is delivered
    federation.network.run()
    (news,) = released(federation)
    assert exact_sum(news, submitted, federation.agreement.parameters)


def test_a_buffer_in_which_no_version_is_common_enough_gives_way():
    """m = K = 3, and seven users come with models of four versions: fewer than K are left waiting, at rest."""
    federation = make_federation(min_per_version=3, repeated_versions=True)
    downloads = []
    for names in (USERS[:3], USERS[3:6], USERS[:3]):
        downloads.append((federation.server.version, federation.server.head))
        one_round(federation, names)
    downloads.append((federation.server.version, federation.server.head))
    assert federation.server.version == 3
    for name, turn in zip(USERS, (0, 1, 1, 2, 2, 3, 3), strict=True):
        base, head = downloads[turn]
        submit(federation, name, base=base, head=head)
    federation.network.run()
    waiting = {update.name.contributor for update in federation.server.buffer.waiting}
    assert len(waiting) == 2
    told = [each for each in federation.take_news() if isinstance(each, MaskEnded)]
    given_up = {each.mask.contributor for each in told if each.state == "burned"}
    assert given_up == set(USERS) - waiting  # who waits rests; who was told trains again
    assert {each.reason for each in told if each.state == "burned"} == {
        "too few others trained from its version"
    }
    submit(federation, min(given_up))
    federation.network.run()
    assert federation.server.version == 4


def test_with_more_masks_than_its_quota():
    """The server stores so many of one dealer and no more; others deal as before."""
    federation = make_federation()
    mallory = federation.contributor("mallory")
    limit = federation.agreement.masks_per_contributor
    for _ in range(limit + 3):
        mallory._masks.clear()  # it forgets its own quota
        deal(federation, "mallory")
    stored = federation.server.opening.mailroom._live["mallory"]
    assert stored == limit
    refusals = [type(refusal) for _, refusal in federation.network.refusals]
    assert refusals.count(QuotaExceeded) == 3
    one_round(federation)
    assert federation.server.version == 1


def test_with_the_same_shipment_again_and_again():
    federation = make_federation()
    federation.deal("mallory")
    shipment = federation.network.in_flight[0]
    assert isinstance(shipment.message, Shipment)
    federation.network.run()
    before = federation.network.nodes[holder_at("user-0")].store.snapshot()
    federation.network.in_flight.extend([shipment] * 5)
    federation.network.run()
    assert federation.network.nodes[holder_at("user-0")].store.snapshot() == before
    assert len(federation.network.nodes[at("mallory")].machine.ready) == 1


@pytest.mark.parametrize(
    "honest",
    [
        5,  # the control: 2K - 1
        pytest.param(
            4,
            marks=pytest.mark.xfail(
                strict=True,
                reason="with up to 2K - 2 active honest contributors one liar spoils every attempt",
            ),
        ),
    ],
)
def test_with_lies_in_every_sum_that_it_can_be_in(honest, monkeypatch):
    """It is quicker than the others. It may spoil a buffer, but does not end the epoch."""
    federation, now = make_federation(max_burns=1, cryptography=False), 0.0
    opening = federation.server.opening

    def train(name):
        contributor, version = federation.contributor(name), federation.server.version
        if not contributor.is_waiting and contributor.may_train_from(version):
            submit(federation, name)
            federation.network.run()

    for _ in range(6):
        with monkeypatch.context() as lying:
            lying.setattr(contributor_module, "hide", lie)
            train("mallory")
        for name in USERS[:honest]:
            train(name)
        for _ in range(4):
            now += 31.0
            federation.network.perform(AT_SERVER, federation.server.tick(now, 30.0))
            federation.network.run()
        assert opening.trouble(federation.server.version) == ""
    assert federation.server.version > 1
