"""A participant's sealing keys: one serves the epoch, the newest few wait, older ones are gone."""

import pytest

from basecagg.channels.sealing import SealingKeys
from basecagg.errors import WrongEpoch
from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.key_ring import KeyRing
from basecagg.storage.in_memory import MemoryStore


@pytest.fixture
def ring():
    return KeyRing(SealingKeys("x25519"), MemoryStore())


def create(ring, count):
    """So many keys, announced one after the other."""
    return [created(ring) for _ in range(count)]


def created(ring):
    ring.create()
    return ring.announced()[-1]


def test_a_key_is_written_for_good_before_it_is_announced(ring):
    (written,) = ring.create()
    (key,) = ring.announced()
    assert isinstance(written, Persist)
    assert (written.kind, written.key, written.irreversible) == ("sealing", key.hex(), True)
    assert ring.states() == {key.hex(): "announced"}


def test_an_announced_key_serves_no_epoch(ring):
    create(ring, 2)
    assert ring.joined() is None


def test_the_joined_key_serves_and_newer_ones_wait(ring):
    first, second, third = create(ring, 3)
    assert ring.join(second) == [Forget("sealing", first.hex()), ring._write(second.hex())]
    assert ring.joined().public_key == second
    assert ring.announced() == [third]
    assert ring.states() == {second.hex(): "joined", third.hex(): "announced"}
    assert ring.leave() == [Forget("sealing", second.hex())]
    assert ring.joined() is None
    assert ring.announced() == [third]


def test_the_next_epoch_destroys_the_key_of_the_last(ring):
    first, second = create(ring, 2)
    ring.join(first)
    assert Forget("sealing", first.hex()) in ring.join(second)
    assert ring.states() == {second.hex(): "joined"}
    assert ring.join(None) == [Forget("sealing", second.hex())]


def test_a_key_joins_once(ring):
    (key,) = create(ring, 1)
    assert ring.has(key)
    assert not ring.has(bytes(32))
    ring.join(key)
    with pytest.raises(WrongEpoch):
        ring.has(key)


def test_eight_are_announced_at_a_time(ring):
    keys = create(ring, 8)
    assert ring.announced() == keys
    effects = ring.create()
    assert [each for each in effects if isinstance(each, Forget)] == [
        Forget("sealing", keys[0].hex())
    ]
    assert ring.announced()[:-1] == keys[1:]


def test_their_order_outlives_a_restart():
    store, suite = MemoryStore(), SealingKeys("x25519")
    for _ in range(8):
        ring = KeyRing(suite, store)
        (written,) = ring.create()
        store._kinds["sealing"][written.key] = written.value
        assert ring.announced()[-1].hex() == written.key
    assert KeyRing(suite, store).announced() == ring.announced()


def test_all_can_be_destroyed(ring):
    first, second = create(ring, 2)
    ring.join(first)
    gone = {effect.key for effect in ring.destroy_all()}
    assert gone == {first.hex(), second.hex()}
    assert ring.states() == {}
