"""A member with its store: joining, letters in runs, refusals, dealing ahead, restarts and evidence."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from parties import SIZE, USERS
from samples import make_samples
from whole_epoch import WholeEpoch

from basecagg.errors import LocalProtocolError, Malformed
from basecagg.parties import member as member_module
from basecagg.parties.member import evidence_in
from basecagg.protocol.effects import (
    Convicted,
    Declined,
    Joined,
    MaskEnded,
    PartsWanted,
    Persist,
    Send,
)
from basecagg.protocol.epoch import SERVER
from basecagg.protocol.messages import (
    Closing,
    MaskName,
    Parcel,
    Receipt,
    Refusal,
    Shipment,
    Upload,
    Verdict,
    signed,
)

ANN = USERS[0]
MASK = MaskName("ann", bytes(16))
RECEIPT = Receipt(bytes(32), 0, (MASK,))
UPDATE = np.linspace(-1, 1, SIZE, dtype=np.float32)


class Listener:
    """Writes down what it hears, and what it heard when it was asked for a receipt."""

    def __init__(self, wants=()):
        self.heard, self.runs, self.wants = [], [], wants

    def receive(self, message):
        self.heard.append(message)
        return [Persist("heard", str(len(self.heard)), b""), *self.wants]

    def acknowledge(self):
        self.runs.append(len(self.heard) - sum(self.runs))
        return [Send(SERVER, self.heard[-1])]


def listening(wants=()):
    town = WholeEpoch()
    town.members[ANN].participant = listener = Listener(wants)
    return town, town.members[ANN], listener


# --- letters ----------------------------------------------------------------------------------------


def test_alike_ones_are_written_together_but_not_too_many():
    """A receipt or parcel needs no record of the one before; everything else has a transaction of its own."""
    receipts = [Receipt(bytes(32), index, (MASK,)) for index in range(40)]
    closings = [Closing(bytes(32), version, (MASK,), "burned") for version in range(2)]
    letters = [*receipts, *closings, receipts[0]]
    town, member, listener = listening()
    messages = member.take(letters)
    assert listener.heard == letters
    assert listener.runs == [32, 8, 1, 1, 1]
    assert messages == [letters[at] for at in (31, 39, 40, 41, 42)]
    assert len(town.stores[ANN].keys("heard")) == 43


def test_parcels_and_receipts_are_written_together():
    parcel, receipt = make_samples()[Parcel], make_samples()[Receipt]
    _, member, listener = listening()
    member.take([parcel, parcel, receipt])
    assert listener.runs == [3]


class Refuser(Listener):
    def receive(self, message):
        raise Malformed("no")

    def acknowledge(self):
        return []


def replies_to(message):
    town, told = WholeEpoch(), []
    town.start_member(ANN, refused=lambda *what: told.append(what))
    member = town.members[ANN]
    member.participant = Refuser()
    replies = member.take([message])
    assert [(each, str(why)) for each, why in told] == [(message, "no")]
    return replies


def test_a_refused_letter_is_answered_but_a_refusal_never():
    """Else two that refuse each other would never end."""
    assert replies_to(RECEIPT) == [Refusal("Malformed", "no")]
    assert replies_to(Refusal("Malformed", "no")) == []
    assert replies_to(Verdict(bytes(32), MASK, "refused")) == []


def test_of_several_wanted_versions_only_the_newest_is_fetched():
    _, member, _ = listening([PartsWanted(4), PartsWanted(3)])
    assert member.take_wanted() is None
    member.take([RECEIPT])
    assert member.wanted == 4
    assert member.take_wanted() == 4
    assert member.take_wanted() is None


# --- epochs -----------------------------------------------------------------------------------------


def test_it_joins_an_epoch_once_and_says_why_it_declines_one():
    town = WholeEpoch()
    member = town.members[ANN]
    assert [news for news in town.news if isinstance(news, Joined)]
    assert member.epoch == town.epoch.id.hex()
    assert member.offer([town.epoch, town.credential(ANN)]) is None  # the same one again
    declined = member.offer([WholeEpoch().epoch])
    assert isinstance(declined, Declined)
    assert declined in town.news
    assert member.offer([RECEIPT]) is None  # no epoch among them


def test_a_member_that_starts_again_goes_on_from_its_store():
    town = WholeEpoch()
    town.contribute(ANN, UPDATE)
    sent = town.start_member(ANN)
    member = town.members[ANN]
    assert member.epoch == town.epoch.id.hex()
    assert [type(message) for message in sent] == [Upload]  # its sum is not open yet
    for name in USERS[1:3]:
        town.contribute(name, UPDATE)
    ended = [news.state for news in town.news if isinstance(news, MaskEnded)]
    assert ended == ["opened"] * 3
    assert member.reconnect() == []


def test_masks_from_before_a_start_are_used_only_if_it_keeps_them():
    for keeps in (False, True):
        town = WholeEpoch()
        town.say(ANN, town.members[ANN].deal())
        town.start_member(ANN, keeps_masks=keeps)
        assert len(town.members[ANN].participant.contributor.ready) == keeps


# --- masks and updates ------------------------------------------------------------------------------


@pytest.mark.parametrize(("large", "shipments"), [(1, [1, 1]), (2**30, [2])])
def test_masks_with_large_shares_are_dealt_one_by_one(monkeypatch, large, shipments):
    monkeypatch.setattr(member_module, "_LARGE", large)
    member = WholeEpoch().members[ANN]
    dealt = member.deal(2)
    assert all(isinstance(message, Shipment) for message in dealt)
    assert [len(message.dealing.masks) for message in dealt] == shipments
    assert member.deal(2) == []


def test_it_trains_only_from_the_model_that_the_server_has_signed():
    town = WholeEpoch()
    for name in USERS[:3]:
        town.contribute(name, UPDATE)
    member, machine = town.members[ANN], town.server.machine
    assert not member.has_heard_of(1)
    with pytest.raises(LocalProtocolError, match="has not said yet"):
        member.head_of(1, machine.model)
    member.take([town.server.recovery.kept.release(1)])
    assert member.has_heard_of(1)
    assert not member.is_due(1)
    member.begin()
    assert member.head_of(1, machine.model) == machine.head


# --- a server that was caught -----------------------------------------------------------------------


def forked(release, key):
    """The server's word that the same version has another model."""
    *links, last = release.history.links
    links.append(replace(last, model_hash=bytes(32)))
    history = replace(release.history, links=tuple(links))
    return signed(replace(release, history=history), key)


def test_evidence_outlives_the_member():
    town = WholeEpoch()
    for name in USERS[:3]:
        town.contribute(name, UPDATE)
    release = town.server.recovery.kept.release(1)
    town.members[ANN].take([release])
    assert evidence_in(town.stores[ANN]) == []
    assert town.members[ANN].take([forked(release, town.identities[SERVER])]) == []
    (convicted,) = [news for news in town.news if isinstance(news, Convicted)]
    town.start_member(ANN)
    assert evidence_in(town.stores[ANN]) == [convicted.evidence]
