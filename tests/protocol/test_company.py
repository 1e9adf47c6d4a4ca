"""An update that finds too few others of its version waits while somebody may come, and not for ever."""

from __future__ import annotations

import pytest
from parties import USERS, make_federation, one_round, released, submit

from basecagg.protocol.effects import MaskEnded
from reproduction.bench import AT_SERVER


def three_that_do_not_fit():
    """Two of version 1 and one of version 2; the model is at version 2, and K = m = 3."""
    federation = make_federation()
    for names in (USERS[:3], USERS[3:6]):
        one_round(federation, names)
    federation.take_news()

    def fill():
        for name, base in ((USERS[0], 1), (USERS[1], 1), (USERS[2], 2)):
            submit(federation, name, base=base)
            federation.network.run()

    return federation, fill


def waiting(federation):
    return [update.name.contributor for update in federation.server.buffer.waiting]


def perform(federation, effects):
    federation.network.perform(AT_SERVER, effects)
    federation.network.run()


def test_where_nobody_is_seen_to_train_the_oldest_goes_at_once():
    federation, fill = three_that_do_not_fit()
    fill()
    assert waiting(federation) == [USERS[1], USERS[2]]


def test_whoever_trains_from_the_same_version_is_waited_for():
    federation, fill = three_that_do_not_fit()
    federation.server.begun(USERS[6], 1)
    fill()
    assert waiting(federation) == [USERS[0], USERS[1], USERS[2]]
    submit(federation, USERS[6], base=1)
    federation.network.run()
    (news,) = released(federation)
    assert sorted(name.contributor for name in news.members) == [USERS[0], USERS[1], USERS[6]]
    assert waiting(federation) == [USERS[2]]


def test_nobody_waits_for_who_trains_from_another_version():
    federation, fill = three_that_do_not_fit()
    federation.server.begun(USERS[6], 2)
    fill()
    # Two of version 1 are too few, and no third can come; from the newest version somebody may.
    assert waiting(federation) == [USERS[2]]


def test_who_vanished_is_waited_for_no_more():
    federation, fill = three_that_do_not_fit()
    federation.server.begun(USERS[6], 1)
    fill()
    perform(federation, federation.server.over(USERS[6]))
    assert waiting(federation) == [USERS[1], USERS[2]]
    assert any(isinstance(news, MaskEnded) for news in federation.take_news())


@pytest.mark.parametrize("longest", [0.0, 100.0])
def test_a_training_that_takes_much_longer_than_others_is_given_up(longest):
    """After 20 times the patience, or three times the longest training so far."""
    federation, fill = three_that_do_not_fit()
    server = federation.server
    if longest:  # somebody's training took so long
        server.begun(USERS[3], 2)
        perform(
            federation, server.tick(longest, patience=1.0)
        )  # not waited for any more, and yet it comes
        submit(federation, USERS[3], base=2)
        federation.network.run()
    server.begun(USERS[6], 1)
    fill()
    kept = waiting(federation)
    limit = max(20.0, 3 * longest)
    perform(federation, server.tick(longest + limit - 1, patience=1.0))
    assert waiting(federation) == kept
    perform(federation, server.tick(longest + limit + 1, patience=1.0))
    assert len(waiting(federation)) < len(kept)


def test_who_looks_at_the_model_while_its_update_waits_is_not_expected():
    federation, _ = three_that_do_not_fit()
    submit(federation, USERS[0], base=1)
    federation.network.run()
    federation.server.begun(USERS[0], 2)
    assert federation.server._at_work == {}
