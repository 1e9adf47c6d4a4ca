"""The server of an epoch with its store, and members with theirs: sums, refusals, silence and restarts."""

from __future__ import annotations

import numpy as np
import pytest
from parties import SIZE, USERS
from whole_epoch import MODEL, WholeEpoch

from basecagg.errors import LocalProtocolError, UnknownMask
from basecagg.maths.staleness import constant
from basecagg.parties.epoch_server import EpochServer, ServerSettings
from basecagg.protocol.effects import Released, Send
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import (
    Closing,
    MaskName,
    PlainUpdate,
    RecoveryRequest,
    Refusal,
    Verdict,
)
from basecagg.protocol.opening import PlainOpening
from basecagg.protocol.weighing import Weighing
from basecagg.storage.in_memory import MemoryStore


def update(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=0.1, size=SIZE).astype(np.float32)


def test_three_updates_become_a_step_by_their_mean():
    town = WholeEpoch()
    updates = [update(seed) for seed in range(3)]
    for name, each in zip(USERS, updates, strict=False):
        town.contribute(name, each)
    (released,) = town.released
    assert {mask.contributor for mask in released.members} == set(USERS[:3])
    assert town.server.machine.version == 1
    assert np.allclose(town.server.machine.model, MODEL - np.mean(updates, axis=0), atol=1e-3)


def test_a_refused_message_is_answered_and_returned_and_changes_nothing():
    town = WholeEpoch()
    (shipment,) = town.members["user-0"].deal()
    before = town.stores[SERVER].snapshot()
    refusal = town.server.receive("user-1", shipment)  # it is not this one's mask
    assert refusal is not None
    assert town.stores[SERVER].snapshot() == before
    assert list(town.letters) == [Send("user-1", Refusal(refusal.code, str(refusal)))]


def test_a_refused_update_is_answered_with_its_fate():
    town = WholeEpoch()
    town.say("user-0", town.members["user-0"].deal())
    (upload,) = town.members["user-0"].submit(update(0), 0, town.server.machine.head)
    town.server.recovery.mailroom._masks.clear()
    assert isinstance(town.server.receive("user-0", upload), UnknownMask)
    closing, verdict = (letter.message for letter in town.letters)
    assert isinstance(closing, Closing)  # so that it may train from this version again
    assert closing.outcome == "burned"
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "refused"


def test_silent_holders_are_asked_again_when_their_time_is_over():
    town = WholeEpoch()
    for seed, name in enumerate(USERS[:2]):
        town.contribute(name, update(seed))
    town.say(USERS[2], town.members[USERS[2]].deal())
    town.away = set(USERS)
    town.contribute(USERS[2], update(2))
    town.server.tick(100.0, 10.0)
    town.server.tick(109.0, 10.0)
    assert not town.letters
    town.server.tick(111.0, 10.0)
    assert {send.recipient for send in town.letters} == set(USERS)
    assert all(isinstance(send.message, RecoveryRequest) for send in town.letters)
    town.away = set()
    town.run()
    assert len(town.released) == 1


def test_a_server_that_starts_again_goes_on_and_asks_who_reconnects():
    town = WholeEpoch()
    for seed, name in enumerate(USERS[:2]):
        town.contribute(name, update(seed))
    town.say(USERS[2], town.members[USERS[2]].deal())
    town.away = set(USERS)
    town.contribute(USERS[2], update(2))
    town.start_server()
    town.away = set()
    for name in USERS:
        town.server.reconnect(name)
    town.run()
    assert len(town.released) == 1
    town.start_server()
    assert town.server.machine.version == 1


def test_what_leads_to_the_present_model_can_be_shown():
    town = WholeEpoch()
    for seed, name in enumerate(USERS[:3]):
        town.contribute(name, update(seed))
    key = town.identities["operator"].public_key
    pedigree = town.server.pedigree(key, 1)
    assert pedigree.epoch == town.epoch
    assert pedigree.release == town.server.recovery.kept.release(1)
    assert town.server.recovery.kept.parts(1) is not None


def test_updates_in_clear_are_summed_by_the_same_object():
    weighing, store = Weighing(3, constant(), "field"), MemoryStore()
    letters, news = [], []
    server = EpochServer(
        ServerSettings(2, weighing),
        PlainOpening(SIZE, weighing, store),
        store,
        MODEL,
        post=letters.extend,
        tell=news.append,
    )
    server.start()
    for seed, name in enumerate(("ann", "bob")):
        values = update(seed).tobytes()
        message = PlainUpdate.unsigned(MaskName(name, bytes(16)), 0, server.machine.head, values)
        assert server.receive(name, message) is None
    assert [type(each) for each in news] == [Released]
    assert np.allclose(server.machine.model, -(update(0) + update(1)) / 2)
    with pytest.raises(LocalProtocolError, match="not masked"):
        server.recovery  # noqa: B018
