"""Honest users are there and willing: no version stands still because of what happened before."""

import numpy as np
import pytest
from parties import (
    SIZE,
    USERS,
    abandoned,
    at,
    deal,
    fresh_update,
    make_federation,
    one_round,
    submit,
)

from basecagg.maths.randomness import FieldStream, derive_seed
from basecagg.protocol import contributor as contributor_module
from basecagg.simulation.loopback import AT_SERVER


@pytest.mark.parametrize("idle", [89, 91, 100])
def test_whoever_was_idle_for_long_deals_new_masks_first(idle):
    """A mask that ends before its update could be too old is refused: it would wait for its like so long."""
    federation = make_federation(max_burns=0, cryptography=False)
    (late, *others), cat = USERS[:4], federation.contributor(USERS[0])
    federation.network.perform(at(late), cat.deal_ahead(0, 2))
    federation.network.run()
    for _ in range(idle):
        one_round(federation, others)
    version = federation.server.version
    for name in others[:2]:
        submit(federation, name)
    federation.network.run()
    federation.network.perform(at(late), cat.deal_ahead(version, 2))
    federation.network.run()
    federation.submit(late, fresh_update(), version, federation.server.head)
    federation.network.run()
    assert federation.server.version == version + 1


def lie(update, seed, p):
    """The words of an update that no clipping has seen."""
    mask = FieldStream(derive_seed(seed, "mask"), p.modulus).draw(p.padded_size).astype(object)
    numbers = np.zeros(p.padded_size, object)
    drawn = np.random.default_rng(5).integers(0, p.modulus, SIZE)
    numbers[:SIZE] = [int(number) for number in drawn]
    return ((numbers + mask) % p.modulus).astype(np.uint32), 0


def test_members_of_a_sum_that_was_spoiled_are_left_out_for_a_while_only(monkeypatch):
    """Others have dealt masks and are gone: nobody but those who were in the sum can make another."""
    federation, (ann, bob, liar, dan, *gone) = make_federation(), USERS[:7]
    deal(federation, *gone, count=2)
    for name in (ann, bob):
        submit(federation, name)
    with monkeypatch.context() as lying:
        lying.setattr(contributor_module, "hide", lie)
        submit(federation, liar)
    federation.network.run()
    assert len(abandoned(federation)) == 1
    for name in (ann, bob, dan):
        submit(federation, name)
    federation.network.run()
    assert federation.server.version == 0  # others may still come
    for seconds in (0.0, 31.0):
        federation.network.perform(AT_SERVER, federation.server.tick(seconds, 30.0))
    federation.network.run()
    assert federation.server.version == 1
