"""Fingerprints of updates: the same update in any form is known again, another one never."""

import numpy as np
import pytest
from msgspec.structs import astuple

from basecagg.errors import LocalProtocolError
from basecagg.protocol.effects import writes_of
from basecagg.protocol.ledger import SentUpdates
from basecagg.storage.in_memory import MemoryStore

UPDATE = np.array([0.0, 0.5, -1e-9, 3.0])
SAME = {
    "itself": UPDATE,
    "in another precision": UPDATE.astype(np.float32),
    "with the other zero": UPDATE * [-1, 1, 1, 1],
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_an_update_is_known_again(same, restart):
    store = MemoryStore()
    sent = SentUpdates(store, lambda size: bytes(range(size)))
    effects = sent.remember(sent.require_fresh(UPDATE))
    if restart:
        store.commit(writes_of(effects))
        sent = SentUpdates(store, bytes)
    with pytest.raises(LocalProtocolError, match="masked before"):
        sent.require_fresh(same)


@pytest.mark.parametrize(
    "other", [UPDATE * 2, UPDATE - np.array([0, 0, 1e-12, 0]), UPDATE[::-1], UPDATE[1:]]
)
def test_another_update_is_not(other):
    sent = SentUpdates(MemoryStore(), bytes)
    sent.remember(sent.require_fresh(UPDATE))
    assert sent.require_fresh(other)


def test_the_key_is_drawn_once_and_kept():
    store = MemoryStore()
    sent = SentUpdates(store, lambda size: bytes(range(size)))
    own = sent.require_fresh(UPDATE)
    assert sent.require_fresh(UPDATE) == own  # looking is not sending
    salt, fingerprint = sent.remember(own)
    assert astuple(salt)[:3] == ("salt", "", bytes(range(32)))
    assert (fingerprint.kind, fingerprint.key) == ("sent", own)
