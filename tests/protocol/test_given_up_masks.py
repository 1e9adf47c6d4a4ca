"""A host that was restored with its anchor cannot know which masks it used: every start gives them up."""

from __future__ import annotations

import shutil

import pytest
from parties import (
    USERS,
    at,
    deal,
    fresh_update,
    intercept,
    make_federation,
    nothing_changes,
    one_round,
    submit,
)

from basecagg.errors import BadSignature, LocalProtocolError, NotEnrolled, QuotaExceeded
from basecagg.protocol.effects import sends_of
from basecagg.protocol.messages import Closing, MaskName, Upload, signed
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.stored import OwnMask, load
from basecagg.storage.participant_store import ParticipantStore
from reproduction.bench import AT_SERVER

ANN, BOB = USERS[:2]


class Host:
    """A machine with Ann's store and its anchor, of which there are snapshots."""

    def __init__(self, folder, federation):
        self.live, self.snapshot = folder / "host", folder / "snapshot"
        self.live.mkdir()
        self.federation = federation
        self.start()

    def start(self):
        anchors = self.live / "anchors"
        self.store = ParticipantStore(self.live / "state.db", "participant", anchor_folder=anchors)
        assert not self.store.rolled_back
        self.federation.start(at(ANN), self.store)

    def restart(self):
        self.store.close()
        self.start()

    def save(self):
        self.store.close()
        shutil.copytree(self.live, self.snapshot)
        self.start()

    def restore(self):
        self.store.close()
        shutil.rmtree(self.live)
        shutil.copytree(self.snapshot, self.live)
        self.start()


@pytest.fixture
def federation():
    return make_federation()


@pytest.fixture
def host(federation, tmp_path):
    made = Host(tmp_path, federation)
    yield made
    made.store.close()


def restored_between_two_updates(host, *, delivered):
    """The masks of an upload before a snapshot was restored, and of one after, if there can be one."""
    federation = host.federation
    if delivered:
        deal(federation, ANN)
    else:  # the receipts come when the shipment is sent again
        federation.deal(ANN)
        federation.network.in_flight.clear()
    shutil.copytree(host.live, host.snapshot)  # while it runs: nothing is closed
    federation.network.run()
    if not delivered:
        federation.network.perform(at(ANN), federation.contributor(ANN).reconnect())
        federation.network.run()
    first = intercept(federation, ANN, fresh_update())
    host.restore()
    federation.network.run()
    try:
        federation.submit(ANN, fresh_update(), 0, federation.server.head)
    except LocalProtocolError:
        return {first.ticket.mask}, None
    uploads = [each.message for each in federation.network.in_flight]
    return {first.ticket.mask}, {each.ticket.mask for each in uploads if isinstance(each, Upload)}


@pytest.mark.parametrize("delivered", [True, False])
def test_a_restored_host_hides_no_update_under_a_mask_that_it_had_before(host, delivered):
    _, second = restored_between_two_updates(host, delivered=delivered)
    assert second is None
    one_round(host.federation)
    assert host.federation.server.version == 1


@pytest.mark.parametrize("delivered", [True, False])
def test_one_that_kept_its_masks_would_hide_two_updates_under_one(federation, host, delivered):
    """Negative control; and what a Flower node's limits say."""
    federation._keeps_masks = True
    first, second = restored_between_two_updates(host, delivered=delivered)
    assert first == second


def test_the_seeds_are_gone_after_a_start(federation, host):
    deal(federation, ANN)
    federation.deal(ANN)
    host.restart()
    masks = load(host.store, "mask", OwnMask).values()
    assert [(mask.state, mask.seed) for mask in masks] == [("withdrawn", b"")] * 2
    assert host.store.keys("dealing") == host.store.keys("locks") == []
    federation.network.run()
    assert host.store.keys("mask") == []  # the server has heard of it


def test_an_upload_on_its_way_is_sent_again_byte_for_byte(federation, host):
    deal(federation, ANN, count=2)
    upload = intercept(federation, ANN, fresh_update()).upload
    host.restart()
    closing, again = (letter.message for letter in federation.network.in_flight)
    assert isinstance(closing, Closing)
    assert upload.ticket.mask not in closing.masks
    assert again == upload


# --- there is always room for new masks -----------------------------------------------------------


def restarted_often(host) -> int:
    """How often it can deal as many masks as are allowed ahead, with a restart before each time."""
    federation = host.federation
    quota = federation.agreement.parameters.mask_quota
    for times in range(10):
        deal(federation, ANN, count=quota)
        if len(federation.contributor(ANN).ready) < quota:
            return times
        host.restart()
        federation.network.run()
    return 10


def test_a_restart_loop_does_not_use_up_the_quota(host):
    assert restarted_often(host) == 10
    assert host.federation.network.refusals == []
    for name in USERS:
        assert not host.federation.holder(name)._live[ANN]
    one_round(host.federation)
    assert host.federation.server.version == 1


def test_without_a_word_to_the_server_the_quota_would_be_used_up(host, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(Recovery, "_make_room", lambda *_: [])
    assert restarted_often(host) == 2


def test_a_word_that_was_lost_is_said_again(federation, host):
    """A process that is killed before it has sent anything, again and again."""
    for _ in range(5):
        federation.deal(ANN)
        federation.network.run()
        host.restart()
        federation.network.in_flight.clear()
    assert len(load(host.store, "mask", OwnMask)) == 5
    host.restart()
    federation.network.run()
    assert load(host.store, "mask", OwnMask) == {}
    assert federation.network.server.opening.mailroom.live() == []


# --- what the server takes ------------------------------------------------------------------------


def closing_of(federation, *masks, signer=ANN):
    closing = Closing(federation.agreement.id, 0, masks, "burned")
    return signed(closing, federation.identity(signer))


def test_nobody_gives_up_the_masks_of_somebody_else(federation):
    deal(federation, ANN)
    (mask,) = federation.contributor(ANN).ready
    with nothing_changes(federation, AT_SERVER), pytest.raises(NotEnrolled):
        federation.server.receive(BOB, closing_of(federation, mask))
    with nothing_changes(federation, AT_SERVER), pytest.raises(BadSignature):
        federation.server.receive(ANN, closing_of(federation, mask, signer=BOB))
    assert federation.server.receive(ANN, closing_of(federation, mask))  # the control


def test_a_mask_that_hides_an_update_stays_with_it(federation):
    """Its host was restored, and takes it for unused."""
    submitted = [submit(federation, name) for name in (ANN, BOB)]
    federation.network.run()
    mask = submitted[0].ticket.mask
    with nothing_changes(federation, AT_SERVER):
        assert federation.server.receive(ANN, closing_of(federation, mask)) == []
    submit(federation, USERS[2])
    federation.network.run()
    assert federation.server.version == 1


def test_masks_that_the_server_never_saw_are_over_too(federation):
    federation.deal(ANN)
    federation.network.in_flight.clear()
    federation.start(at(ANN))
    federation.network.run()
    assert federation.contributor(ANN).states() == {}


def test_nobody_fills_the_server_with_names():
    """Dealing and giving up leave a name each, until it expires: there is a limit to that, for each of them."""
    federation = make_federation(mask_lifetime=12, cryptography=False)
    ann, bob = (federation.contributor(name) for name in ("ann", "bob"))

    def deal_and_give_up():
        for _ in range(20):
            (shipment,) = sends_of(ann.deal(0, 4))
            federation.network.perform(
                AT_SERVER, federation.server.receive("ann", shipment.message)
            )
            ann._give_up()
            for send in sends_of(ann.reconnect()):
                federation.network.perform(
                    AT_SERVER, federation.server.receive("ann", send.message)
                )
            ann._masks.clear()

    with pytest.raises(QuotaExceeded, match="come and gone"):
        deal_and_give_up()
    assert len(federation.server.opening.mailroom._masks) == 4 * 12
    (shipment,) = sends_of(bob.deal(0, 4))
    federation.server.receive("bob", shipment.message)


def test_no_more_names_are_given_up_at_once_than_may_live():
    federation = make_federation()
    names = tuple(MaskName("ann", bytes([number]) * 16, 5) for number in range(9))
    closing = Closing(federation.agreement.id, 0, names, "burned")
    with pytest.raises(QuotaExceeded, match="9 masks are given up"):
        federation.server.receive("ann", signed(closing, federation.identity("ann")))
