"""A second epoch of the same people has another id: no share, ticket, vote or store of the first counts."""

import msgspec
import pytest
from parties import (
    USERS,
    ask,
    at,
    certify,
    deal,
    holder_at,
    intercept,
    make_federation,
    one_round,
    request_for,
)

from basecagg.channels.identity import Ed25519Verifier, enrol
from basecagg.errors import NotEnrolled, StorageError, UnknownMask, WrongEpoch, WrongRecipient
from basecagg.protocol import merkle
from basecagg.protocol.epoch import accept
from basecagg.protocol.messages import (
    Closing,
    Dealing,
    Parcel,
    Receipt,
    Shipment,
    Ticket,
    Upload,
    Verdict,
    signed,
)
from reproduction.bench import Federation


class NextEpoch(Federation):
    """The same people, keys, server and parameters, under the next number."""

    def __init__(self, earlier):
        self._earlier = earlier
        super().__init__(earlier.agreement.parameters, earlier.server.model)

    def identity(self, name):
        return self._earlier.identity(name)

    def _secret(self, name):
        return self._earlier._secret(name)

    def _agree(self, *_, **__):
        renumbered = msgspec.structs.replace(self._earlier.agreement.epoch, number=2)
        operator = self.identity("operator")
        return accept(signed(renumbered, operator), operator.public_key, Ed25519Verifier())


@pytest.fixture
def first():
    return make_federation()


@pytest.fixture
def second(first):
    return NextEpoch(first)


def caught(federation, kind, action):
    seen = []
    federation.network.observers.append(lambda letter: seen.append(letter.message))
    action()
    federation.network.observers.clear()
    return [message for message in seen if isinstance(message, kind)]


def test_everything_said_in_the_first_is_refused_in_the_second(first, second):
    """Replayed as it is."""
    kinds = (Parcel, Closing, Receipt, Verdict, Shipment, Upload)
    said = caught(first, kinds, lambda: one_round(first))
    members = [intercept(first, name) for name in USERS[3:6]]
    request = request_for(first, members, 1, first.server.opening._past.opened)
    said += [request, certify(first, request)]
    for message in said:
        if isinstance(message, Receipt | Verdict):
            machine = second.contributor("user-0")
        elif isinstance(message, Shipment | Upload):
            sender = (
                message.dealing.masks[0] if isinstance(message, Shipment) else message.ticket.mask
            )
            with pytest.raises(WrongEpoch):
                second.server.receive(sender.contributor, message)
            continue
        else:
            machine = second.holder("user-0")
        with pytest.raises(WrongEpoch):
            machine.receive(message)


def test_a_share_of_the_first_dealt_again_in_the_second_does_not_open(first, second):
    """Even the true dealer cannot move a sealed share: the epoch is bound to the envelope."""
    parcels = caught(first, Parcel, lambda: deal(first, "ann"))
    ann = first.identity("ann")
    credential = enrol(first.identity("enrolment"), second.agreement.id, "ann", ann.public_key)
    old = parcels[0].dealing
    levels = merkle.tree([merkle.leaf(p.holder, p.sealed) for p in parcels])
    root = merkle.root_of(levels[0], parcels[0].sealed[:32])
    dealing = signed(Dealing(second.agreement.id, old.masks, root, credential), ann)
    for parcel in parcels:
        moved = Parcel(dealing, parcel.holder, parcel.path, parcel.sealed)
        with pytest.raises(WrongRecipient, match="does not open here"):
            second.holder(USERS[parcel.holder]).receive(moved)


def test_a_credential_of_the_first_is_worth_nothing_in_the_second(first, second):
    shipments = caught(first, Shipment, lambda: deal(first, "ann"))
    old = shipments[0].dealing
    relabelled = signed(
        Dealing(second.agreement.id, old.masks, old.root, old.credential),
        first.identity("ann"),
    )
    moved = Shipment(relabelled, shipments[0].leaves, shipments[0].sealed)
    with pytest.raises(NotEnrolled):
        second.server.receive("ann", moved)


def test_a_ticket_for_the_second_does_not_find_the_mask_of_the_first(first, second):
    member = intercept(first, "ann").ticket
    ticket = Ticket(second.agreement.id, member.mask, 0, second.server.head, member.upload_hash)
    others = [intercept(second, name) for name in ("bob", "cat")]
    request = request_for(second, [signed(ticket, first.identity("ann")), *others])
    assert request.epoch == second.agreement.id
    with pytest.raises(UnknownMask):
        second.holder("user-0").receive(request)


def test_endorsements_of_the_first_do_not_certify_in_the_second(first, second):
    """The chain of certificates starts anew."""
    members = [intercept(first, name) for name in USERS[:3]]
    certificate = certify(first, request_for(first, members)).certificate
    others = [intercept(second, name) for name in USERS[:3]]
    request = request_for(second, others, 1, certificate)
    with pytest.raises(WrongEpoch):
        second.holder("user-0").receive(request)


def test_a_holder_does_not_take_its_old_store_along(first, second):
    """Else the shares of the first would serve in the second."""
    deal(first, "ann")
    store = first.network.nodes[holder_at("user-0")].store
    with pytest.raises(StorageError, match="belongs to epoch"):
        second.start(holder_at("user-0"), store)


def test_a_contributor_does_not_take_its_old_store_along(first, second):
    deal(first, "ann")
    store = first.network.nodes[at("ann")].store
    with pytest.raises(StorageError, match="belongs to epoch"):
        second.start(at("ann"), store)


def test_a_contributor_burns_its_masks_when_the_epoch_closes(first):
    deal(first, "ann", "ann")
    intercept(first, "ann")
    ann = first.contributor("ann")
    first.network.perform(at("ann"), ann.close())
    assert ann.states() == {}
    store = first.network.nodes[at("ann")].store
    kept = ("mask", "dealing", "locks", "ticket", "upload")
    assert [kind for kind in kept if store.scan(kind)] == []


def test_control_with_one_store_for_both_a_share_would_cross(first, second, monkeypatch):
    """Without the tie, a holder of the second endorses a mask that was dealt in the first."""
    monkeypatch.setattr("basecagg.protocol.holder.bind", lambda records, epoch: [])
    tickets = []
    for name in ("ann", "bob", "cat"):
        old = intercept(first, name).ticket
        ticket = Ticket(second.agreement.id, old.mask, 0, second.server.head, old.upload_hash)
        tickets.append(signed(ticket, first.identity(name)))
    second.start(holder_at("user-0"), first.network.nodes[holder_at("user-0")].store)
    (vote,) = ask(second, "user-0", request_for(second, tickets))
    assert vote.epoch == second.agreement.id
