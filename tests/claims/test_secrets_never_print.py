"""No repr, str, error or log line holds a byte of a seed, a key, a share or an update."""

import logging

import numpy as np
import pytest
from parties import SIZE, USERS, at, deal, fresh_update, holder_at, make_federation, submit
from rich.pretty import pretty_repr

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.key_agreement import AgreementKey
from basecagg.channels.sealing import SealingKeys
from basecagg.errors import BASecAggError, LocalProtocolError
from basecagg.protocol.effects import Persist, perform
from basecagg.protocol.messages import MaskName, Parcel
from basecagg.protocol.participant import Participant, Pins
from basecagg.protocol.ports import Lock
from basecagg.protocol.stored import OwnMask, Person, StoredSealingKey
from basecagg.storage.in_memory import MemoryStore


@pytest.fixture
def federation():
    federation = make_federation()
    deal(federation, *USERS[:3])
    return federation


def forms(secret: bytes) -> list[str]:
    """What a secret looks like in text: hexadecimal, Python's bytes, a list of bytes, or of words."""
    largest = max(np.frombuffer(secret[:32], "<u4"))
    return [
        secret.hex()[:16],
        escaped(repr(secret[:8])[2:-1]),
        str(list(secret[:6]))[1:-1],
        str(largest),
    ]


def escaped(text: str) -> str:
    """Python writes a quote with or without a backslash, as the rest of the text has it."""
    return text.replace("\\'", "'")


def secrets_of(federation) -> list[bytes]:
    stores = {address: node.store for address, node in federation.network.nodes.items()}
    ann = federation.contributor("user-0")
    seeds = [mask.seed for mask in ann._masks.values() if mask.seed]
    shares = [value for name in USERS for _, value in stores[holder_at(name)].scan("share")]
    keys = [federation.identity(name).secret_bytes() for name in (*USERS, "server", "operator")]
    sealing = [federation._secret(name).secret_bytes() for name in USERS]
    found = [*seeds, *shares, *keys, *sealing, ann._sent._salt]
    return [secret for secret in found if secret]


def assert_silent(federation, things, extra=()):
    secrets = [*secrets_of(federation), *extra]
    assert len(secrets) > 15
    for thing in things:
        for text in (repr(thing), str(thing), f"{thing}", pretty_repr(thing)):
            for secret in secrets:
                assert not any(form in escaped(text) for form in forms(secret)), type(thing)


def test_the_search_finds_a_secret_that_is_printed(federation):
    """Else the tests below could not fail."""
    for secret in secrets_of(federation):
        for text in (
            secret.hex(),
            repr(secret),
            str(list(secret)),
            str(np.frombuffer(secret[:32], "<u4")),
        ):
            assert any(form in escaped(text) for form in forms(secret)), text


def test_of_machines_stores_and_records(federation):
    things = []
    for node in federation.network.nodes.values():
        things += [node, node.machine, node.store, *vars(node.machine).values()]
    for name in USERS[:3]:
        things += federation.contributor(name)._masks.values()
    assert_silent(federation, things)


def test_of_identities_and_keys(federation):
    things = [*federation._identities.values(), *federation._secrets.values(), federation]
    things += [federation.contributor("user-0")._sealer, federation.agreement]
    assert_silent(federation, things)


def test_of_a_participant_and_its_keys():
    store = MemoryStore()
    pins = Pins(federation="f", name="ann", signing_key=bytes(32), operator_key=bytes(32))
    participant = Participant(
        pins, Identity.create(), SealingKeys("x25519"), Ed25519Verifier(), store
    )
    effects = participant.announce()
    perform(store, effects)
    (record,) = participant.keys._keys.values()
    things = [participant, *vars(participant).values(), *vars(participant.keys).values(), record]
    for thing in [*things, *effects]:
        for text in (repr(thing), str(thing), pretty_repr(thing)):
            assert not any(form in escaped(text) for form in forms(record.secret)), type(thing)


def test_of_effects_and_messages(federation):
    """Also those of dealing, which write the seed, and of an upload, whose update is not shown either."""
    ann = federation.contributor("user-0")
    dealt = ann.deal(0)
    update = fresh_update()
    submitted = ann.submit(update, 0, federation.server.head, 0)
    assert any(isinstance(effect, Persist) for effect in dealt)
    federation.network.perform(at("user-0"), dealt)
    before = len(federation.network.in_flight)
    assert before == 1
    things = [*dealt, *submitted, list(federation.network.in_flight)]
    assert_silent(federation, things, extra=[update.tobytes()])
    for effect in (*dealt, *submitted):
        assert f"{update[0]:.6f}" not in repr(effect)


def test_of_a_holders_effects(federation):
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    deal(federation, "user-3")
    parcel = next(each for each in seen if isinstance(each, Parcel) and each.holder == 0)
    fresh = make_federation()
    with pytest.raises(BASecAggError) as caught:
        fresh.holder("user-0").receive(parcel)
    assert_silent(federation, [*seen, caught.value])


def test_of_refusals(federation):
    """Everything is replayed: each refusal is a sentence, with names and no contents."""
    seen = []
    federation.network.observers.append(seen.append)
    for name in USERS[:3]:
        submit(federation, name)
    federation.network.run()
    federation.network.in_flight.extend(seen)
    federation.network.run()
    refusals = [refusal for _, refusal in federation.network.refusals]
    assert refusals
    assert_silent(federation, refusals)


def test_of_local_errors(federation):
    ann, update = federation.contributor("user-0"), fresh_update()
    federation.network.perform(at("user-0"), ann.submit(update, 0, bytes(32), 0))
    caught = []
    for wrong in (update, np.full(SIZE, np.nan), np.zeros(3)):
        with pytest.raises(BASecAggError) as error:
            ann.submit(wrong, 0, bytes(32), 0)
        caught.append(error.value)
    assert isinstance(caught[0], LocalProtocolError)
    assert_silent(federation, caught, extra=[update.tobytes()])


def test_nothing_is_logged(federation, caplog):
    with caplog.at_level(logging.DEBUG):
        for name in USERS[:3]:
            submit(federation, name)
        federation.network.run()
    assert [record for record in caplog.records if record.name.startswith("basecagg")] == []


SECRET = bytes(range(32))
MASK = OwnMask(name=MaskName("ann", bytes(16), 9), dealing="d", seed=SECRET, state="ready")
SHOWN = [
    (MASK, f"OwnMask({MASK.name.key}, ready)", {"name": MASK.name.key, "state": "ready"}),
    (Lock(SECRET, SECRET), "Lock(…)", {}),
    (
        StoredSealingKey(secret=SECRET, state="joined", born=1),
        "StoredSealingKey(joined)",
        {"state": "joined"},
    ),
    (
        Person(role="both", state="invited", after=0, token=SECRET),
        "Person(both, invited)",
        {"role": "both", "state": "invited"},
    ),
    (
        Persist("mask", "k", SECRET),
        "Persist(mask/k, 32 bytes)",
        {"place": "mask/k", "size": "32 bytes"},
    ),
]


@pytest.mark.parametrize(("thing", "text", "fields"), SHOWN, ids=lambda each: type(each).__name__)
def test_what_is_shown_instead(thing, text, fields):
    """Enough to tell them apart in a log, to Python and to the rich library alike."""
    assert repr(thing) == text
    assert dict(thing.__rich_repr__()) == fields


def test_what_a_key_shows():
    identity, agreed = Identity.create(), AgreementKey(SECRET)
    assert repr(identity) == f"Identity({identity.public_key.hex()[:12]}…)"
    assert repr(agreed) == f"AgreementKey({agreed.public_key.hex()[:12]}…)"
