"""A server restored from an older copy of its store: it signs nothing that would convict it.

Whatever it ever signed is heard by one watch, as any member might hear it.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from store_kinds import copy_store
from test_restored_machines import PARAMETERS, USERS, FederationOnFiles

from basecagg.errors import StorageError
from basecagg.protocol.effects import Persist
from basecagg.protocol.messages import (
    Answer,
    Endorsement,
    Inquiry,
    RecoveryRequest,
    ShortRequest,
)
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import Caught, DoubleRequest
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.stored import Past
from basecagg.protocol.stored import write as record
from basecagg.storage.anchor import Anchor
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.server_store import ServerStore
from reproduction.bench import AT_SERVER, Address


class Restorable(FederationOnFiles):
    """The server's store has an anchor, on its machine."""

    anchored = True

    def __init__(self, folder) -> None:
        # Users who count would not send another update from a version that comes back.
        super().__init__(folder, replace(PARAMETERS, repeated_versions=True))
        self.asked: list[RecoveryRequest] = []
        self.network.observers.append(self._note_request)

    def _note_request(self, letter) -> None:
        """The long form of what its server asks for."""
        if isinstance(letter.message, ShortRequest | RecoveryRequest):
            self.asked.append(self.recovery._request)

    def open_store(self, address):
        if address != AT_SERVER or not self.anchored:
            return super().open_store(address)
        place = self.place(address)
        place.mkdir(exist_ok=True)
        return ServerStore(f"sqlite:///{place / 'store.db'}", anchor_folder=self.folder / "server")

    @property
    def recovery(self) -> Recovery:
        opening = self.server.opening
        assert isinstance(opening, Recovery)
        return opening

    def trouble(self) -> str:
        return self.recovery.trouble(self.server.version)

    def one_round(self, scale: float) -> None:
        self.deal_all()
        self.submit_all(scale)

    def everything_signed(self):
        yield from self.asked
        versions = range(self.server.version + 1)
        yield from filter(None, map(self.recovery.kept.release, versions))

    def hear_everything(self) -> None:
        watch = ModelWatch(self.agreement, MemoryStore())
        for word in self.everything_signed():
            watch.hear(word)

    def copy(self, name: str):
        """A backup that comes back when the server has been gone for a while."""
        target = self.folder / name
        copy_store(self.place(AT_SERVER), target)
        with closing(sqlite3.connect(target / "store.db")) as database, database:
            database.execute("UPDATE basecagg_lease SET owner = ''")
        return target


class Careless(Restorable):
    """Without an anchor a server does not know that it is an older copy."""

    anchored = False


@pytest.fixture
def federation(tmp_path):
    made = Restorable(tmp_path)
    yield made
    made.close()


def lose_a_sum(made: Restorable) -> None:
    """A copy is made, a sum is opened, and the copy comes back; then the users send updates again."""
    backup = made.copy("backup")
    made.one_round(1.0)
    assert made.server.version == 1
    made.restart(AT_SERVER, restoring=backup)
    assert made.server.version == 0
    made.one_round(2.0)


def test_a_server_that_lost_a_sum_asks_for_no_other(federation):
    lose_a_sum(federation)
    assert federation.server.version == 0
    assert "4 holders saw more than it knows" in federation.trouble()
    assert len(list(federation.server.buffer.waiting)) == len(USERS)  # uploads go on
    federation.restart(AT_SERVER)  # it does not forget that by being restarted
    assert "holders saw more" in federation.trouble()
    federation.hear_everything()


def test_control_without_its_anchor_it_is_convicted(tmp_path):
    made = Careless(tmp_path)
    lose_a_sum(made)
    assert made.trouble() == ""
    with pytest.raises(Caught) as caught:
        made.hear_everything()
    assert isinstance(caught.value.proof, DoubleRequest)
    made.close()


def test_a_server_that_lost_nothing_goes_on(federation, tmp_path):
    """On another machine: the store is there, and its anchor is not."""
    federation.one_round(1.0)
    federation.restart(AT_SERVER, restoring=federation.copy("backup"))
    assert not federation.recovery.trouble(1)  # this very copy is current
    shutil.rmtree(tmp_path / "server")
    federation.restart(AT_SERVER)
    assert federation.trouble() == ""  # all holders have said by now that they saw no more
    assert any(isinstance(letter.message, Inquiry) for letter in federation.sent)
    federation.one_round(2.0)
    assert federation.server.version == 2
    federation.hear_everything()
    federation.sent.clear()
    federation.restart(AT_SERVER)
    assert not any(isinstance(letter.message, Inquiry) for letter in federation.sent)


def test_one_silent_holder_keeps_it_waiting(federation, tmp_path):
    federation.one_round(1.0)
    federation.stop(Address("holder", "user-3"))
    shutil.rmtree(tmp_path / "server")
    federation.restart(AT_SERVER)
    assert "3 of 4 holders saw no more" in federation.trouble()
    federation.one_round(2.0)
    assert federation.server.version == 1
    federation.start(Address("holder", "user-3"))
    federation.network.run()
    assert federation.trouble() == ""
    assert federation.server.version == 2
    federation.hear_everything()


def test_in_doubt_not_even_the_old_request_is_opened(federation):
    """It may have been given up for another one, which is forgotten."""
    federation.deal_all()
    silent = Address("holder", "user-2"), Address("holder", "user-3")
    for address in silent:
        federation.stop(address)
    federation.submit_all()
    assert federation.server.is_opening
    backup = federation.copy("backup")
    for address in silent:
        federation.start(address)
    federation.network.run()
    assert federation.server.version == 1
    federation.one_round(2.0)
    assert federation.server.version == 2
    said = [each for each in federation.sent if isinstance(each.message, Endorsement | Answer)]
    federation.restart(AT_SERVER, restoring=backup)
    for letter in said:  # as if they had been on their way all the time
        federation.network.perform(
            AT_SERVER, federation.server.receive(letter.sender, letter.message)
        )
    federation.network.perform(AT_SERVER, federation.server.deadline())
    federation.network.run()
    assert federation.server.version == 0
    assert federation.server.is_opening
    assert federation.recovery.is_stuck
    assert "holders saw more" in federation.trouble()
    federation.hear_everything()


# --- the anchor ------------------------------------------------------------------------------------


def write(store: ServerStore, value: bytes, *, irreversible: bool) -> None:
    store.commit([Persist("past", "", value, irreversible)])


@pytest.fixture
def opened(tmp_path):
    """Opens the store again and again."""
    stores = []

    def open_again(place="store", anchors="anchors"):
        while stores:
            stores.pop().close()
        url = f"sqlite:///{tmp_path / place}.db"
        stores.append(ServerStore(url, "epoch:1", anchor_folder=tmp_path / anchors))
        return stores[-1]

    yield open_again
    while stores:
        stores.pop().close()


def test_only_irreversible_commits_count(opened, tmp_path):
    write(opened(), b"1", irreversible=True)
    opened().close()
    shutil.copy(tmp_path / "store.db", tmp_path / "old.db")
    write(opened(), b"2", irreversible=False)
    assert not opened().rolled_back
    assert not opened("old").rolled_back
    write(opened(), b"3", irreversible=True)
    assert not opened().rolled_back
    assert opened("old").rolled_back  # wherever the copy lies


def test_it_is_old_until_an_irreversible_commit(opened, tmp_path):
    opened().close()
    shutil.copy(tmp_path / "store.db", tmp_path / "old.db")
    store = opened()
    for value in (b"1", b"2", b"3"):
        write(store, value, irreversible=True)
    store = opened("old")
    assert store.rolled_back
    write(store, b"x", irreversible=False)
    assert store.rolled_back
    assert opened("old").rolled_back
    write(opened("old"), b"y", irreversible=True)
    assert not opened("old").rolled_back
    assert opened().rolled_back  # of the two lives one is over


@pytest.mark.parametrize("counted", [False, True])
def test_a_store_without_its_anchor_is_old(opened, counted):
    """Also if it has not counted anything: whoever had it since may have."""
    store = opened()
    if counted:
        write(store, b"1", irreversible=True)
    assert not opened().rolled_back
    assert opened(anchors="elsewhere").rolled_back


def test_an_empty_store_with_an_anchor_is_old(opened):
    write(opened(), b"1", irreversible=True)
    assert opened("empty").rolled_back


def test_nothing_is_read_while_the_anchor_cannot_be_written(opened, monkeypatch):
    store = opened()

    def fail(self, mark):
        raise StorageError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Anchor, "write", fail)
        with pytest.raises(StorageError, match="full"):
            write(store, b"1", irreversible=True)
        with pytest.raises(StorageError, match="full"):
            store.read("past", "")
    assert store.read("past", "") == b"1"
    assert not opened().rolled_back


# --- attempts that are used up ---------------------------------------------------------------------


def test_the_operator_is_told_when_no_attempt_is_left(federation):
    """The epoch allows one burn: two sums of version 0 were asked for."""
    store = MemoryStore()
    for slot, said in {(0, 0): "", (0, 1): "2 sums of version 0 were given up"}.items():
        store.commit([record("past", "", Past(slot=slot))])
        recovery = Recovery(federation.agreement, federation.identity("server"), store)
        assert recovery.may_begin(0) == (not said)
        assert recovery.trouble(0).startswith(said)
        assert bool(recovery.trouble(0)) == bool(said)
        assert recovery.trouble(1) == ""
