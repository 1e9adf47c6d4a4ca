"""The contributor's machine: deals, counts receipts, masks, retries. Its refusals are in claims/ too."""

import msgspec
import numpy as np
import pytest
from parties import (
    SIZE,
    USERS,
    at,
    deal,
    fresh_update,
    intercept,
    make_federation,
    nothing_changes,
    one_hop,
    submit,
)

from basecagg.errors import (
    BadSignature,
    DataError,
    LocalProtocolError,
    Malformed,
    StorageError,
    UnknownMask,
    WrongEpoch,
)
from basecagg.maths.randomness import FieldStream, derive_seed
from basecagg.protocol import masking, merkle
from basecagg.protocol.effects import (
    Forget,
    MaskEnded,
    Persist,
    Send,
    Uploaded,
    sends_of,
    writes_of,
)
from basecagg.protocol.masking import hide, mask_of, shares_of
from basecagg.protocol.messages import (
    MaskName,
    Receipt,
    Shipment,
    Verdict,
    content_hash,
    sealing_context,
    signed,
    statement,
)
from basecagg.protocol.stored import Locks, parse
from basecagg.storage.in_memory import MemoryStore


@pytest.fixture
def ann(federation):
    return federation.contributor("ann")


def receipt(federation, index, *masks, signer=None):
    name = signer or USERS[index]
    return signed(Receipt(federation.agreement.id, index, masks), federation.identity(name))


def dealt(federation):
    """A dealing of ann's whose parcels never arrive."""
    ann = federation.contributor("ann")
    effects = ann.deal(federation.server.version)
    federation.network.nodes[at("ann")].store.commit(writes_of(effects))
    (send,) = sends_of(effects)
    return send.message


# --- dealing ----------------------------------------------------------------------------------


def test_a_deal_is_written_before_it_is_sent(federation, ann):
    effects = ann.deal(0)
    kinds = [type(effect) for effect in effects]
    assert kinds == [Persist, Persist, Persist, Send]
    assert [effect.kind for effect in effects[:3]] == ["mask", "dealing", "locks"]


def test_the_shares_are_the_code_word_of_the_mask(federation, ann):
    """Opened by their holders, any U of them give the mask that the seed expands to."""
    shipment, p = dealt(federation), federation.agreement.parameters
    mask = shipment.dealing.masks[0]
    shares = {}
    for index, sealed in enumerate(shipment.sealed):
        context = sealing_context(federation.agreement.id, (mask,), index)
        opened = federation._secret(USERS[index]).open(context, sealed)
        shares[index] = np.frombuffer(opened, "<u4")
        assert shares[index].shape == (p.share_size,)
    seed = ann._masks[mask.key].seed
    z = FieldStream(derive_seed(seed, "mask"), p.modulus).draw(p.padded_size)
    for some in ((0, 1, 2, 3), (3, 4, 5, 6), (0, 2, 4, 6)):
        decoded = federation.agreement.code.decode({index: shares[index] for index in some})
        assert (decoded == z).all()


def test_the_dealing_is_signed_over_all_shares(federation, ann):
    shipment = dealt(federation)
    dealing = shipment.dealing
    leaves = tuple(merkle.leaf(i, sealed) for i, sealed in enumerate(shipment.sealed))
    assert shipment.leaves == leaves
    assert {sealed[:32] for sealed in shipment.sealed} == {shipment.sealed[0][:32]}
    assert dealing.root == merkle.root_of(leaves, shipment.sealed[0][:32])
    key = federation.identity("ann").public_key
    assert federation.agreement.verifier.verify(key, statement(dealing), dealing.signature)


def test_no_two_masks_are_alike(federation, ann):
    shipments = [dealt(federation) for _ in range(4)]
    assert len({s.dealing.masks[0] for s in shipments}) == 4
    assert len({mask.seed for mask in ann._masks.values()}) == 4
    assert len({sealed for s in shipments for sealed in s.sealed}) == 28


def test_so_many_masks_ahead_and_no_more(federation, ann):
    for _ in range(federation.agreement.parameters.mask_quota):
        dealt(federation)
    with nothing_changes(federation, at("ann")), pytest.raises(LocalProtocolError, match="ahead"):
        ann.deal(0)


def test_masks_that_are_ready_count_as_dealt_ahead(federation, ann):
    deal(federation, "ann", count=federation.agreement.parameters.mask_quota)
    assert len(ann.ready) == federation.agreement.parameters.mask_quota
    with nothing_changes(federation, at("ann")), pytest.raises(LocalProtocolError, match="ahead"):
        ann.deal(0)


@pytest.mark.parametrize("version", [1_000_001, 2**60, 2**64])
def test_no_mask_for_a_version_that_no_epoch_reaches(federation, ann, version):
    """The server alone says how far the model is: a mask that never expires is never dealt on its word."""
    with nothing_changes(federation, at("ann")), pytest.raises(LocalProtocolError, match="epoch"):
        ann.deal(version)
    assert ann.deal(1_000_000)


def test_a_waiting_update_does_not_count_as_dealt_ahead(federation, ann):
    quota = federation.agreement.parameters.mask_quota
    deal(federation, *["ann"] * quota)
    submit(federation, "ann")
    federation.network.run()
    deal(federation, "ann")
    assert len(ann.ready) == quota


# --- receipts ---------------------------------------------------------------------------------


def test_ready_when_enough_holders_confirmed(federation, ann):
    dealing = dealt(federation).dealing
    (mask,) = dealing.masks
    needed = federation.agreement.holders_needed
    for index in range(needed - 1):
        for _ in range(2):  # the same again counts once
            assert ann.receive(receipt(federation, index, mask)) == []
    assert ann.ready == []
    effects = ann.receive(receipt(federation, needed - 1, mask))
    assert {Forget("dealing", dealing.key), Forget("locks", dealing.key)} <= set(effects)
    assert ann.ready == [mask]


@pytest.mark.parametrize("signer", ["server", "ann", "user-1"])
def test_a_receipt_that_its_holder_did_not_sign(federation, ann, signer):
    mask = dealt(federation).dealing.masks[0]
    with nothing_changes(federation, at("ann")), pytest.raises(BadSignature):
        ann.receive(receipt(federation, 0, mask, signer=signer))


def test_a_receipt_that_was_changed(federation, ann):
    mask = dealt(federation).dealing.masks[0]
    true = receipt(federation, 0, MaskName("ann", bytes(16)))
    forged = msgspec.structs.replace(true, masks=(mask,))
    with pytest.raises(BadSignature):
        ann.receive(forged)
    with pytest.raises(BadSignature):
        ann.receive(msgspec.structs.replace(true, holder=7))


def test_a_receipt_of_another_epoch(federation, ann):
    other = make_federation()
    with pytest.raises(WrongEpoch):
        ann.receive(receipt(other, 0, dealt(federation).dealing.masks[0]))


def test_a_receipt_for_somebody_elses_masks_is_passed_over(federation, ann):
    assert ann.receive(receipt(federation, 0, MaskName("bob", bytes(16)))) == []


def test_the_mask_that_expires_first_is_used_first(federation, ann):
    deal(federation, "ann", version=5)
    deal(federation, "ann", version=3)
    assert [name.expires for name in ann.ready] == [103, 105]


def test_of_masks_that_expire_together_the_first_by_name(federation, ann):
    """So a restart, which reads them in any order, goes on with the same one."""
    deal(federation, "ann", count=federation.agreement.parameters.mask_quota)
    assert [name.key for name in ann.ready] == sorted(ann._masks)


# --- masking ----------------------------------------------------------------------------------


def test_an_upload_is_written_before_it_is_sent(federation, ann):
    deal(federation, "ann")
    effects = ann.submit(fresh_update(), 0, federation.server.head, 0)
    *writes, send, uploaded = effects
    assert (type(send), type(uploaded)) == (Send, Uploaded)
    assert all(isinstance(effect, Persist) for effect in writes)
    counted = {"base"} if federation.agreement.parameters.once_per_version else set()
    lasting = {effect.kind for effect in writes if effect.irreversible}
    assert lasting == {"mask", "ticket", "upload"} | counted


def test_the_ticket_says_what_and_from_which_model(federation, ann):
    submitted = intercept(federation, "ann", base=0, head=b"h" * 32)
    ticket = submitted.ticket
    assert (ticket.base_version, ticket.head) == (0, b"h" * 32)
    assert ticket.upload_hash == content_hash(submitted.upload.words)
    key = federation.identity("ann").public_key
    assert federation.agreement.verifier.verify(key, statement(ticket), ticket.signature)


def test_what_is_uploaded_is_the_rounded_update_plus_the_mask(federation, ann):
    update, p = fresh_update(), federation.agreement.parameters
    submitted = intercept(federation, "ann", update)
    scaled = update * p.update_levels
    off = submitted.quantized[:SIZE] - scaled
    assert np.abs(off).max() < 1
    assert not submitted.quantized[SIZE:].any()  # the pad
    assert len(submitted.upload.words) == 4 * p.padded_size


def test_an_upload_looks_like_noise(federation, ann):
    """Zeros under a mask are as uniform as anything: no word is small, none repeats."""
    submitted = intercept(federation, "ann", np.zeros(SIZE))
    words = np.frombuffer(submitted.upload.words, "<u4")
    assert len(set(words.tolist())) == words.size
    assert np.median(words) > 2**30


@pytest.mark.parametrize(
    "update",
    [
        np.zeros(SIZE - 1),
        np.zeros(SIZE + 1),
        np.zeros((SIZE, 1)),
        np.full(SIZE, np.nan),
        np.full(SIZE, -np.inf),
        np.zeros(SIZE, int),
    ],
    ids=["short", "long", "matrix", "nan", "inf", "integers"],
)
def test_an_update_that_is_none(federation, ann, update):
    """It is refused, and the mask is still there for another one."""
    deal(federation, "ann")
    store = federation.network.nodes[at("ann")].store
    before = store.snapshot(), ann.states()
    with pytest.raises(DataError):
        ann.submit(update, 0, federation.server.head, 0)
    assert (store.snapshot(), ann.states()) == before
    assert len(ann.ready) == 1


def test_float32_is_taken_as_it_is(federation, ann):
    update = fresh_update().astype(np.float32)
    submitted = intercept(federation, "ann", update)
    p = federation.agreement.parameters
    off = submitted.quantized[:SIZE] - update.astype(np.float64) * p.update_levels
    assert np.abs(off).max() < 1


def test_without_a_ready_mask(federation, ann):
    with pytest.raises(LocalProtocolError, match="no mask is ready"):
        ann.submit(fresh_update(), 0, federation.server.head, 0)
    dealt(federation)
    with pytest.raises(LocalProtocolError, match="no mask is ready"):
        ann.submit(fresh_update(), 0, federation.server.head, 0)


# --- endings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["opened", "refused", "burned"])
def test_a_verdict_ends_the_mask(federation, ann, outcome):
    mask = intercept(federation, "ann").ticket.mask
    verdict = Verdict(federation.agreement.id, mask, outcome, "because")
    effects = ann.receive(verdict)
    assert MaskEnded(mask, outcome, "because") in effects
    federation.network.perform(at("ann"), effects)
    assert ann.states() == {}
    store = federation.network.nodes[at("ann")].store
    counted = {"base", "based"} if federation.agreement.parameters.once_per_version else set()
    assert set(store.snapshot()) == {"epoch", "salt", "sent"} | counted
    with pytest.raises(UnknownMask):
        ann.receive(verdict)


def test_admitted_is_not_the_end(federation, ann):
    """The outcome may be lost: the upload is kept and sent again until there is one."""
    submitted = intercept(federation, "ann")
    mask = submitted.ticket.mask
    effects = ann.receive(Verdict(federation.agreement.id, mask, "admitted"))
    federation.network.perform(at("ann"), effects)
    assert ann.states() == {mask.key: "uploaded"}
    assert Send("server", submitted.upload) in ann.reconnect()


def test_a_verdict_of_another_epoch_or_on_another_mask(federation, ann):
    mask = intercept(federation, "ann").ticket.mask
    with pytest.raises(WrongEpoch):
        ann.receive(Verdict(bytes(32), mask, "burned"))
    with pytest.raises(UnknownMask):
        ann.receive(Verdict(federation.agreement.id, MaskName("ann", bytes(16)), "burned"))
    assert ann.states() == {mask.key: "uploaded"}


def test_masks_expire_by_version(federation, ann):
    """An unused one as soon as an update could outlive it, for it may wait until it is too old."""
    p = federation.agreement.parameters
    deal(federation, "ann")
    assert ann.expire(p.mask_lifetime - p.max_staleness) == []
    effects = ann.expire(p.mask_lifetime - p.max_staleness + 1)
    assert [effect.state for effect in effects if isinstance(effect, MaskEnded)] == ["expired"]
    assert ann.ready == []


def test_messages_that_are_not_for_a_contributor(federation, ann):
    upload = intercept(federation, "ann").upload
    with nothing_changes(federation, at("ann")), pytest.raises(Malformed):
        ann.receive(upload)


# --- restarts ---------------------------------------------------------------------------------


def test_an_older_copy_belongs_to_the_epoch_that_it_is_first_used_in(federation):
    """A copy from before its first use has no epoch yet."""
    copy = MemoryStore()
    copy.rolled_back = True
    federation.start(at("ann"), copy)
    assert copy.read("epoch", "") == federation.agreement.id


def test_a_restart_in_every_state_of_one_that_keeps_its_masks(federation):
    federation._keeps_masks = True
    shipment = dealt(federation)
    assert isinstance(shipment, Shipment)
    federation.start(at("ann"))
    assert [each.message for each in federation.network.in_flight] == [shipment]
    federation.network.run()
    ann = federation.contributor("ann")
    assert len(ann.ready) == 1
    submitted = intercept(federation, "ann")
    federation.start(at("ann"))
    assert [each.message for each in federation.network.in_flight] == [submitted.upload]
    federation.network.run()
    assert [u.name for u in federation.server.buffer.waiting] == [submitted.ticket.mask]


@pytest.fixture
def other_shares(monkeypatch):
    """As if this version of the program encoded the same seed in another way."""

    def shifted(seed, code, parameters):
        return np.roll(shares_of(seed, code, parameters), 1, axis=0)

    monkeypatch.setattr("basecagg.protocol.contributor.shares_of", shifted)


def test_other_shares_are_not_sealed_with_the_same_keys(federation, other_shares, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("basecagg.protocol.contributor.shares_of", shares_of)
        dealt(federation)
    with pytest.raises(StorageError, match="not those that were dealt"):
        federation.contributor("ann").reconnect()


def test_control_sealed_with_the_same_keys_they_give_each_other_away(federation, ann, monkeypatch):
    shipment = dealt(federation)
    mask = ann._masks[shipment.dealing.masks[0].key]
    store = federation.network.nodes[at("ann")].store
    locks = parse(store.read("locks", shipment.dealing.key), Locks)
    shares = shares_of(mask.seed, ann.agreement.code, ann.agreement.parameters)
    monkeypatch.setattr("basecagg.protocol.contributor.shares_of", lambda *_: np.roll(shares, 1, 0))
    _, again = ann._seal([mask.seed], locks, ann._contexts([mask.name]))
    one, other = (np.frombuffer(s[0][45:-16], "<u4") for s in (shipment.sealed, again))
    assert ((one ^ other) == (shares[0] ^ shares[-1])).all()


def test_what_is_kept_of_a_shipment_is_small(federation, ann):
    shipment = dealt(federation)
    store, key = federation.network.nodes[at("ann")].store, shipment.dealing.key
    assert len(store.read("locks", key)) < 100 * len(shipment.sealed)
    assert not any(
        len(value) > 1000 for kind in ("mask", "dealing") for _, value in store.scan(kind)
    )


def test_receipts_that_were_lost_are_asked_for_again(federation):
    """All parcels arrived, no receipt did: the shipment comes again and is confirmed again."""
    federation.deal("ann")
    for _ in range(2):  # to the server, to the holders
        one_hop(federation)
    federation.network.in_flight.clear()
    assert federation.contributor("ann").ready == []
    federation.network.perform(at("ann"), federation.contributor("ann").reconnect())
    federation.network.run()
    assert len(federation.contributor("ann").ready) == 1


def hidden_by(update, p):
    return hide(update, bytes(32), 0, p, mask_of(bytes(32), b"", b"", p))


def test_an_update_is_hidden_the_same_in_segments(federation, monkeypatch):
    """Segments that end within the pad, and one that is pad alone."""
    p, update = federation.agreement.parameters, fresh_update()
    update[3] = 100.0
    whole, clipped = hidden_by(update, p)
    for size in (1, 5, p.padded_size - 1):
        monkeypatch.setattr(masking, "_SEGMENT", size)
        hidden, count = hidden_by(update, p)
        np.testing.assert_array_equal(hidden, whole)
        assert count == clipped == 1
    update[SIZE - 1] = np.nan
    with pytest.raises(DataError, match=f"1 of {SIZE} indices, first at {SIZE - 1}"):
        hidden_by(update, p)
