"""Several masks in one dealing: one signature, one envelope and one receipt for all of them."""

import numpy as np
import pytest
from msgspec.structs import replace
from parties import at, deal, holder_at, make_federation, one_hop, one_round, submit

from basecagg.errors import (
    KnownMask,
    LocalProtocolError,
    Malformed,
    MaskExpired,
    NotEnrolled,
    QuotaExceeded,
    WrongRecipient,
)
from basecagg.maths.randomness import FieldStream, derive_seed
from basecagg.protocol.effects import sends_of, writes_of
from basecagg.protocol.messages import (
    Closing,
    MaskName,
    Parcel,
    Receipt,
    _known_statement,
    sealing_context,
    signed,
)
from basecagg.protocol.recomputation import recompute
from reproduction.bench import AT_SERVER

MASKS = 3


@pytest.fixture
def federation():
    return make_federation()


def shipped(federation, name="ann", count=MASKS):
    """A dealing, written down but not yet on its way."""
    effects = federation.contributor(name).deal(federation.server.version, count)
    federation.network.nodes[at(name)].store.commit(writes_of(effects))
    (send,) = sends_of(effects)
    return send.message


def parcels(federation, shipment):
    effects = federation.server.receive(shipment.dealing.masks[0].contributor, shipment)
    store_of_server(federation).commit(writes_of(effects))
    return [send.message for send in sends_of(effects)]


def store_of_server(federation):
    return federation.network.nodes[AT_SERVER].store


def test_every_holder_gets_a_share_of_each_mask(federation):
    """In the order of the names; any U of a mask's shares give the mask that its seed expands to."""
    shipment, p = shipped(federation), federation.agreement.parameters
    names, ann = shipment.dealing.masks, federation.contributor("ann")
    opened = []
    for index, sealed in enumerate(shipment.sealed):
        context = sealing_context(federation.agreement.id, names, index)
        secret = federation._secret(federation.agreement.holder_names[index])
        opened.append(np.frombuffer(secret.open(context, sealed), "<u4").reshape(MASKS, -1))
    for place, name in enumerate(names):
        shares = {index: opened[index][place] for index in (1, 2, 4, 6)}
        z = FieldStream(derive_seed(ann._masks[name.key].seed, "mask"), p.modulus)
        assert (federation.agreement.code.decode(shares) == z.draw(p.padded_size)).all()


def test_one_signature_one_parcel_and_one_receipt(federation):
    for name in ("ann", "bob"):
        federation.network.perform(at(name), federation.contributor(name).deal(0, MASKS))
    relayed = one_hop(federation)
    assert len([letter for letter in relayed if isinstance(letter.message, Parcel)]) == 2 * 7
    receipts = [letter.message for letter in one_hop(federation)]
    assert [len(receipt.masks) for receipt in receipts] == [MASKS] * 2 * 7
    federation.network.run()
    assert [len(federation.contributor(name).ready) for name in ("ann", "bob")] == [MASKS, MASKS]


def test_each_mask_serves_one_sum_after_the_other(federation):
    people = ("ann", "bob", "cat")
    deal(federation, *people, count=MASKS)
    for version in range(MASKS):
        assert federation.server.version == version
        one_round(federation, people)
    assert federation.server.version == MASKS
    assert federation.network.refusals == []
    assert not any(federation.contributor(name).ready for name in people)


def test_all_of_them_count_as_dealt_ahead(federation):
    quota = federation.agreement.parameters.mask_quota
    shipped(federation, count=quota - 1)
    with pytest.raises(LocalProtocolError, match="ahead"):
        federation.contributor("ann").deal(0, 2)
    shipped(federation, count=1)


def test_a_restarted_dealer_ships_the_same_bytes(federation):
    federation._keeps_masks = True
    shipment = shipped(federation)
    federation.start(at("ann"))
    (again,) = sends_of(federation.contributor("ann").reconnect())
    assert again.message == shipment


def test_a_restarted_server_knows_who_confirmed(federation):
    """From their receipts. Holder 6 was away; each of the masks says so."""
    away = holder_at(federation.agreement.holder_names[6])
    federation.stop(away)
    deal(federation, "ann", count=MASKS)
    federation.start(AT_SERVER)
    mailroom = federation.server.opening.mailroom
    for name in federation.contributor("ann").ready:
        assert mailroom.holders_of(name) == set(range(6))
    federation.start(away)
    federation.network.run()
    assert all(mailroom.holders_of(n) == set(range(7)) for n in federation.contributor("ann").ready)


def test_a_delivered_shipment_goes_with_the_next_one(federation):
    """Also after a restart, and at the latest with its masks: what lies there is written over once."""
    store = store_of_server(federation)
    deal(federation, "ann")
    (first,) = store.keys("shipment")
    assert federation.server.opening.mailroom.undelivered(6) == []
    federation.start(AT_SERVER)
    deal(federation, "bob")
    (second,) = store.keys("shipment")
    assert second != first
    for name in federation.contributor("bob").ready:
        store.commit(writes_of(federation.server.opening.mailroom.end(name, "refuse")))
    assert store.keys("shipment") == []
    deal(federation, "cat")
    assert len(store.keys("shipment")) == 1


def test_a_shipment_that_somebody_lacks_does_not_give_way(federation):
    store, away = store_of_server(federation), holder_at(federation.agreement.holder_names[6])
    federation.stop(away)
    deal(federation, "ann", "bob")
    assert len(store.keys("shipment")) == 2
    federation.start(AT_SERVER)
    deal(federation, "cat")
    assert len(store.keys("shipment")) == 3


def test_a_holder_that_was_away_forgets_what_is_over_and_keeps_the_rest(federation):
    """The parcel that waits for it has shares of a mask that was opened meanwhile."""
    away = holder_at(federation.agreement.holder_names[6])
    federation.stop(away)
    people = ("ann", "bob", "cat")
    deal(federation, *people, count=2)
    one_round(federation, people)
    assert federation.server.version == 1
    federation.start(away)
    federation.network.run()
    holder = federation.holder(away.name)
    assert sorted(holder.states().values()) == ["closed"] * 3 + ["held"] * 3
    kept = {key for key, _ in federation.network.nodes[away].store.scan("share")}
    assert kept == {name.key for each in people for name in federation.contributor(each).ready}


def test_a_lost_receipt_is_given_again_for_what_is_still_of_use(federation):
    """One of the masks is over by then; the holder keeps its share of the other, and the server must know."""
    lost = holder_at(federation.agreement.holder_names[6])
    people = ("ann", "bob", "cat")
    for name in people:
        federation.network.perform(at(name), federation.contributor(name).deal(0, 2))
    one_hop(federation)
    receipts = [each for each in one_hop(federation) if each.sender == lost.name]
    for receipt in receipts:
        federation.network.in_flight.remove(receipt)
    federation.network.run()
    one_round(federation, people)
    assert len(federation.server.opening.mailroom.undelivered(6)) == 3
    federation.network.perform(AT_SERVER, federation.server.reconnect(lost.name))
    federation.network.run()
    assert federation.server.opening.mailroom.undelivered(6) == []
    assert [refusal for address, refusal in federation.network.refusals if address == lost] == []


@pytest.mark.parametrize("count", [-1, 0, 257])
def test_no_mask_or_far_too_many(federation, count):
    with pytest.raises(LocalProtocolError, match="at once"):
        federation.contributor("ann").deal(0, count)


def test_parcels_are_kept_until_the_last_mask_is_over(federation):
    away = holder_at(federation.agreement.holder_names[6])
    federation.stop(away)
    people = ("ann", "bob", "cat")
    deal(federation, *people, count=2)
    for undelivered in (3, 0):
        one_round(federation, people)
        assert len(federation.server.opening.mailroom.undelivered(6)) == undelivered
    assert store_of_server(federation).keys("relay") == []


def test_the_parts_of_an_outdated_version_go_with_the_next_uploads(federation):
    """One upload for each, so nobody waits for that, and a restart in between loses nothing of it."""
    store, people = store_of_server(federation), ("ann", "bob", "cat")
    for _ in range(2):
        one_round(federation, people)
    assert [int(key) for key in store.keys("made")] == [1, 2]
    federation.start(AT_SERVER)
    submit(federation, people[0])
    federation.network.run()
    assert len(store.keys("upload")) == 2 * len(people)
    federation.start(AT_SERVER)
    one_round(federation, people[1:])
    assert [int(key) for key in store.keys("made")] == [2, 3]
    assert len(store.keys("upload")) == 2 * len(people)
    assert {int(key.partition("/")[0]) for key in store.keys("part")} == {2, 3}


def test_whoever_has_the_word_on_a_version_can_make_it_again(federation):
    """Also in between, when a version is outdated and its parts still wait to be overwritten."""
    people = ("ann", "bob", "cat")
    for newest in range(1, 5):
        one_round(federation, people)
        recovery = federation.server.opening
        told = {version for version in range(newest + 2) if recovery.kept.release(version)}
        made = {version for version in range(newest + 2) if recovery.kept.parts(version)}
        assert told == made >= {newest}
        for version in made:
            recompute(federation.agreement, recovery.kept.parts(version))
    models = {int(key) for key in store_of_server(federation).keys("model")}
    assert models == {newest, *(version - 1 for version in made)}


def test_a_server_that_keeps_no_parts_keeps_one_model():
    federation = make_federation(keep=0)
    for _ in range(3):
        one_round(federation, ("ann", "bob", "cat"))
    assert [int(key) for key in store_of_server(federation).keys("model")] == [3]
    assert store_of_server(federation).keys("upload") == []
    assert federation.server.opening.kept.parts(3) is None


def resigned(federation, shipment, **changes):
    dealing = signed(replace(shipment.dealing, **changes), federation.identity("ann"))
    return replace(shipment, dealing=dealing)


def both_refuse(federation, true, forged, error):
    """The server when it is shipped, and a holder to whom it comes all the same."""
    with pytest.raises(error):
        federation.server.receive("ann", forged)
    parcel = parcels(federation, true)[0]
    with pytest.raises(error):
        federation.holder("user-0").receive(replace(parcel, dealing=forged.dealing))


def test_a_name_twice_in_one_dealing(federation):
    shipment = shipped(federation, count=2)
    first = shipment.dealing.masks[0]
    twice = resigned(federation, shipment, masks=(first, first))
    with pytest.raises(Malformed):
        federation.server.receive("ann", twice)


def test_a_mask_of_somebody_else_in_ones_dealing(federation):
    """Else the dealer could use up the other's quota, or take its names."""
    shipment = shipped(federation, count=2)
    first, second = shipment.dealing.masks
    stolen = resigned(federation, shipment, masks=(first, replace(second, contributor="bob")))
    both_refuse(federation, shipment, stolen, NotEnrolled)


def test_a_known_name_among_new_ones(federation):
    """Also with the very same envelopes: a holder would confirm a mask that it does not keep."""
    shipment = shipped(federation, count=2)
    parcel = parcels(federation, shipment)[0]
    holder = federation.holder("user-0")
    holder.receive(parcel)
    first = shipment.dealing.masks[0]
    other = resigned(federation, shipment, masks=(first, replace(first, serial=bytes(16))))
    with pytest.raises(KnownMask):
        federation.server.receive("ann", other)
    with pytest.raises(KnownMask):
        holder.receive(replace(parcel, dealing=other.dealing))
    (send,) = holder.acknowledge()
    assert send.message.masks == shipment.dealing.masks


def test_the_same_names_in_another_order_do_not_open(federation):
    """The order says which share is whose."""
    shipment = shipped(federation, count=2)
    parcel = parcels(federation, shipment)[0]
    turned = resigned(federation, shipment, masks=shipment.dealing.masks[::-1])
    with pytest.raises(WrongRecipient, match="does not open"):
        federation.holder("user-0").receive(replace(parcel, dealing=turned.dealing))


def test_more_masks_than_a_dealer_may_have(federation):
    shipment = shipped(federation, count=2)
    most = federation.agreement.masks_per_contributor
    names = tuple(MaskName("ann", bytes([n]) * 16) for n in range(most + 1))
    both_refuse(federation, shipment, resigned(federation, shipment, masks=names), QuotaExceeded)


def test_the_servers_quota_counts_all_masks_of_all_dealings(federation):
    """Ann's machine would not deal so many ahead; another program of hers might."""
    mailroom, most = federation.server.opening.mailroom, federation.agreement.masks_per_contributor
    assert most == 8
    shipment = shipped(federation, count=1)
    for number in range(2):
        mailroom.relay("ann", for_others(federation, shipment, number, 3), 0)
    with pytest.raises(QuotaExceeded, match="6 masks"):
        mailroom.relay("ann", for_others(federation, shipment, 2, 3), 0)
    mailroom.relay("ann", for_others(federation, shipment, 3, 2), 0)


def for_others(federation, shipment, number, count):
    """The same envelopes for so many masks of other names."""
    names = tuple(MaskName("ann", bytes([number, place]) * 8) for place in range(count))
    return resigned(federation, shipment, masks=names)


def test_what_expires_leaves_nothing(federation):
    """Neither parcels nor a place in the quota, whether it was used or not."""
    mailroom, store = federation.server.opening.mailroom, store_of_server(federation)
    shipment = shipped(federation, count=3)
    store.commit(writes_of(mailroom.relay("ann", shipment, 0)))
    store.commit(writes_of(mailroom.end(shipment.dealing.masks[0], "refuse")))
    store.commit(writes_of(mailroom._confirmations.add(5, [shipment.dealing.key])))
    assert len(store.keys("shipment")) == 1
    store.commit(writes_of(mailroom.expire(shipment.dealing.expires + 1)))
    kinds = ("relay", "relayed", "shipment", "kept")
    assert [kind for kind in kinds if store.keys(kind)] == []
    assert not +mailroom._live
    assert not mailroom._live_of_dealing
    assert not mailroom._confirmations._holders
    assert not mailroom._confirmations._still_needed


def test_a_receipt_that_comes_when_all_is_over_is_passed_over(federation):
    mailroom, shipment = federation.server.opening.mailroom, shipped(federation, count=2)
    mailroom.relay("ann", shipment, 0)
    for name in shipment.dealing.masks:
        mailroom.end(name, "refuse")
    receipt = Receipt(federation.agreement.id, 0, shipment.dealing.masks)
    assert mailroom.confirm("user-0", signed(receipt, federation.identity("user-0"))) == []


def test_envelopes_of_several_large_shares():
    """Larger than one share and all that sealing may add."""
    federation = make_federation(model_size=6000, masks="long")
    assert 4 * federation.agreement.parameters.share_size > 2048
    deal(federation, "ann", count=MASKS)
    assert len(federation.contributor("ann").ready) == MASKS


def test_holders_that_confirm_only_one_of_the_masks(federation):
    """All masks are ready together, whatever is said of them: no lock is left when the first one is used."""
    shipment, ann = shipped(federation, count=2), federation.contributor("ann")
    store, (_, second) = federation.network.nodes[at("ann")].store, shipment.dealing.masks
    for index, name in enumerate(federation.agreement.holder_names):
        assert bool(store.keys("locks")) == (not ann.ready)
        lie = Receipt(federation.agreement.id, index, (second,))
        effects = ann.receive(signed(lie, federation.identity(name)))
        store.commit(writes_of(effects))
        assert len(ann.ready) in {0, len(shipment.dealing.masks)}
    assert sorted(ann.ready) == sorted(shipment.dealing.masks)
    assert store.keys("locks") == store.keys("dealing") == []
    federation._keeps_masks = True
    federation.start(at("ann"))
    assert set(federation.contributor("ann").states().values()) == {"ready"}


def test_undelivered_masks_expire_with_their_locks(federation):
    shipped(federation)
    store = federation.network.nodes[at("ann")].store
    store.commit(writes_of(federation.contributor("ann").expire(1000)))
    assert [kind for kind in ("mask", "dealing", "locks") if store.keys(kind)] == []


@pytest.mark.parametrize("change", ["order", "fewer"])
def test_the_same_envelopes_under_another_dealing(federation, change):
    """Holders would keep something else than the server believes."""
    shipment = shipped(federation, count=2)
    parcels(federation, shipment)
    names = shipment.dealing.masks
    other = {
        "order": {"masks": names[::-1]},
        "fewer": {"masks": names[1:]},
    }
    with pytest.raises(KnownMask):
        federation.server.receive("ann", resigned(federation, shipment, **other[change]))


def test_masks_of_one_dealing_expire_together(federation):
    """Their shares lie in one envelope, and what is deleted of one is deleted of all."""
    shipment = shipped(federation, count=2)
    first, second = shipment.dealing.masks
    longer = replace(second, expires=second.expires + 1)
    forged = resigned(federation, shipment, masks=(first, longer))
    both_refuse(federation, shipment, forged, Malformed)


def test_a_dealing_of_far_too_many_masks_is_not_even_hashed(federation):
    """What is hashed is remembered, and the dealer chooses how large it is."""
    shipment = shipped(federation, count=2)
    names = tuple(MaskName("ann", bytes([n]) * 16) for n in range(250))
    many = resigned(federation, shipment, masks=names)
    before = _known_statement.cache_info().misses
    with pytest.raises(QuotaExceeded):
        federation.server.receive("ann", many)
    assert _known_statement.cache_info().misses == before


def test_what_is_over_makes_room_for_the_parcels_of_a_holder_that_returns(federation):
    away, people = holder_at(federation.agreement.holder_names[6]), ("ann", "bob", "cat")
    most = federation.agreement.masks_per_contributor
    federation.network.deliver = without_closings(federation.network, away)
    for _ in range(most):
        one_round(federation, people)
    del federation.network.deliver
    holder = federation.holder(away.name)
    assert holder._live["ann"] == most
    federation.stop(away)
    deal(federation, "ann", count=2)
    federation.start(away)
    federation.network.run()
    assert [refused for refused in federation.network.refusals if refused[0] == away] == []
    assert federation.server.opening.mailroom.undelivered(6) == []


def without_closings(network, away):
    """It hears of new masks only: neither what is asked nor what is over."""
    deliver = network.deliver

    def some(address, mail):
        kept = [letter for letter in mail if address != away or isinstance(letter.message, Parcel)]
        deliver(address, kept)

    return some


def test_closing_one_mask_leaves_the_others(federation):
    deal(federation, "ann", count=MASKS)
    first, *others = federation.contributor("ann").ready
    closing = Closing(federation.agreement.id, 0, (first,), "burned")
    holder = federation.holder("user-0")
    holder.receive(signed(closing, federation.identity("server")))
    assert holder.states() == {first.key: "closed"} | {name.key: "held" for name in others}


def test_a_name_does_not_come_back(federation):
    """It says itself that it has expired, so server and holders may forget it."""
    federation = make_federation(mask_lifetime=1, max_staleness=0)
    federation.contributor("ann")._entropy = bytes  # the same serial number each time
    old = shipped(federation, count=1)
    late = parcels(federation, old)[0]
    for _ in range(3):
        one_round(federation, ("bob", "cat", "dan"))
    assert federation.server.version > old.dealing.expires
    with pytest.raises(MaskExpired):
        federation.server.receive("ann", old)
    with pytest.raises(MaskExpired):
        federation.holder("user-0").receive(late)
    fresh = shipped(federation, count=1)
    assert fresh.dealing.masks[0].serial == old.dealing.masks[0].serial
    federation.server.receive("ann", fresh)
