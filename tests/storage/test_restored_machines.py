"""Federations on files: they survive restarts, and burn their masks when an older copy is restored."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from store_kinds import copy_store, restore_store

from basecagg.errors import Retired
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import MaskEnded, Released, perform
from basecagg.protocol.messages import (
    Answer,
    Certificate,
    Endorsement,
    Parcel,
    ShortRequest,
    Upload,
)
from basecagg.storage.participant_store import ParticipantStore
from basecagg.storage.server_store import ServerStore
from reproduction.bench import AT_SERVER, Address, Federation

PARAMETERS = ProtocolParameters(
    num_holders=4,
    recovery_threshold=2,
    max_colluders=1,
    max_dropouts=1,
    buffer_size=3,
    model_size=5,
    update_levels=2**8,
)
USERS = ["user-0", "user-1", "user-2"]
HOLDER, CONTRIBUTOR = Address("holder", "user-0"), Address("contributor", "user-0")


class FederationOnFiles(Federation):
    """Each party has a folder of its own; the anchors are elsewhere."""

    def __init__(self, folder, parameters=PARAMETERS):
        self.folder, self.sent = folder, []
        size = parameters.model_size
        super().__init__(parameters, np.zeros(size), make_store=self.open_store)
        self.network.observers.append(self.sent.append)

    def place(self, address):
        return self.folder / f"{address.role}-{address.name}"

    def open_store(self, address):
        place = self.place(address)
        place.mkdir(exist_ok=True)
        if address == AT_SERVER:
            return ServerStore(f"sqlite:///{place / 'store.db'}")
        return ParticipantStore(
            place / "store.db", address.role, anchor_folder=self.folder / "anchors"
        )

    def restart(self, address, restoring=None, *, silent_server=False):
        """Stop a party, restore an older copy of its folder if there is one, and start it again."""
        self.network.nodes[address].store.close()
        self.stop(address)
        if restoring:
            restore_store(restoring, self.place(address))
        self.start(address, self.open_store(address))
        if silent_server:  # a cheating one does not say which masks are over
            self.network.in_flight.clear()
        self.network.run()

    def deal_all(self):
        for user in USERS:
            self.deal(user)
        self.network.run()

    def submit_all(self, scale=1.0):
        version, head = self.server.version, self.server.head
        for number, user in enumerate(USERS):
            size = self.agreement.parameters.model_size
            self.submit(user, np.full(size, scale * (number + 1)), version, head)
        self.network.run()

    def sent_by(self, address, kind):
        return [
            letter.message
            for letter in self.sent
            if letter.sender == address.name and isinstance(letter.message, kind)
        ]

    def close(self):
        for node in self.network.nodes.values():
            node.store.close()


@pytest.fixture
def federation(tmp_path):
    made = FederationOnFiles(tmp_path)
    yield made
    made.close()


@pytest.fixture
def opened(federation, tmp_path):
    """One sum was opened; of the holder and the contributor there are copies from before."""
    federation.deal_all()
    for address in (HOLDER, CONTRIBUTOR):
        copy_store(federation.place(address), tmp_path / f"copy-{address.role}")
    shutil.copytree(tmp_path / "anchors", tmp_path / "copy-anchors")
    federation.submit_all()
    assert federation.server.version == 1
    return federation


def test_a_federation_on_files_survives_restarts_of_everybody(federation):
    federation.deal_all()
    for address in list(federation.network.nodes):
        federation.restart(address)
    assert not any(federation.contributor(user).ready for user in USERS)  # given up by every start
    federation.deal_all()
    federation.submit_all()
    (released,) = [news for news in federation.take_news() if isinstance(news, Released)]
    assert released.weighted_sum.tolist() == [6.0 * released.weights[0]] * 5
    for address in list(federation.network.nodes):
        federation.restart(address)
    assert federation.server.version == 1


def test_a_restored_holder_answers_nothing_any_more(opened, tmp_path):
    before = list(opened.sent)
    opened.restart(HOLDER, restoring=tmp_path / "copy-holder", silent_server=True)
    for letter in before:
        if letter.to == HOLDER and isinstance(letter.message, Parcel | ShortRequest | Certificate):
            with pytest.raises(Retired):
                opened.holder("user-0").receive(letter.message)
    del opened.sent[: len(before)]
    assert opened.sent_by(HOLDER, Answer | Endorsement) == []
    opened.restart(HOLDER)  # now from a store that is current again: still retired
    with pytest.raises(Retired):
        opened.holder("user-0").receive(before[0].message)


def test_without_the_anchor_a_restored_holder_would_answer_again(opened, tmp_path):
    """The control: it is the anchor that silences the holder, not something else about the older copy."""
    shutil.rmtree(tmp_path / "anchors")
    shutil.copytree(tmp_path / "copy-anchors", tmp_path / "anchors")
    opened.restart(HOLDER, restoring=tmp_path / "copy-holder", silent_server=True)
    questions = [
        letter.message
        for letter in opened.sent
        if letter.to == HOLDER and isinstance(letter.message, ShortRequest | Certificate)
    ]
    store = opened.network.nodes[HOLDER].store
    said = [
        s.message for q in questions for s in perform(store, opened.holder("user-0").receive(q))
    ]
    assert [type(message) for message in said] == [Endorsement, Answer]


def test_a_restored_contributor_burns_its_masks_and_goes_on_with_new_ones(opened, tmp_path):
    opened.take_news()
    uploads = opened.sent_by(CONTRIBUTOR, Upload)
    opened.restart(CONTRIBUTOR, restoring=tmp_path / "copy-contributor")
    assert opened.contributor("user-0").ready == []
    (ended,) = [news for news in opened.take_news() if isinstance(news, MaskEnded)]
    assert ended.mask == uploads[0].ticket.mask
    opened.deal_all()
    opened.submit_all(scale=2.0)
    assert opened.server.version == 2
    masks = [upload.ticket.mask for upload in opened.sent_by(CONTRIBUTOR, Upload)]
    assert len(masks) == len(set(masks)) == 2
