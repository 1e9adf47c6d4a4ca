"""The model that the operator signs: its own, or what the last epoch came to; never what a server says."""

from __future__ import annotations

from dataclasses import replace as changed

import msgspec
import numpy as np
import pytest
from cheats import after, operator_key, parts_of, replaced_model
from msgspec.structs import replace
from parties import make_federation, one_round
from test_operator_machine import FOUR, OPERATOR, Desk, full_desk, holder_key

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.errors import (
    PartsDamaged,
    Refused,
    StorageError,
    WrongEpoch,
    WrongModel,
    WrongVersion,
)
from basecagg.protocol import operator
from basecagg.protocol.effects import Persist, writes_of
from basecagg.protocol.epoch import accept, first_link
from basecagg.protocol.messages import Link, Parts
from basecagg.protocol.operator import Foundation, Operator, found
from basecagg.protocol.proofs import Caught, Miscalculation, Pedigree
from basecagg.protocol.stored import Expectation
from basecagg.storage.in_memory import MemoryStore
from reproduction.bench import Federation

MINE, OTHER = np.zeros(FOUR.model_size, "<f4"), np.ones(FOUR.model_size, "<f4")


# --- a model that the operator gave ---------------------------------------------------------------


def begin_with(desk: Desk, first: Link):
    epoch, *_ = desk.perform(desk.machine.begin(FOUR, first))
    return epoch


def test_the_operator_signs_the_model_that_it_gave_and_no_other():
    desk = full_desk()
    desk.expect(first_link(MINE))
    desk.restart()
    before = desk.store.snapshot()
    with pytest.raises(WrongModel, match=first_link(MINE).model_hash.hex()):
        desk.machine.begin(FOUR, first_link(OTHER))
    assert desk.store.snapshot() == before
    assert desk.machine.number == 0
    epoch = begin_with(desk, first_link(MINE))
    assert accept(epoch, OPERATOR.public_key, Ed25519Verifier()).epoch.first == first_link(MINE)


def test_without_that_rule_the_servers_model_is_signed(monkeypatch):
    def believe(self: Operator, first: Link) -> Expectation:
        return Expectation(first=first, size=FOUR.model_size)

    monkeypatch.setattr(Operator, "require_expected", believe)
    desk = full_desk()
    desk.expect(first_link(MINE))
    assert begin_with(desk, first_link(OTHER)).first == first_link(OTHER)


@pytest.mark.parametrize("elsewhere", [first_link(MINE, 1), first_link(MINE, 0, bytes(range(32)))])
def test_a_model_is_expected_at_its_place_only(elsewhere):
    """Another version, or a chain of another past: what was given once is not what stands there now."""
    desk = full_desk()
    desk.expect(first_link(MINE))
    assert desk.machine.expected_at(elsewhere) is None
    with pytest.raises(WrongModel, match="nobody has said or followed"):
        desk.machine.begin(FOUR, elsewhere)


def test_without_any_word_on_the_model_nothing_is_signed():
    desk = full_desk()
    with pytest.raises(WrongModel):
        desk.machine.begin(FOUR, first_link(MINE))
    desk.expect(first_link(MINE))
    desk.perform(desk.machine.expect(None))
    with pytest.raises(WrongModel):
        desk.machine.begin(FOUR, first_link(MINE))


def test_parameters_for_a_model_of_another_size_are_refused():
    desk = full_desk()
    desk.expect(first_link(MINE))
    with pytest.raises(WrongModel, match="5 numbers, the parameters say 6"):
        desk.machine.begin(changed(FOUR, model_size=6), first_link(MINE))


def test_an_epoch_that_never_arrived_says_which_model_it_was():
    """The server is where it was, so the next epoch may begin with the model of the one that got lost."""
    desk = full_desk()
    desk.begin(first=first_link(MINE))
    desk.perform(desk.machine.expect(None))
    desk.restart()
    desk.hear(*(holder_key(name) for name in ("ann", "bob", "cem", "dea")))
    other = changed(FOUR, buffer_size=4)
    with pytest.raises(WrongModel):
        desk.machine.begin(other, first_link(OTHER))
    epoch, *_ = desk.perform(desk.machine.begin(other, first_link(MINE)))
    assert epoch.number == 2
    # Once it has ended, its first model is past.
    desk.perform(desk.machine.end(0, bytes(32)))
    assert desk.machine.expected_at(first_link(MINE)) is None


def test_an_older_copy_expects_nothing_new():
    desk = Desk()
    desk.machine._standing.suspended = True
    with pytest.raises(StorageError):
        desk.machine.expect(first_link(MINE), FOUR.model_size)
    federation, parts = after()
    with pytest.raises(StorageError):
        desk.machine.follow(pedigree_of(federation, parts), parts)


# --- what the last epoch came to ------------------------------------------------------------------


def pedigree_of(federation: Federation, parts: Parts | None, **changes) -> Pedigree:
    """What the server shows of the version that these parts made."""
    release = parts.release if parts else None
    certificate = parts.certificate if parts else None
    epoch = federation.agreement.epoch
    return replace(Pedigree(epoch, release, certificate, operator_key(federation)), **changes)


class Follower:
    """The operator of a federation, as it is when the present epoch is to be followed by another."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.store = federation, MemoryStore()
        self.store.commit(found())
        self.restart()
        self.perform(self.machine.recover(1, ()))
        self.perform(self.machine.adopt(federation.agreement.epoch))

    def restart(self) -> None:
        operator, enrolment, server = (
            self.federation.identity(role) for role in ("operator", "enrolment", "server")
        )
        about = Foundation(federation="loopback", suite="x25519", server_key=server.public_key)
        self.machine = Operator(about, operator, enrolment, Ed25519Verifier(), self.store)

    def perform(self, effects) -> None:
        self.store.commit(writes_of(effects))

    def follow(self, parts: Parts | None, **changes) -> None:
        pedigree = pedigree_of(self.federation, parts, **changes)
        self.perform(self.machine.follow(pedigree, parts))

    def offered(self, parts: Parts) -> Link:
        """What an honest server wants to begin the next epoch with."""
        history = parts.release.history
        return Link(history.last, history.links[-1].model_hash, bytes(32), history.head)


def test_a_pedigree_says_of_which_version_it_is():
    federation, parts = after(2)
    assert pedigree_of(federation, parts).version == 2
    assert pedigree_of(federation, None).version == federation.agreement.epoch.first_version


@pytest.mark.parametrize("mode", ["certified", "honest-server"])
def test_what_an_epoch_came_to_is_followed(mode):
    federation, parts = after(2, consistency=mode)
    follower = Follower(federation)
    first = follower.offered(parts)
    assert first.model_hash == first_link(federation.server.model, 2).model_hash
    assert follower.machine.expected_at(first) is None
    follower.follow(parts)
    follower.restart()
    expected = follower.machine.expected_at(first)
    assert (expected.first, expected.size) == (first, federation.agreement.parameters.model_size)
    swapped = replace(first, model_hash=bytes(32))
    with pytest.raises(WrongModel):
        follower.machine.begin(federation.agreement.parameters, swapped)


def test_a_store_that_says_nothing_about_models_is_followed_all_the_same():
    """As 0.2.0 wrote it: the signed epoch is there, and its end, and leads to the model."""
    federation, parts = after()
    follower, history = Follower(federation), parts.release.history
    follower.perform(follower.machine.end(history.last, history.head))
    standing = msgspec.msgpack.decode(follower.store.read("standing", ""))
    del standing["expected"]
    follower.store.commit([Persist("standing", "", msgspec.msgpack.encode(standing))])
    follower.restart()
    assert follower.machine.has_ended
    follower.follow(parts)
    assert follower.machine.expected_at(follower.offered(parts)) is not None


def test_an_epoch_that_made_no_version_goes_on_with_its_first_model():
    federation = make_federation()
    follower = Follower(federation)
    follower.follow(None)
    epoch, head = federation.agreement.epoch, federation.server.head
    expected = follower.machine.expected_at(Link(0, epoch.first.model_hash, bytes(32), head))
    assert expected.first.model_hash == epoch.first.model_hash


def test_a_server_that_releases_another_model_is_caught():
    federation, parts = after()
    follower, cheated = Follower(federation), replaced_model(federation, parts)
    with pytest.raises(Caught) as caught:
        follower.follow(cheated)
    assert caught.value.proof == Miscalculation(cheated)
    assert follower.machine.expected_at(follower.offered(cheated)) is None


def test_without_making_it_again_the_other_model_is_believed(monkeypatch):
    monkeypatch.setattr(operator, "recompute", lambda agreement, parts: None)
    federation, parts = after()
    follower, cheated = Follower(federation), replaced_model(federation, parts)
    follower.follow(cheated)
    assert follower.machine.expected_at(follower.offered(cheated)) is not None


def refused(follower: Follower, error: type[Refused], pedigree: Pedigree, parts) -> None:
    before = follower.store.snapshot()
    with pytest.raises(error):
        follower.machine.follow(pedigree, parts)
    assert follower.store.snapshot() == before


def test_what_does_not_lead_to_the_model_is_refused():
    federation, parts = after()
    follower, pedigree = Follower(federation), pedigree_of(federation, parts)
    early = after(1)[1]
    refused(follower, PartsDamaged, pedigree, None)
    refused(follower, PartsDamaged, pedigree, replace(parts, release=early.release))
    refused(follower, PartsDamaged, replace(pedigree, certificate=None), parts)
    refused(follower, PartsDamaged, replace(pedigree, certificate=early.certificate), parts)
    unsigned = replace(parts.release, signature=bytes(64))
    refused(follower, Refused, replace(pedigree, release=unsigned), parts)
    another = make_federation()
    one_round(another)
    refused(follower, WrongEpoch, pedigree_of(another, parts_of(another)), parts_of(another))
    follower.follow(parts)  # the control


def test_an_operator_without_an_epoch_follows_nothing():
    federation, parts = after()
    desk = Desk()
    with pytest.raises(WrongEpoch):
        desk.machine.follow(pedigree_of(federation, parts), parts)


@pytest.mark.parametrize("turned", ["back", "aside", "not"])
def test_the_end_that_was_signed_is_where_it_goes_on(turned):
    """A server whose store was restored shows an earlier version than the one that its epoch ended with."""
    federation, parts = after()
    follower, history = Follower(federation), parts.release.history
    version, head = (
        (history.last + 1, history.head) if turned == "back" else (history.last, b"x" * 32)
    )
    if turned == "not":
        version, head = history.last, history.head
    follower.perform(follower.machine.end(version, head))
    if turned == "not":
        follower.follow(parts)
        return
    refused(follower, WrongVersion, pedigree_of(federation, parts), parts)
    # The way on: the operator says that it wants this very model.
    first = follower.offered(parts)
    follower.perform(follower.machine.expect(first, federation.agreement.parameters.model_size))
    assert follower.machine.expected_at(first).first == first


def test_a_stranger_cannot_lead_to_a_model():
    federation, parts = after()
    follower, stranger = Follower(federation), Identity.create()
    pedigree = pedigree_of(federation, parts, operator_key=stranger.public_key)
    follower.perform(follower.machine.follow(pedigree, parts))  # what a file names decides nothing
    forged = replace(pedigree.epoch, signature=stranger.sign(b"x"))
    follower.perform(follower.machine.follow(replace(pedigree, epoch=forged), parts))
    assert follower.machine.epoch == federation.agreement.epoch  # its own memory is what counts


# --- a server that never got the last epoch, or says so -----------------------------------------------


def told(machine, first: Link) -> bool:
    return machine.expected_at(first) is not None


def test_a_model_that_was_given_is_not_passed_over_for_the_last_epochs():
    """`start --model NEW`, and the server names the place of the last epoch's first model."""
    desk = full_desk()
    desk.begin(first=first_link(MINE))
    desk.expect(first_link(OTHER, 5))
    with pytest.raises(WrongModel):
        desk.machine.require_expected(first_link(MINE))
    assert told(desk.machine, first_link(OTHER, 5))


def test_a_server_that_never_got_the_last_epoch_begins_it_anew():
    """The control: nothing else was given."""
    desk = full_desk()
    desk.begin(first=first_link(MINE))
    assert desk.machine.require_expected(first_link(MINE)).first == first_link(MINE)
