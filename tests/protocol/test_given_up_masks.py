"""A host that was restored with its anchor cannot know which masks it has used: every start gives up all of them."""

from __future__ import annotations

import shutil

import pytest
from parties import USERS, at, deal, fresh_update, intercept, make_federation, one_round

from basecagg.errors import LocalProtocolError
from basecagg.protocol.messages import Upload
from basecagg.storage.participant import ParticipantStore

ANN = USERS[0]
attacked = pytest.mark.xfail(strict=True, reason="a ready mask hides two updates")


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


@attacked
@pytest.mark.parametrize("delivered", [True, False])
def test_a_restored_host_hides_no_update_under_a_mask_that_it_had_before(host, delivered):
    first, second = restored_between_two_updates(host, delivered=delivered)
    assert second is None
    one_round(host.federation)
    assert host.federation.server.version == 1
