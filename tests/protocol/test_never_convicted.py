"""An honest server is never convicted, whatever happens to it: crashes, restarts, old copies of its store.

A prosecutor has heard every word of the server that reached anybody, keeps all of them, compares each with
each, and makes every version again.
"""

import pytest
from harness import Memory
from hypothesis.stateful import invariant, precondition, rule
from parties import USERS, make_federation, one_round
from test_schedules import Schedules, anywhere, play

from basecagg.protocol.messages import RecoveryRequest, ShortRequest
from basecagg.protocol.proofs import DoubleRequest, contradiction
from basecagg.protocol.recomputation import recompute
from basecagg.protocol.stored import Made, load
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import AT_SERVER


class OldCopy(MemoryStore):
    """An older copy of the server's store, given away by its anchor until something irreversible is written."""

    rolled_back = True

    def commit(self, writes):
        super().commit(writes)
        if any(getattr(write, "irreversible", False) for write in writes):
            self.rolled_back = False


class Prosecution(Schedules):
    """An honest server in a hostile world, that may also be restored from any older copy of its store."""

    restored = False

    def open_stores(self):
        self.words, self.copies, self.made = [], [], set()
        return Memory()

    @precondition(lambda self: AT_SERVER in self.world.stores.stores)
    @rule()
    def back_up(self):
        self.copies.append(self.world.stores.stores[AT_SERVER].snapshot())

    @precondition(lambda self: self.copies)
    @rule(where=anywhere)
    def restore(self, where):
        """The old copy takes the store's place; whatever was written since is forgotten."""
        copy = self.copies[where % len(self.copies)]
        self.forget_undelivered()
        self.judge.durable = lambda effects: None  # what was durable is lost: only words count now
        self.world.stores.stores[AT_SERVER] = OldCopy(copy)
        self.world.restart(AT_SERVER)
        self.restored = True

    def forget_undelivered(self):
        """Letters that reached nobody lay in mailboxes of the store that is replaced: they are lost."""
        delivered = [letter for letter in self.judge.letters if self.is_delivered(letter)]
        self.judge.letters[:] = delivered
        waiting = [letter for letter in self.network.in_flight if self.is_delivered(letter)]
        self.network.in_flight.clear()
        self.network.in_flight.extend(waiting)

    def is_delivered(self, letter):
        return not is_request(letter.message) or id(letter) in self.network.delivered

    def remembers(self, address, before):
        if not self.restored:
            super().remembers(address, before)

    @invariant()
    def nothing_is_broken(self):
        if not self.restored:
            super().nothing_is_broken()

    @invariant()
    def nobody_can_convict_the_server(self):
        delivered = list(self.network.delivered.values())
        for letter in delivered[self.heard :]:
            if is_request(letter.message):
                self.hear(self.judge.requests[letter.message.digest])
        self.heard = len(delivered)
        if self.server:
            self.make_again()

    heard = 0

    def hear(self, word):
        for known in self.words:
            assert contradiction(known, word) is None, "the server contradicts itself"
        if word not in self.words:
            self.words.append(word)

    def make_again(self):
        store = self.world.stores.stores[AT_SERVER]
        for made in load(store, "made", Made).values():
            version = made.release.history.last
            self.hear(made.release)
            parts = self.server.opening.kept.parts(version)
            if parts is not None and (version, made.release) not in self.made:
                recompute(self.world.federation.agreement, parts)
                self.made.add((version, made.release))

    def teardown(self):
        """In doubt it waits for its operator: that training goes on is no promise any more."""
        if hasattr(self, "world") and not self.restored:
            super().teardown()


def test_an_honest_server_is_never_convicted():
    play(Prosecution, 100)


@pytest.mark.soak
def test_an_honest_server_is_never_convicted_in_ten_thousand_schedules():
    play(Prosecution, 10_000)


def words_after(copy_of):
    """A sum is opened, the server is restored to before it, and others send their updates."""
    federation, words = make_federation(), []
    federation.network.observers.append(
        lambda letter: (
            words.append(federation.server.opening._request) if is_request(letter.message) else None
        )
    )
    before = federation.network.nodes[AT_SERVER].store.snapshot()
    for names in (USERS[:3], USERS[3:6]):
        one_round(federation, names)
        federation.start(AT_SERVER, copy_of(before))
        federation.network.run()
    return words


def is_request(message):
    return isinstance(message, RecoveryRequest | ShortRequest)


def test_a_server_that_is_restored_before_its_request_signs_no_other():
    words = words_after(OldCopy)
    assert len({word.digest for word in words}) == 1


def test_control_a_restored_server_that_does_not_notice_is_convicted():
    words = words_after(MemoryStore)
    proofs = [contradiction(words[0], word) for word in words]
    assert any(isinstance(proof, DoubleRequest) for proof in proofs)
