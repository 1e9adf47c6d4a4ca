"""`Federation` as people use it: members join, upload, vanish, come back, and go on from their stores."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from basecagg import DataError, Federation, ProtocolParameters
from basecagg.protocol.effects import MaskEnded
from basecagg.storage.in_memory import MemoryStore

PARAMETERS = ProtocolParameters(
    num_holders=7,
    recovery_threshold=4,
    max_colluders=1,
    max_dropouts=2,
    buffer_size=3,
    model_size=5,
)
USERS = ("user-0", "user-1", "ann")
"""Two hold shares too, one only contributes."""


def contribute(federation: Federation, users: tuple[str, ...] = USERS) -> np.ndarray:
    updates = np.random.default_rng(len(users[-1])).normal(0, 0.1, (len(users), 5))
    for user, update in zip(users, updates, strict=True):
        federation.contribute(user, update)
    return updates.mean(axis=0)


@pytest.mark.parametrize("cryptography", [True, False])
def test_a_sum_is_opened_and_everybody_hears_of_it(cryptography: bool) -> None:
    federation = Federation(PARAMETERS, cryptography=cryptography)
    mean = contribute(federation)
    (opened,) = federation.run()
    assert np.abs(opened.weighted_sum / sum(opened.weights) - mean).max() < 1e-4
    assert np.abs(federation.server.model + mean).max() < 1e-4
    ended = [news for news in federation.take_news() if isinstance(news, MaskEnded)]
    assert {(news.mask.contributor, news.state) for news in ended} == {
        (user, "opened") for user in USERS
    }
    assert federation.network.refusals == []


def test_a_user_is_one_member_with_one_store() -> None:
    stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
    federation = Federation(PARAMETERS, make_store=stores.__getitem__)
    contribute(federation)
    federation.run()
    assert stores.keys() == {"server", "ann", *(f"user-{index}" for index in range(7))}
    both, only = (federation.member(name).participant for name in ("user-0", "ann"))
    assert both.holder is not None
    assert both.contributor is not None
    assert only.holder is None


def test_with_too_few_holders_the_sum_waits_for_one_to_come_back() -> None:
    federation = Federation(PARAMETERS)
    contribute(federation)
    federation.vanish("user-4", "user-5", "user-6")
    assert federation.run() == []
    federation.come_back("user-4")
    assert len(federation.run()) == 1


def test_a_contributor_that_was_away_hears_what_became_of_its_update() -> None:
    federation = Federation(PARAMETERS)
    contribute(federation)
    federation.vanish("user-0")
    assert len(federation.run()) == 1
    assert federation.member("user-0").participant.working().is_waiting
    federation.come_back("user-0")
    federation.run()
    assert not federation.member("user-0").participant.working().is_waiting
    contribute(federation, ("user-0", "bob", "carol"))
    assert len(federation.run()) == 1


def test_a_federation_goes_on_from_its_stores() -> None:
    stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)

    def seeded(purpose: str):  # type: ignore[no-untyped-def]
        return lambda count: (purpose.encode() + bytes(count))[:count]

    def keys_alone(purpose: str):  # type: ignore[no-untyped-def]
        masks = np.random.default_rng().bytes
        return masks if purpose.startswith("masks/") else seeded(purpose)

    first = Federation(PARAMETERS, make_store=stores.__getitem__, entropy=keys_alone)
    contribute(first)
    first.run()
    again = Federation(PARAMETERS, make_store=stores.__getitem__, entropy=keys_alone)
    assert again.agreement.id == first.agreement.id
    assert again.server.version == 1
    np.testing.assert_array_equal(again.server.model, first.server.model)
    contribute(again, ("user-2", "user-3", "dan"))
    assert len(again.run()) == 1


@pytest.mark.parametrize("method", ["vanish", "come_back"])
def test_who_is_no_holder_can_neither_vanish_nor_come_back(method: str) -> None:
    federation = Federation(PARAMETERS)
    with pytest.raises(DataError, match="ann cannot"):
        getattr(federation, method)("ann")


def test_who_is_away_cannot_vanish_again() -> None:
    federation = Federation(PARAMETERS)
    federation.vanish("user-1")
    with pytest.raises(DataError, match="user-1 cannot vanish"):
        federation.vanish("user-1")
