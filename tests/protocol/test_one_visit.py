"""Masks from keys are dealt with their updates: a contributor comes once, with one message, and may be gone."""

from __future__ import annotations

import msgspec
import pytest
from harness import World, once, small
from parties import (
    USERS,
    ask,
    at,
    deal,
    fresh_update,
    intercept,
    make_federation,
    one_hop,
    one_round,
    released,
    request_for,
    submit,
)

from basecagg.errors import (
    KnownMask,
    LocalProtocolError,
    Malformed,
    MaskTaken,
    Refused,
    WrongVersion,
)
from basecagg.protocol import merkle
from basecagg.protocol.buffer import MAX_WAITING_BUFFERS
from basecagg.protocol.effects import Persist, Send, Uploaded
from basecagg.protocol.messages import (
    Closing,
    Contribution,
    Parcel,
    Receipt,
    Refusal,
    Upload,
    Verdict,
    content_hash,
    digest_of,
    encode,
    signed,
)
from basecagg.protocol.server import Server
from basecagg.protocol.stored import OwnMask, parse
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER, Address, Letter

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])
PATIENCE, LONG = 1.0, 20.0


def keyed(**changes):
    return make_federation(masks="keys", **changes)


def verdicts(effects):
    """What the server says about updates."""
    sends = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message.outcome for message in sends if isinstance(message, Verdict)]


def told(federation):
    """The verdicts of everything that is sent from now on, by contributor."""
    seen = []
    federation.network.observers.append(
        lambda letter: (
            seen.append((letter.to.name, letter.message.outcome))
            if isinstance(letter.message, Verdict)
            else None
        )
    )
    return seen


def take_away(federation, *names):
    for name in names:
        federation.stop(Address("holder", name))


def tick(federation, now):
    federation.network.perform(AT_SERVER, federation.server.tick(now, PATIENCE))
    federation.network.run()


# --- one message, one transaction -----------------------------------------------------------------


@MODES
def test_one_message_brings_everything_and_the_contributor_may_be_gone(consistency):
    """Each deals, seals and uploads in one message and goes offline; the sum is opened without them."""
    federation = keyed(consistency=consistency)
    sent, submitted = [], []
    federation.network.observers.append(
        lambda letter: sent.append(letter) if letter.to == AT_SERVER else None
    )
    for name in ("ann", "bob", "cat"):
        submitted.append(submit(federation, name))
        assert len(federation.network.in_flight) == len(submitted)
        federation.stop(at(name))
    mine = [letter.message for letter in sent if letter.sender in ("ann", "bob", "cat")]
    assert list(map(type, mine)) == [Contribution] * 3
    federation.network.run()
    (news,) = released(federation)
    assert set(news.members) == {each.ticket.mask for each in submitted}


def test_everything_is_written_in_one_transaction_before_it_is_sent():
    federation = keyed()
    effects = federation.contributor("ann").submit(fresh_update(), 0, federation.server.head, 0)
    *writes, send, uploaded = effects
    assert (type(send), type(uploaded)) == (Send, Uploaded)
    assert all(isinstance(effect, Persist) for effect in writes)
    assert {effect.kind for effect in writes if effect.irreversible} == {
        "base",
        "mask",
        "contribution",
    }


def test_neither_seed_nor_locks_nor_shares_touch_the_store():
    """What the store keeps of an update is the message alone: whoever has the store cannot open it."""
    federation, drawn = keyed(), []
    contributor = federation.contributor("ann")
    draw = contributor._entropy
    contributor._entropy = lambda count: drawn.append(draw(count)) or drawn[-1]
    effects = contributor.submit(fresh_update(), 0, federation.server.head, 0)
    federation.network.perform(at("ann"), effects)
    serial, seed, errors = drawn
    assert (len(serial), len(seed), len(errors)) == (16, 32, 32)
    store = federation.network.nodes[at("ann")].store
    snapshot = repr(store.snapshot())
    assert repr(serial)[2:-1] in snapshot
    assert repr(seed)[2:-1] not in snapshot
    assert repr(errors)[2:-1] not in snapshot
    assert not list(store.keys("locks"))
    assert not list(store.keys("dealing"))
    (mask,) = [parse(value, OwnMask) for _, value in store.scan("mask")]
    assert mask.seed == b""


def test_control_a_mask_that_was_dealt_ahead_has_its_seed_in_the_store():
    federation = make_federation()
    deal(federation, "ann")
    store = federation.network.nodes[at("ann")].store
    (mask,) = [parse(value, OwnMask) for _, value in store.scan("mask")]
    assert len(mask.seed) == 32


def test_a_restart_sends_the_same_bytes():
    federation = keyed()
    first = submit(federation, "ann").upload
    federation.network.in_flight.clear()
    federation.start(at("ann"))
    (again,) = [each.message for each in federation.network.in_flight]
    assert encode(again) == encode(first)


def test_no_mask_is_dealt_ahead():
    federation = keyed()
    ann = federation.contributor("ann")
    assert ann.is_ready
    assert ann.deal_ahead(0, 3) == []
    with pytest.raises(LocalProtocolError, match="with its update"):
        ann.deal(0)


# --- the other form has no place here, nor this one there -------------------------------------------


def test_dealings_without_an_update_are_refused_where_contributors_come_once():
    federation = keyed()
    contribution = submit(federation, "ann").upload
    federation.network.in_flight.clear()
    for message in (contribution.shipment, Upload(contribution.ticket, contribution.words)):
        with pytest.raises(Malformed):
            federation.server.receive("ann", message)
    bare = signed(
        msgspec.structs.replace(contribution.dealing, ticket=None), federation.identity("ann")
    )
    with pytest.raises(Malformed, match="with their updates"):
        federation.agreement.require_dealt(bare)


def test_an_update_that_comes_with_its_mask_is_refused_where_masks_are_dealt_ahead():
    federation = make_federation()
    shipment, ticket = federation.contributor("ann").deal(0)[-1].message, bytes(32)
    dealing = msgspec.structs.replace(shipment.dealing, ticket=ticket)
    with pytest.raises(Malformed, match="or never so"):
        federation.agreement.require_dealt(signed(dealing, federation.identity("ann")))


def test_only_one_mask_comes_with_an_update():
    federation = keyed()
    dealing = submit(federation, "ann").upload.dealing
    (mask,) = dealing.masks
    two = (mask, msgspec.structs.replace(mask, serial=bytes(16)))
    dealing = signed(msgspec.structs.replace(dealing, masks=two), federation.identity("ann"))
    with pytest.raises(Malformed, match="2 masks are dealt with one update"):
        federation.agreement.require_dealt(dealing)


# --- parked, admitted, opened -----------------------------------------------------------------------


def test_an_update_is_parked_until_enough_holders_confirm():
    """holders_needed = 5 of 7: with four it is parked, with the fifth admitted."""
    federation = keyed()
    take_away(federation, *USERS[4:])
    seen = told(federation)
    name = submit(federation, "ann").ticket.mask
    federation.network.run()
    server = federation.server
    assert (seen, server.buffer.waiting) == ([("ann", "parked")], [])
    assert [update.name for update in server.buffer.parked] == [name]
    federation.start(Address("holder", USERS[4]))
    federation.network.run()
    assert seen == [("ann", "parked"), ("ann", "admitted")]
    assert [update.name for update in server.buffer.waiting] == [name]
    assert server.buffer.parked == []


def test_parked_updates_survive_a_restart_of_the_server():
    federation = keyed()
    take_away(federation, *USERS[4:])
    names = [submit(federation, name).ticket.mask for name in ("ann", "bob")]
    federation.network.run()
    federation.start(AT_SERVER)
    assert [update.name for update in federation.server.buffer.parked] == names
    federation.start(Address("holder", USERS[4]))
    federation.network.run()
    assert [update.name for update in federation.server.buffer.waiting] == names


def test_receipts_are_not_relayed_to_those_who_do_not_wait():
    for federation, count in ((keyed(), 0), (make_federation(), 7)):
        seen = []
        federation.network.observers.append(
            lambda letter, seen=seen: (
                seen.append(letter)
                if isinstance(letter.message, Receipt) and letter.to == at("ann")
                else None
            )
        )
        submit(federation, "ann")
        federation.network.run()
        assert len(seen) == count


def test_holders_that_confirm_after_the_sum_was_asked_for_are_asked_too():
    """The sum is asked for as soon as five of seven keep shares. If one of the five vanishes, others answer."""
    federation = keyed()
    take_away(federation, *USERS[5:])
    for name in ("ann", "bob", "cat"):
        submit(federation, name)
    while not federation.server.is_opening:
        one_hop(federation)
    take_away(federation, USERS[0])
    federation.network.run()
    assert federation.server.version == 0
    for name in USERS[5:]:
        federation.start(Address("holder", name))
    federation.network.run()
    assert federation.server.version == 1


# --- the dealing is for one update ------------------------------------------------------------------


def other_update(federation, submitted):
    """Another ticket and other bytes under the same mask, signed by its dealer."""
    words = bytes(len(submitted.upload.words))
    ticket = msgspec.structs.replace(submitted.ticket, upload_hash=content_hash(words))
    return signed(ticket, federation.identity("ann")), words


def test_a_mask_hides_no_other_update_than_the_one_it_came_with():
    """The server refuses it, and so does every holder that a cheating server asks."""
    federation = keyed()
    members = [submit(federation, name) for name in ("ann", "bob", "cat")]
    ticket, words = other_update(federation, members[0])
    changed = msgspec.structs.replace(members[0].upload, ticket=ticket, words=words)
    with pytest.raises(MaskTaken, match="with another update"):
        federation.server.receive("ann", changed)
    take_away(federation, *USERS[4:])  # nothing is opened yet
    federation.network.run()
    request = request_for(federation, [ticket, *members[1:]])
    (refused,) = ask(federation, USERS[0], request)
    assert isinstance(refused, Refusal)
    assert refused.code == "MaskTaken"
    assert len(ask(federation, USERS[1], request_for(federation, members, attempt=0))) == 1


def test_control_without_the_ticket_in_the_dealing_another_update_is_taken(monkeypatch):
    monkeypatch.setattr(
        "basecagg.protocol.epoch.Agreement.require_promised", lambda *arguments: None
    )
    federation = keyed()
    members = [submit(federation, name) for name in ("ann", "bob", "cat")]
    ticket, _ = other_update(federation, members[0])
    take_away(federation, *USERS[4:])
    federation.network.run()
    (endorsed,) = ask(federation, USERS[0], request_for(federation, [ticket, *members[1:]]))
    assert type(endorsed).__name__ == "Endorsement"


def redealt(federation, submitted, **of_mask):
    """The same update under a mask of another name, dealt and signed as it should be."""
    upload, dealer = submitted.upload, federation.identity("ann")
    mask = msgspec.structs.replace(submitted.ticket.mask, **of_mask)
    ticket = signed(msgspec.structs.replace(upload.ticket, mask=mask), dealer)
    dealing = msgspec.structs.replace(upload.dealing, masks=(mask,), ticket=digest_of(ticket))
    return msgspec.structs.replace(upload, dealing=signed(dealing, dealer), ticket=ticket)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_mask_expires_with_its_update(off):
    """At base + τ_max, no earlier and no later: the server refuses it, and a holder that is asked for it."""
    federation = keyed()
    submitted = submit(federation, "ann")
    right = submitted.ticket.mask.expires
    assert right == federation.agreement.parameters.max_staleness
    wrong = redealt(federation, submitted, expires=right + off)
    with pytest.raises(
        WrongVersion, match=f"expire at version {right + off}, its update at {right}"
    ):
        federation.server.receive("ann", wrong)


def test_a_holder_keeps_the_mask_but_not_to_that_expiry():
    federation = keyed()
    members = [submit(federation, name) for name in ("bob", "cat")]
    wrong = redealt(federation, submit(federation, "ann"), expires=9)
    federation.network.in_flight.pop()
    take_away(federation, *USERS[4:])
    federation.network.run()
    holder, index = federation.holder(USERS[0]), 0
    sealed = wrong.sealed[index]
    path = merkle.proof(merkle.tree(wrong.leaves), index, wrong.dealing.root)
    with pytest.raises(Refused):  # sealed under the other name, it does not open
        holder.receive(Parcel(wrong.dealing, index, path, sealed))
    holder._opener = type("Any", (), {"open": lambda self, context, sealed: bytes(684 * 3)})()
    holder.receive(Parcel(wrong.dealing, index, path, sealed))
    request = request_for(federation, [wrong.ticket, *members])
    with pytest.raises(WrongVersion, match="expire at version 9, its update at 10"):
        holder.receive(request)


# --- repeated, refused --------------------------------------------------------------------------------


def say_again(federation, contribution):
    """What the server answers to the same bytes, and who gets a parcel again."""
    effects = federation.server.receive("ann", contribution)
    federation.network.perform(AT_SERVER, effects)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    parcels = [send.recipient for send in sends if isinstance(send.message, Parcel)]
    federation.network.in_flight.clear()
    return verdicts(effects), tuple(parcels)


def test_the_same_contribution_again_is_told_what_became_of_it():
    federation = keyed()
    contribution = submit(federation, "ann").upload
    federation.network.in_flight.clear()
    assert say_again(federation, contribution) == (["parked"], USERS)
    assert say_again(federation, contribution) == (["parked"], USERS)
    take_away(federation, *USERS[4:])
    federation.network.perform(at("ann"), federation.contributor("ann").reconnect())
    federation.network.run()
    assert say_again(federation, contribution) == (["parked"], USERS[4:])
    bring_back(federation)
    assert say_again(federation, contribution) == (["admitted"], ())
    one_round(federation, ("bob", "cat"))
    assert say_again(federation, contribution) == (["opened"], ())


def test_a_name_that_is_known_is_not_dealt_again():
    federation = keyed()
    submitted = submit(federation, "ann")
    federation.network.run()
    contribution = submitted.upload
    ticket, words = other_update(federation, submitted)
    dealing = msgspec.structs.replace(contribution.dealing, ticket=digest_of(ticket))
    dealing = signed(dealing, federation.identity("ann"))
    other = msgspec.structs.replace(contribution, dealing=dealing, ticket=ticket, words=words)
    with pytest.raises(KnownMask, match="a name is used once"):
        federation.server.receive("ann", other)


def refused_at_the_door(federation):
    """Ann's second update while her first waits: refused before a holder hears of it."""
    first = submit(federation, "ann").upload
    federation.network.run()
    ann = federation.contributor("ann")
    ann._base.burned |= ann._base.uploads  # as if the first had been burned
    second = submit(federation, "ann").upload
    federation.network.in_flight.clear()
    return first, second, federation.server.receive("ann", second)


def test_what_is_refused_at_the_door_is_over_for_ever_and_the_contributor_has_it_signed():
    federation = keyed()
    _, second, effects = refused_at_the_door(federation)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert {send.recipient for send in sends} == {"ann"}
    closing, verdict = (send.message for send in sends)
    assert isinstance(closing, Closing)
    assert (closing.outcome, closing.masks) == ("burned", (second.ticket.mask,))
    assert verdict.outcome == "refused"
    federation.network.perform(AT_SERVER, effects)
    federation.network.run()
    assert federation.contributor("ann").may_train_from(0)
    federation.start(AT_SERVER)
    again = federation.server.receive("ann", second)
    assert verdicts(again) == ["refused"]
    assert not [effect for effect in again if isinstance(effect, Persist)]


def test_what_is_refused_at_the_door_does_not_come_again_when_there_is_room():
    """Its contributor has it signed that it is over, and may have masked the same update anew."""
    federation = keyed(consistency="honest-server")
    _, second, effects = refused_at_the_door(federation)
    federation.network.perform(AT_SERVER, effects)
    one_round(federation, ("bob", "cat"))
    assert (federation.server.version, federation.server.buffer.stored) == (1, [])
    again = federation.server.receive("ann", second)
    assert verdicts(again) == ["refused"]
    assert federation.server.buffer.stored == []


def test_names_of_refused_updates_are_bounded(monkeypatch):
    monkeypatch.setattr("basecagg.protocol.mailroom._NAMES", 0)
    federation = keyed()
    with pytest.raises(Refused, match="have come and gone"):
        federation.server.receive("ann", submit(federation, "ann").upload)
    monkeypatch.setattr("basecagg.protocol.mailroom._NAMES", 1 / 100)  # of mask_lifetime: one name
    _, _, effects = refused_at_the_door(keyed())
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, Closing)]


# --- parked for too long --------------------------------------------------------------------------------


def parked(federation, *names):
    take_away(federation, *USERS[4:])
    sent = [submit(federation, name) for name in names]
    federation.network.run()
    return sent


def bring_back(federation):
    for name in USERS[4:]:
        federation.start(Address("holder", name))
    federation.network.run()


def test_what_is_parked_for_too_long_is_returned_and_the_same_bytes_come_again():
    """It is no new update: its mask, its name and its signed ticket are the same, and it is opened at last."""
    federation = keyed()
    seen = told(federation)
    sent = parked(federation, "ann", "bob", "cat")
    assert federation.server.waits_for_time
    tick(federation, 100.0)
    tick(federation, 100.0 + LONG)
    assert [outcome for _, outcome in seen] == ["parked"] * 3
    before = len(seen)
    tick(federation, 100.1 + LONG)
    # The contributors are there: they send the same bytes at once.
    assert seen[before : before + 3] == [(name, "returned") for name in ("ann", "bob", "cat")]
    assert [outcome for _, outcome in seen[before + 3 :]] == ["parked"] * 3
    bring_back(federation)
    (news,) = released(federation)
    assert set(news.members) == {each.ticket.mask for each in sent}


def test_holders_keep_their_shares_of_what_was_returned():
    """A holder that reconnects hears what is over. A returned update is not, and its sum opens later."""
    federation = keyed()
    parked(federation, "ann", "bob", "cat")
    for name in ("ann", "bob", "cat"):
        federation.stop(at(name))
    tick(federation, 100.0)
    tick(federation, 100.1 + LONG)
    closings = []
    federation.network.observers.append(
        lambda letter: closings.append(letter) if isinstance(letter.message, Closing) else None
    )
    bring_back(federation)
    assert (closings, federation.server.version) == ([], 0)
    for name in ("ann", "bob", "cat"):
        federation.start(at(name))
    federation.network.run()
    assert federation.server.version == 1


def test_a_server_believes_no_envelopes_of_an_update_that_comes_again():
    """Ticket and words are those that are parked; the envelopes beside them may be anything."""
    federation = keyed()
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    parked(federation, "ann")
    first = next(message for message in seen if isinstance(message, Contribution))
    for sealed in (first.sealed[:2], (b"x",) * len(first.sealed)):
        again = msgspec.structs.replace(first, sealed=sealed)
        parcels = [
            effect.message
            for effect in federation.server.receive("ann", again)
            if isinstance(effect, Send) and isinstance(effect.message, Parcel)
        ]
        assert [parcel.sealed for parcel in parcels] == list(first.sealed[4:])


def test_what_was_returned_takes_no_room_until_it_comes_again():
    federation = keyed()
    seen = told(federation)
    (sent,) = parked(federation, "ann")
    federation.stop(at("ann"))
    tick(federation, 100.0)
    tick(federation, 200.0)
    server = federation.server
    assert seen[-1] == ("ann", "returned")
    assert (server.buffer.stored, server._admitted) == ([], {})
    assert not server.waits_for_time
    store = federation.network.nodes[AT_SERVER].store
    assert not list(store.keys("upload"))
    assert not list(store.keys("shipment"))
    assert not list(store.keys("buffered"))
    federation.start(AT_SERVER)
    bring_back(federation)
    assert federation.server.buffer.stored == []
    federation.start(at("ann"))  # it comes back: with the same bytes
    federation.network.run()
    assert [update.name for update in federation.server.buffer.waiting] == [sent.ticket.mask]


def test_the_time_begins_anew_after_a_restart_and_ends_all_the_same():
    federation = keyed()
    parked(federation, "ann")
    federation.stop(at("ann"))
    tick(federation, 100.0)
    federation.start(AT_SERVER)
    tick(federation, 0.0)  # another process has another clock
    tick(federation, LONG)
    assert federation.server.buffer.parked
    tick(federation, LONG + 1)
    assert not federation.server.buffer.parked


def test_no_deadlock_when_all_are_parked():
    """8·K updates are parked and no more are let in; the clock makes room, and training goes on."""
    federation = keyed(mask_quota=1)
    most = MAX_WAITING_BUFFERS * federation.agreement.parameters.buffer_size
    crowd = [f"phone-{index}" for index in range(most)]
    parked(federation, *crowd)
    for name in crowd:  # they never come back
        federation.stop(at(name))
    seen = told(federation)
    submit(federation, "ann")
    federation.network.run()
    assert seen == [("ann", "refused")]
    assert len(federation.server.buffer.parked) == most
    tick(federation, 0.0)
    tick(federation, LONG + 1)
    assert federation.server.buffer.stored == []
    bring_back(federation)
    one_round(federation)
    assert federation.server.version == 1


def test_control_without_the_clock_all_stay_parked_for_ever(monkeypatch):
    monkeypatch.setattr(Server, "_return_parked", lambda server, patience: [])
    federation = keyed()
    parked(federation, "ann")
    for now in (0.0, 100.0, 10_000.0):
        tick(federation, now)
    assert len(federation.server.buffer.parked) == 1


def test_a_contributor_has_one_update_parked_or_waiting():
    federation = keyed()
    take_away(federation, *USERS[4:])
    refused_at_the_door(federation)
    assert [u.name.contributor for u in federation.server.buffer.stored] == ["ann"]


def test_what_is_too_old_when_it_is_confirmed_is_burned():
    """The holders of its shares are back when the model has moved on too far."""
    federation = keyed(max_staleness=1, max_dropouts=0, recovery_threshold=4)
    seen = told(federation)
    submit(federation, "ann")
    letters = list(federation.network.in_flight)
    federation.network.in_flight.clear()
    federation.network.perform(AT_SERVER, federation.server.receive("ann", letters[0].message))
    parcels = [each for each in federation.network.in_flight if isinstance(each.message, Parcel)]
    federation.network.in_flight.clear()
    for _ in range(2):
        one_round(federation, ("bob", "cat", "dan"))
    assert federation.server.version == 2
    assert ("ann", "burned") in seen
    for parcel in parcels:
        federation.network.deliver(parcel.to, [parcel])
    federation.network.run()
    assert federation.server.buffer.stored == []


def test_returned_where_masks_are_dealt_ahead_says_nothing():
    """A cheating server cannot crash a contributor with the word."""
    federation = make_federation()
    submitted = submit(federation, "ann")
    verdict = Verdict(federation.agreement.id, submitted.ticket.mask, "returned")
    assert federation.contributor("ann").receive(verdict) == []


# --- a cheating server gains nothing by parking -------------------------------------------------------


def test_a_returned_update_is_in_one_sum_at_most():
    """A server that opens a sum, says that the update was returned, and asks for it again, is refused."""
    federation = keyed()
    members = [intercept(federation, name) for name in ("ann", "bob", "cat")]
    for member in members:
        federation.network.in_flight.append(
            Letter(member.ticket.mask.contributor, AT_SERVER, member.upload)
        )
    federation.network.run()
    assert federation.server.version == 1
    previous = federation.server.opening._past.opened
    request = request_for(federation, members, 1, previous)
    codes = {reply.code for name in USERS for reply in ask(federation, name, request)}
    assert codes <= {"MaskTaken", "VersionTaken", "UnknownMask"}


# --- the harness: what crashes, old copies and a hostile world may not break --------------------------


def from_an_old_copy(parameters):
    """A contributor submits an update; then once more, from a copy of its store from before. Nobody notices."""
    world, address = World(parameters, keeps_masks=True), Address("contributor", "user-0")
    world.contributor(address.name)
    if not parameters.one_visit:
        world.deal(address.name)
        world.network.run()
    copy = MemoryStore(world.stores.stores[address].snapshot())
    world.submit(address.name, 0)
    world.stores.stores[address] = copy
    world.restart(address)
    world.submit(address.name, 0)
    return world.judge


def test_an_old_copy_of_a_contributor_draws_a_fresh_mask():
    judge = from_an_old_copy(once())
    assert [len(sent) for sent in judge.uploads.values()] == [1, 1]


def test_control_an_old_copy_uses_a_mask_again_that_was_dealt_ahead():
    with pytest.raises(AssertionError, match="two different uploads"):
        from_an_old_copy(small())
