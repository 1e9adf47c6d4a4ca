"""An epoch with protection 'none': plain FedBuff by the same parties, signed, and made again by others."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from parties import SIZE, USERS
from whole_epoch import MODEL, WholeEpoch

from basecagg.channels.identity import Ed25519Verifier
from basecagg.errors import BadSignature, Malformed, NotEnrolled, WrongEpoch
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import MaskEnded
from basecagg.protocol.epoch import SERVER, accept
from basecagg.protocol.messages import PlainUpdate, Release, Upload, signed
from basecagg.protocol.proofs import Caught, Evidence, Fork, Miscalculation
from basecagg.protocol.recomputation import judge, recompute
from basecagg.storage.in_memory import MemoryStore

TERMS = ProtocolParameters.in_clear(buffer_size=3, model_size=SIZE, staleness=polynomial(1.0))


def update(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, SIZE).astype(np.float32)


def agreed(town: WholeEpoch):
    return accept(town.epoch, town.identities["operator"].public_key, Ed25519Verifier())


def after_one_sum(**changes) -> WholeEpoch:
    town = WholeEpoch(TERMS, **changes)
    for seed, name in enumerate(USERS[:3]):
        town.contribute(name, update(seed))
    return town


def test_it_is_fedbuff():
    """The mean of K updates; an older one counts 2^−t times, as in a protected epoch."""
    town = WholeEpoch(TERMS)
    late = town.members[USERS[3]]
    base, head = town.server.machine.version, town.server.machine.head
    for seed, name in enumerate(USERS[:3]):
        town.contribute(name, update(seed))
    first = np.mean([update(seed) for seed in range(3)], axis=0, dtype=np.float64)
    assert np.allclose(town.server.machine.model, -first, atol=1e-6)
    late.take([town.server.kept.release(1)])  # it knows by now that the model has moved
    town.say(USERS[3], late.submit(update(3), base, head))
    for seed, name in enumerate(USERS[:2], start=4):
        town.contribute(name, update(seed))
    assert [released.weights for released in town.released] == [(1, 1, 1), (1, 1, 0.5)]
    mean = (update(4) + update(5) + 0.5 * update(3)) / 2.5
    assert np.allclose(town.server.machine.model, -first - mean, atol=1e-6)


def test_nobody_holds_anything_and_nobody_is_asked():
    town = after_one_sum()
    assert town.epoch.holders == town.epoch.points == ()
    assert all(member.participant.holder is None for member in town.members.values())
    assert [each.state for each in town.news if isinstance(each, MaskEnded)] == ["opened"] * 3


def test_a_member_makes_the_version_again():
    town = after_one_sum()
    parts = town.server.kept.parts(1)
    model, _ = recompute(agreed(town), parts)
    assert np.array_equal(model, town.server.machine.model)
    assert parts.uploads == tuple(
        update(seed).tobytes() for seed in range(3)
    )  # in clear, as they were sent


def cheat(town: WholeEpoch, parts, **changes):
    """The parts under another last link that the server signs."""
    history = parts.release.history
    links = (*history.links[:-1], replace(history.links[-1], **changes))
    said = replace(parts.release, history=replace(history, links=links), signature=b"")
    return replace(parts, release=signed(said, town.identities[SERVER]))


def test_a_server_that_makes_another_model_is_convicted():
    town = after_one_sum()
    honest = town.server.kept.parts(1)
    another = cheat(town, honest, model_hash=bytes(32))
    with pytest.raises(Caught) as caught:
        recompute(agreed(town), another)
    assert isinstance(caught.value.proof, Miscalculation)
    key = town.identities["operator"].public_key
    judge(Evidence(town.epoch, caught.value.proof, key), key, Ed25519Verifier())
    member = town.members[USERS[5]]
    member.take([honest.release])
    with pytest.raises(Caught) as forked:
        member.participant.watch.hear(another.release)
    assert isinstance(forked.value.proof, Fork)


def test_updates_that_the_server_did_not_name_convict_nobody():
    town = after_one_sum()
    parts = town.server.kept.parts(1)
    swapped = replace(parts, uploads=(update(9).tobytes(), *parts.uploads[1:]))
    with pytest.raises(Exception, match="not those that the request names"):
        recompute(agreed(town), swapped)


# --- what the server refuses ----------------------------------------------------------------------


def sent(town: WholeEpoch, name: str = USERS[0]) -> PlainUpdate:
    town.tell_of_version(name)
    machine = town.server.machine
    (message,) = town.members[name].submit(update(1), machine.version, machine.head)
    assert isinstance(message, PlainUpdate)
    return message


def resigned(town: WholeEpoch, message: PlainUpdate, by: str, **changes) -> PlainUpdate:
    ticket = replace(message.ticket, signature=b"", **changes)
    return replace(message, ticket=signed(ticket, town.identities[by]))


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda town, m: replace(m, credential=None), Malformed),
        (lambda town, m: PlainUpdate.unsigned(m.ticket.mask, 0, m.ticket.head, m.values), Malformed),
        (lambda town, m: resigned(town, m, USERS[1]), BadSignature),
        (lambda town, m: resigned(town, m, USERS[0], epoch=bytes(32)), WrongEpoch),
        (lambda town, m: replace(m, credential=town.credential(USERS[1])), NotEnrolled),
        (lambda town, m: replace(m, credential=replace(m.credential, signature=bytes(64))), NotEnrolled),
        (lambda town, m: Upload(m.ticket, m.values), Malformed),
    ],
)  # fmt: skip
def test_what_no_member_signed_is_refused(forge, error):
    town = WholeEpoch(TERMS)
    honest = sent(town)
    refusal = town.server.receive(USERS[0], forge(town, honest))
    assert type(refusal) is error
    assert town.server.machine.buffer.waiting == []
    assert town.server.receive(USERS[0], honest) is None  # the control


def test_somebody_else_does_not_send_it():
    town = WholeEpoch(TERMS)
    message = sent(town)
    assert isinstance(town.server.receive(USERS[1], message), NotEnrolled)


def test_a_protected_epoch_takes_nothing_in_clear():
    clear, masked = WholeEpoch(TERMS), WholeEpoch()
    refusal = masked.server.receive(USERS[0], sent(clear))
    assert isinstance(refusal, Malformed)
    assert masked.server.machine.buffer.waiting == []


# --- crashes ----------------------------------------------------------------------------------------


def test_an_update_counts_once_however_often_it_comes():
    town = WholeEpoch(TERMS)
    first = sent(town)
    for _ in range(3):
        town.say(USERS[0], [first])
        town.start_server()
    town.away = {USERS[0]}  # it never hears what became of it
    for seed, name in enumerate(USERS[1:3]):
        town.contribute(name, update(seed))
    town.away = set()
    (again,) = town.start_member(USERS[0])
    assert again == first
    town.say(USERS[0], [again])
    assert len(town.released) == 1
    assert [name.contributor for name in town.released[0].members] == list(USERS[:3])
    assert town.server.machine.buffer.waiting == []
    assert not town.members[USERS[0]].participant.contributor.is_waiting  # it was told by now


def test_the_server_goes_on_where_it_was():
    town = after_one_sum()
    for name in USERS[:2]:
        town.say(name, [sent(town, name)])
    town.start_server()
    assert town.server.machine.version == 1
    assert len(town.server.machine.buffer.waiting) == 2
    town.say(USERS[2], [sent(town, USERS[2])])
    assert town.server.machine.version == 2
    assert town.server.kept.parts(2) is not None
    town.say(USERS[2], [sent(town, USERS[2])])
    assert town.server.kept.parts(1) is None  # its parts went when others came
    recompute(agreed(town), town.server.kept.parts(2))


class OldCopy(MemoryStore):
    """A store that its anchor gives away as an older copy, until something irreversible is written."""

    rolled_back = True

    def commit(self, writes):
        super().commit(writes)
        if any(getattr(write, "irreversible", False) for write in writes):
            self.rolled_back = False


@pytest.mark.parametrize("noticed", [True, False])
def test_a_restored_server_signs_no_second_model(noticed):
    """Without its anchor it would: members then have two words about one version, which convict it."""
    town = WholeEpoch(TERMS)
    before = town.stores[SERVER].snapshot()
    for seed, name in enumerate(USERS[:3]):
        town.contribute(name, update(seed))
    heard = town.server.kept.release(1)
    town.stores[SERVER] = OldCopy(before) if noticed else MemoryStore(before)
    town.start_server()
    for name in USERS[3:6]:
        town.say(name, [sent(town, name)])
    said = town.server.kept.release(1)
    assert isinstance(heard, Release)
    if noticed:
        assert said is None
        assert "older copy" in town.server.opening.trouble(0)
    else:
        town.members[USERS[6]].take([heard])
        with pytest.raises(Caught):
            town.members[USERS[6]].participant.watch.hear(said)
    assert np.array_equal(town.server.machine.model, MODEL) == noticed
