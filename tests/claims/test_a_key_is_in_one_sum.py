"""A key is in one upload and in one sum, under the name of who dealt it; whatever breaks that tells an update.

These are the games' rules in docs/explanation/keys-proof.md, tried on the real machines. The control of each
shows what a server would read if the rule were gone.
"""

import msgspec
import numpy as np
import pytest
from parties import (
    USERS,
    all_refuse,
    answers,
    ask,
    at,
    certify,
    deal,
    fresh_update,
    holder_at,
    intercept,
    make_federation,
    mask_sum,
    refuse,
    request_for,
)

from basecagg.errors import LocalProtocolError, MaskTaken, WrongRecipient
from basecagg.maths.approved_rings import ERROR_REACH, KEY_SIZE
from basecagg.maths.key_masks import key_of, mask_of_sum
from basecagg.maths.packing import unpack
from basecagg.maths.quantization import signed as with_sign
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import contributor, holder
from basecagg.protocol.effects import sends_of
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import (
    Dealing,
    MaskName,
    Parcel,
    Receipt,
    Ticket,
    Upload,
    content_hash,
    signed,
)
from basecagg.protocol.stored import OwnMask, parse

SIZE = 3000
FRIENDS = ("f1", "f2")


@pytest.fixture(autouse=True)
def dealt_ahead(monkeypatch):
    """Keys that are dealt ahead of their updates, as where uploads spend a budget: only these are stored.

    The rules of keys that come with their updates are in tests/protocol/test_one_visit.py.
    """
    monkeypatch.setattr(ProtocolParameters, "one_visit", False)


@pytest.fixture
def federation():
    return make_federation(model_size=SIZE, repeated_versions=True)


def seed_of(federation, name):
    """The seed of a mask that is ready: its owner knows it."""
    key = federation.contributor(name).ready[0].key
    return parse(federation.network.nodes[at(name)].store.read("mask", key), OwnMask).seed


def caught_parcels(federation, name):
    """A contributor deals a mask, all holders keep their shares, and the server keeps the envelopes."""
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    deal(federation, name)
    federation.network.observers.clear()
    return [message for message in seen if isinstance(message, Parcel)]


def read(federation, upload, key):
    """What a key takes the mask off: an update in steps, and its errors."""
    q = federation.agreement.parameters.modulus
    mask = mask_of_sum(key.astype(np.uint32), upload.ticket.epoch, q).draw(SIZE).astype(np.int64)
    words = unpack(upload.words, q)[:SIZE].astype(np.int64)
    return with_sign(((words - mask) % q).astype(np.uint32), q)


def is_read(federation, submitted, key):
    """Whether this key opens the upload."""
    found = read(federation, submitted.upload, key)
    return np.array_equal(found, submitted.quantized[:SIZE])


def sum_of_keys(federation, members):
    """What certified answers to a request of these members open."""
    question = request_for(federation, members)
    if federation.agreement.parameters.consistency == "certified":
        question = certify(federation, question)
    return mask_sum(federation, answers(federation, question))[:KEY_SIZE]


# --- an honest envelope, dealt again as one's own -------------------------------------------------


def dealt_again(federation, parcels, thief="mallory"):
    """The same envelopes under a name, a dealing and a signature of somebody else who is enrolled."""
    deal(federation, thief)  # enrols it
    credential, first = federation._credentials[thief], parcels[0].dealing
    mask = MaskName(thief, bytes(16), first.masks[0].expires)
    dealing = Dealing(federation.agreement.id, (mask,), first.root, credential)
    dealing = signed(dealing, federation.identity(thief))
    return [msgspec.structs.replace(parcel, dealing=dealing) for parcel in parcels]


def test_an_honest_envelope_cannot_be_dealt_again_as_ones_own(federation):
    stolen = dealt_again(federation, caught_parcels(federation, "ann"))
    for name, parcel in zip(USERS, stolen, strict=True):
        refuse(federation, name, parcel, WrongRecipient)


def test_control_envelopes_sealed_for_nobodys_name_tell_the_key_without_its_owner(
    federation, monkeypatch
):
    """The thief's sum has Ann's key in it, and everybody else in the sum knows its own."""
    for module in (contributor, holder):
        monkeypatch.setattr(module, "sealing_context", lambda epoch, masks, index: b"for anybody")
    stolen = dealt_again(federation, caught_parcels(federation, "ann"))
    for name, parcel in zip(USERS, stolen, strict=True):
        assert isinstance(ask(federation, name, parcel)[0], Receipt)
    victim = intercept(federation, "ann")
    deal(federation, *FRIENDS)
    p, known = federation.agreement.parameters, [seed_of(federation, name) for name in FRIENDS]
    words = bytes(p.word_bytes * p.padded_size)
    ticket = Ticket(
        federation.agreement.id,
        stolen[0].dealing.masks[0],
        0,
        federation.server.head,
        content_hash(words),
        0,
    )
    ticket = signed(ticket, federation.identity("mallory"))
    members = [ticket, *(intercept(federation, name) for name in FRIENDS)]
    key = (
        sum_of_keys(federation, members) - sum(key_of(s, p.modulus).astype(object) for s in known)
    ) % p.modulus
    assert is_read(federation, victim, key)


# --- one key in two uploads -----------------------------------------------------------------------


def test_a_key_hides_one_upload(federation):
    deal(federation, "ann")
    intercept(federation, "ann")
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match="no mask is ready"):
            federation.contributor("ann").submit(
                fresh_update(size=SIZE), 0, federation.server.head, 0
            )
        federation.start(at("ann"))
        federation.network.in_flight.clear()


def test_control_two_uploads_under_one_key_tell_the_difference_of_two_updates(federation):
    """Up to two errors, and with no holder's help."""
    deal(federation, "ann")
    ann = federation.contributor("ann")
    mask, seed = ann._masks[ann.ready[0].key], seed_of(federation, "ann")
    one, two = fresh_update(size=SIZE), fresh_update(size=SIZE)
    first = intercept(federation, "ann", one).upload
    mask.state, mask.seed = "ready", seed
    effects = ann.submit(two, 0, federation.server.head, 0)
    (second,) = (s.message for s in sends_of(effects) if isinstance(s.message, Upload))
    p = federation.agreement.parameters
    told = [unpack(each.words, p.modulus)[:SIZE].astype(np.int64) for each in (first, second)]
    difference = with_sign(((told[0] - told[1]) % p.modulus).astype(np.uint32), p.modulus)
    assert np.abs(difference - (one - two) * p.update_levels).max() <= 2 * (ERROR_REACH + 1)


# --- one key in two sums --------------------------------------------------------------------------


def test_a_key_is_in_one_sum(federation):
    """The second sum has only the server's friends beside the victim."""
    victim, *others = (intercept(federation, name) for name in ("ann", "bob", "cy"))
    sum_of_keys(federation, [victim, *others])
    friends = [intercept(federation, name) for name in FRIENDS]
    again = request_for(federation, [victim, *friends])
    all_refuse(federation, again, MaskTaken)
    for name in USERS:
        federation.start(holder_at(name))
    all_refuse(federation, again, MaskTaken)


def test_control_holders_that_forget_what_they_answered_tell_the_key(monkeypatch):
    def forget(self, request):
        for mask in request.masks:
            self._held.pop(mask.key, None)
        return []

    monkeypatch.setattr(Holder, "_advance", forget)
    federation = make_federation(model_size=SIZE, consistency="honest-server")
    parcels = caught_parcels(federation, "ann")
    victim, *others = (intercept(federation, name) for name in ("ann", "bob", "cy"))
    sum_of_keys(federation, [victim, *others])
    for name, parcel in zip(USERS, parcels, strict=True):
        ask(federation, name, parcel)
    deal(federation, *FRIENDS)
    q, known = federation.agreement.parameters.modulus, [seed_of(federation, n) for n in FRIENDS]
    friends = [intercept(federation, name) for name in FRIENDS]
    opened = sum_of_keys(federation, [victim, *friends])
    key = (opened - sum(key_of(seed, q).astype(object) for seed in known)) % q
    assert is_read(federation, victim, key)
