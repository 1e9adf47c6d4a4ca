"""The operator's machine: what it signs, what it never signs twice, how it survives crashes and old copies."""

from __future__ import annotations

import itertools
import os
import random
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.errors import (
    BadSignature,
    DataError,
    LocalProtocolError,
    Malformed,
    NotEnrolled,
    Refused,
    StorageError,
    WrongEpoch,
    WrongVersion,
)
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import life
from basecagg.protocol.effects import sends_of, writes_of
from basecagg.protocol.epoch import Epoch, Seat, accept
from basecagg.protocol.messages import (
    Credential,
    EpochEnd,
    HolderKey,
    Link,
    digest_of,
    signed,
    statement,
)
from basecagg.protocol.operator import Foundation, Operator, found, proof
from basecagg.protocol.step_rule import StepRule
from basecagg.storage.in_memory import MemoryStore
from basecagg.storage.participant_store import ParticipantStore

OPERATOR, ENROLMENT, SERVER = (Identity.create() for _ in range(3))
FOUNDATION = Foundation(federation="test", suite="x25519", server_key=SERVER.public_key)
FOUR = ProtocolParameters(
    num_holders=4,
    recovery_threshold=2,
    max_colluders=1,
    max_dropouts=0,
    buffer_size=3,
    model_size=5,
    correctness="honest-holders",  # so that two holders make an epoch, too
)
NAMES = ("ann", "bob", "cem", "dea")
IDENTITIES = {name: Identity.create() for name in NAMES}
SUNK = bytes(32)
"""A point of low order: nothing can be sealed to it."""


def of(count: int) -> ProtocolParameters:
    return replace(FOUR, num_holders=count)


def holder_key(name: str, *, after: int = 0, sealing: bytes | None = None, **changes) -> HolderKey:
    signer = changes.pop("signer", IDENTITIES.get(name))
    public = SealingSecret.create().public_key if sealing is None else sealing
    key = HolderKey("test", name, "x25519", public, after)
    return signed(msgspec.structs.replace(key, **changes), signer)


def first_at(version: int) -> Link:
    return Link(version, bytes(32), bytes(32), bytes(32))


FIRST = first_at(0)


class Desk:
    """A machine with its store: what a driver does, and no more."""

    def __init__(self, store=None, foundation: Foundation = FOUNDATION) -> None:
        self.store = MemoryStore() if store is None else store
        self.foundation = foundation
        if store is None:
            self.store.commit(found())
        self.restart()

    def restart(self) -> None:
        self.machine = Operator(self.foundation, OPERATOR, ENROLMENT, Ed25519Verifier(), self.store)
        self.perform(self.machine.start())

    def perform(self, effects):
        self.store.commit(writes_of(effects))
        return [send.message for send in sends_of(effects)]

    def enrol(self, *names: str, role: str = "both") -> None:
        for name in names:
            self.perform(self.machine.vouch(name, role, IDENTITIES[name].public_key))

    def hear(self, *keys: HolderKey) -> None:
        for key in keys:
            self.perform(self.machine.hear(key.name, key))

    def expect(self, first: Link = FIRST) -> None:
        self.perform(self.machine.expect(first, FOUR.model_size))

    def begin(self, parameters=FOUR, first=FIRST, **wishes) -> Epoch:
        self.expect(first)
        epoch, *credentials = self.perform(self.machine.begin(parameters, first, **wishes))
        assert isinstance(epoch, Epoch)
        assert all(isinstance(each, Credential) for each in credentials)
        return epoch


def full_desk() -> Desk:
    desk = Desk()
    desk.enrol(*NAMES)
    desk.hear(*(holder_key(name) for name in NAMES))
    return desk


def sealing_keys(epoch: Epoch) -> set[bytes]:
    return {holder.sealing_key for holder in epoch.holders}


# --- epochs ---------------------------------------------------------------------------------------


def test_an_epoch_has_every_holder_and_the_next_number():
    desk = full_desk()
    desk.expect(first_at(3))
    effects = desk.machine.begin(FOUR, first_at(3))
    epoch, *credentials = desk.perform(effects)
    agreement = accept(epoch, OPERATOR.public_key, Ed25519Verifier())
    assert agreement.holder_names == NAMES
    assert (epoch.number, epoch.first_version, epoch.federation) == (1, 3, "test")
    for credential in credentials:
        agreement.require_enrolled(credential, credential.contributor)
    assert [each.contributor for each in credentials] == list(NAMES)


def test_an_epoch_has_an_end_and_keeps_it_when_it_is_sent_again():
    desk = full_desk()
    first = desk.begin(ends=1_000)
    assert first.ends == 1_000
    assert desk.begin(ends=2_000) == first


def test_what_is_signed_is_written_down_before_it_is_sent():
    """All that must not be undone is irreversible, so that an older copy of the store gives itself away."""
    desk = full_desk()
    (expected,) = writes_of(desk.machine.expect(FIRST, FOUR.model_size))
    assert (expected.kind, expected.irreversible) == ("standing", True)
    written = writes_of(desk.machine.begin(FOUR, FIRST))
    assert {each.kind for each in written} == {"standing", "used", "highest"}
    assert all(each.irreversible for each in written)
    (kept,) = writes_of(desk.machine.end(0, bytes(32)))
    assert kept.irreversible
    for effects in (
        desk.machine.invite("eve", "both", bytes(32)),
        desk.machine.replace("ann", bytes(32)),
        desk.machine.revoke("bob"),
    ):
        person = writes_of(effects)[0]
        assert person.kind == "person"
        assert person.irreversible


def test_numbers_only_go_up_and_no_key_is_signed_twice():
    desk = full_desk()
    first = desk.begin()
    desk.perform(desk.machine.end(5, bytes(32)))
    with pytest.raises(LocalProtocolError, match="signed into epoch 1 already"):
        desk.begin(first=first_at(5))
    desk.hear(*(holder_key(name, after=1) for name in NAMES))
    second = desk.begin(first=first_at(5))
    assert (first.number, second.number) == (1, 2)
    assert not sealing_keys(first) & sealing_keys(second)


def test_a_key_that_was_signed_is_not_taken_again():
    desk = full_desk()
    used = desk.begin().holders[0].sealing_key
    desk.perform(desk.machine.end(5, bytes(32)))
    with pytest.raises(WrongVersion, match="signed into epoch 1 already"):
        desk.hear(holder_key("ann", after=1, sealing=used))


def test_an_epoch_that_never_arrived_is_given_again_and_its_keys_are_used_otherwise():
    desk = full_desk()
    first = desk.begin()
    desk.restart()
    assert desk.begin() == first
    assert desk.machine.number == 1
    other = replace(FOUR, buffer_size=4)
    with pytest.raises(LocalProtocolError, match="signed into epoch 1 already"):
        desk.begin(other)
    desk.hear(*(holder_key(name) for name in NAMES))
    assert desk.begin() == first  # still the same wish
    assert desk.begin(other).number == 2


@pytest.mark.parametrize(
    "wish",
    [
        {"first": first_at(1)},
        {"step": StepRule("adam")},
        {"max_burns": 3},
        {"contract": bytes(range(32))},
    ],
    ids=str,
)
def test_any_other_wish_is_another_epoch(wish):
    desk = full_desk()
    desk.begin()
    desk.hear(*(holder_key(name) for name in NAMES))
    epoch = desk.begin(**wish)
    assert epoch.number == 2
    assert {field: getattr(epoch, field) for field in wish} == wish


def test_an_ended_epoch_is_not_given_again():
    desk = full_desk()
    first = desk.begin()
    desk.perform(desk.machine.end(0, bytes(32)))
    desk.hear(*(holder_key(name, after=1) for name in NAMES))
    assert desk.begin().number == first.number + 1


def test_an_epoch_ends_once_and_by_the_operators_word():
    desk = full_desk()
    with pytest.raises(LocalProtocolError, match="no epoch has begun"):
        desk.machine.end(0, bytes(32))
    epoch = desk.begin(first=first_at(2))
    with pytest.raises(WrongVersion, match="began with version 2"):
        desk.machine.end(1, bytes(32))
    (end,) = desk.perform(desk.machine.end(9, bytes(range(32))))
    assert end == EpochEnd(epoch.id, 9, bytes(range(32)), end.signature)
    assert Ed25519Verifier().verify(OPERATOR.public_key, statement(end), end.signature)
    desk.restart()
    assert desk.perform(desk.machine.end(11, bytes(32))) == [end]


@pytest.mark.parametrize("count", [3, 5])
def test_parameters_for_another_number_of_holders_are_refused(count):
    desk = full_desk()
    with pytest.raises(WrongEpoch, match=f"4 holders are listed, N = {count}"):
        desk.begin(of(count))
    assert desk.machine.number == 0
    assert not desk.machine.missing()


# --- who is missing -------------------------------------------------------------------------------


def test_a_missing_holder_is_named_with_the_reason():
    desk = full_desk()
    desk.begin()
    desk.perform(desk.machine.end(0, bytes(32)))
    late = Identity.create()
    desk.perform(desk.machine.vouch("eve", "holder", late.public_key))
    desk.hear(holder_key("ann", after=1), holder_key("bob", after=1))
    with pytest.raises(Malformed):
        desk.hear(holder_key("dea", after=1, sealing=SUNK))
    missing = {
        "cem": "its key was signed into epoch 1 already",
        "dea": "its key is none of the suite x25519",
        "eve": "it has announced no key",
    }
    assert desk.machine.missing() == missing
    with pytest.raises(LocalProtocolError, match="--without cem --without dea --without eve") as e:
        desk.begin(of(2))
    assert all(f"{name}: {reason}" in str(e.value) for name, reason in missing.items())


def test_a_holder_is_left_out_by_name_only():
    desk = full_desk()
    with pytest.raises(WrongEpoch):  # the parameters alone leave nobody out
        desk.begin(of(3))
    with pytest.raises(DataError, match="no holder is called eve"):
        desk.begin(of(3), without=["eve"])
    desk.expect()
    epoch, *credentials = desk.perform(desk.machine.begin(of(3), FIRST, without=["cem"]))
    assert [holder.name for holder in epoch.holders] == ["ann", "bob", "dea"]
    assert "cem" in [each.contributor for each in credentials]  # it goes on contributing


def test_revoked_people_and_contributors_are_not_missed():
    desk = Desk()
    desk.enrol("ann", "bob")
    desk.enrol("cem", role="contributor")
    desk.enrol("dea", role="holder")
    desk.perform(desk.machine.revoke("bob"))
    desk.hear(holder_key("ann"), holder_key("dea"))
    desk.expect()
    epoch, *credentials = desk.perform(desk.machine.begin(of(2), FIRST))
    assert [holder.name for holder in epoch.holders] == ["ann", "dea"]
    assert [each.contributor for each in credentials] == ["ann", "cem"]
    with pytest.raises(NotEnrolled):
        desk.hear(holder_key("bob"))


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (BadSignature, {"signer": Identity.create()}),
        (BadSignature, {"signer": IDENTITIES["bob"]}),
        (WrongEpoch, {"federation": "other"}),
        (WrongEpoch, {"suite": "mlkem768-x25519"}),
        (Malformed, {"sealing": SUNK}),
        (Malformed, {"sealing": bytes(range(100))}),
        (Malformed, {"sealing": SealingSecret.create("mlkem768-x25519").public_key}),
        (WrongVersion, {"after": 1}),
    ],
)
def test_a_bad_key_is_refused_and_changes_nothing(error, changes):
    desk = Desk()
    desk.enrol(*NAMES)
    with pytest.raises(error):
        desk.machine.hear("ann", holder_key("ann", **changes))
    assert "ann" in desk.machine.missing()
    desk.hear(*(holder_key(name) for name in NAMES))
    before = desk.store.snapshot()
    with pytest.raises(error):
        desk.machine.hear("ann", holder_key("ann", **changes))
    assert desk.store.snapshot() == before
    assert not desk.machine.missing()


def test_somebody_elses_key_under_my_name_is_refused():
    desk = Desk()
    desk.enrol("ann", "bob")
    with pytest.raises(BadSignature):
        desk.machine.hear("ann", holder_key("bob"))
    borrowed = holder_key("bob", signer=IDENTITIES["ann"])
    with pytest.raises(WrongEpoch):
        desk.machine.hear("ann", borrowed)


def test_every_field_of_a_key_is_signed():
    desk = Desk()
    desk.enrol("ann")
    good = holder_key("ann")
    others = {
        "federation": "b",
        "name": "bob",
        "suite": "mlkem768-x25519",
        "sealing_key": SealingSecret.create().public_key,
        "after": 1,
        "signature": bytes(64),
    }
    assert set(others) == set(HolderKey.__struct_fields__)
    for field, value in others.items():
        with pytest.raises(BadSignature):
            desk.machine.hear("ann", msgspec.structs.replace(good, **{field: value}))
    desk.hear(good)


def test_an_unused_key_is_replaced_and_after_never_goes_back():
    desk = full_desk()
    desk.begin()
    fresh = holder_key("ann", after=1)
    desk.hear(fresh)
    desk.hear(holder_key("ann", after=1))  # an epoch that never arrived locks nobody out
    with pytest.raises(WrongVersion, match="from before epoch 1"):
        desk.hear(holder_key("ann", after=0))
    desk.restart()
    with pytest.raises(WrongVersion, match="from before epoch 1"):
        desk.hear(holder_key("ann", after=0))


def test_a_used_key_is_not_announced_again_after_a_newer_one():
    desk = full_desk()
    used = desk.machine._announced["ann"]
    desk.begin()
    desk.hear(holder_key("ann"))
    with pytest.raises(WrongVersion, match="signed into epoch 1 already"):
        desk.hear(used)


def test_a_key_that_two_people_announce_is_nobodys():
    """Somebody copied it, and a parcel for one would be for both."""
    desk = full_desk()
    stolen = desk.machine._announced["ann"].sealing_key
    desk.hear(holder_key("bob", sealing=stolen))
    assert desk.machine.missing() == {"ann": "its key is bob's too", "bob": "its key is ann's too"}


# --- people ---------------------------------------------------------------------------------------


def test_an_invitation_admits_one_key_with_its_proof():
    desk, token, me = Desk(), bytes(range(32)), Identity.create()
    desk.perform(desk.machine.invite("ann", "both", token))
    assert desk.machine.invite("ann", "both", bytes(32)) == []
    assert desk.machine.people["ann"].token == token
    good = proof(token, "test", "ann", me.public_key)
    bad = [
        ("bob", me.public_key, good),
        ("ann", Identity.create().public_key, good),
        ("ann", me.public_key, proof(bytes(32), "test", "ann", me.public_key)),
        ("ann", me.public_key, proof(token, "other", "ann", me.public_key)),
        ("ann", me.public_key, proof(token, "test", "bob", me.public_key)),
        ("ann", me.public_key, b""),
    ]
    for name, key, evidence in bad:
        with pytest.raises(NotEnrolled):
            desk.machine.admit(name, key, evidence)
    desk.perform(desk.machine.admit("ann", me.public_key, good))
    assert desk.machine.admit("ann", me.public_key, good) == []  # a retry
    other = Identity.create().public_key
    with pytest.raises(NotEnrolled, match="another key"):
        desk.machine.admit("ann", other, proof(token, "test", "ann", other))
    with pytest.raises(DataError, match="is taken"):
        desk.machine.invite("ann", "both", token)


@pytest.mark.parametrize(("now", "admitted"), [(99, True), (100, False), (10**9, False)])
def test_an_invitation_admits_until_it_expires(now, admitted):
    desk, token, key = Desk(), b"t" * 32, Identity.create().public_key
    desk.perform(desk.machine.invite("ann", "both", token, expires=100))
    evidence = proof(token, "test", "ann", key)
    if admitted:
        desk.perform(desk.machine.admit("ann", key, evidence, now=now))
        # Who is in stays in when the time has passed.
        assert desk.machine.admit("ann", key, evidence, now=10**9) == []
        return
    with pytest.raises(NotEnrolled, match="expired"):
        desk.machine.admit("ann", key, evidence, now=now)
    assert desk.machine.invite("ann", "both", b"u" * 32, expires=2 * now, now=99) == []
    desk.perform(desk.machine.invite("ann", "both", b"u" * 32, expires=2 * now, now=now))
    with pytest.raises(NotEnrolled, match="proof"):  # the old one is worth nothing now
        desk.machine.admit("ann", key, evidence, now=now)
    desk.perform(desk.machine.admit("ann", key, proof(b"u" * 32, "test", "ann", key), now=now))


def test_who_was_vouched_for_has_no_invitation_to_use():
    desk = Desk()
    desk.enrol("ann")
    key = Identity.create().public_key
    with pytest.raises(NotEnrolled):
        desk.machine.admit("ann", key, proof(b"", "test", "ann", key))


@pytest.mark.parametrize("name", ["", ".", "..", ".ssh", "a/b", "a b", "a\n", "operator", "server"])
def test_a_bad_name_is_refused(name):
    desk = Desk()
    with pytest.raises(DataError):
        desk.machine.invite(name, "both", bytes(32))
    with pytest.raises(DataError):
        desk.machine.vouch(name, "both", bytes(32))


def test_a_name_keeps_its_role_and_its_credential():
    desk = full_desk()
    first = desk.begin()
    desk.perform(desk.machine.invite("eve", "both", bytes(32)))
    for attempt in (
        lambda: desk.machine.invite("eve", "holder", bytes(32)),
        lambda: desk.machine.vouch("ann", "holder", IDENTITIES["ann"].public_key),
    ):
        with pytest.raises(DataError, match="is taken"):
            attempt()
    again = desk.machine.vouch("ann", "both", IDENTITIES["ann"].public_key)
    assert writes_of(again) == []  # the server may not have heard it
    (credential,) = desk.perform(again)
    assert (credential.epoch, credential.contributor) == (first.id, "ann")
    fresh = desk.machine.vouch("fay", "both", Identity.create().public_key)
    assert all(each.irreversible for each in writes_of(fresh))


def test_a_newcomer_may_join_the_present_epoch_and_none_before():
    desk = full_desk()
    desk.perform(desk.machine.invite("eve", "contributor", bytes(32)))
    assert desk.machine.people["eve"].after == 0
    desk.begin()
    desk.perform(desk.machine.invite("fay", "contributor", bytes(32)))
    assert desk.machine.people["fay"].after == 0
    desk.perform(desk.machine.end(0, bytes(32)))
    desk.perform(desk.machine.invite("gil", "contributor", bytes(32)))
    assert desk.machine.people["gil"].after == 1


def test_a_replaced_person_is_out_until_it_comes_with_another_key():
    desk = full_desk()
    first = desk.begin()
    desk.perform(desk.machine.replace("ann", token := bytes(range(32))))
    assert desk.machine.people["ann"].after == first.number
    with pytest.raises(NotEnrolled):
        desk.hear(holder_key("ann", after=1))
    old, fresh = IDENTITIES["ann"].public_key, Identity.create()
    for _ in range(2):
        with pytest.raises(NotEnrolled, match="admitted before, as ann"):
            desk.machine.admit("ann", old, proof(token, "test", "ann", old))
        desk.restart()
    evidence = proof(token, "test", "ann", fresh.public_key)
    sent = desk.perform(desk.machine.admit("ann", fresh.public_key, evidence))
    assert sent == []  # no credential: it has no part in the present epoch
    with pytest.raises(BadSignature):
        desk.hear(holder_key("ann", after=1))
    desk.restart()
    desk.perform(desk.machine.end(0, bytes(32)))
    desk.hear(holder_key("ann", after=1, signer=fresh))
    desk.hear(*(holder_key(name, after=1) for name in NAMES[1:]))
    second = desk.begin()
    assert second.holders[0].signing_key == fresh.public_key


def test_a_replaced_persons_unused_key_is_forgotten():
    """The old hand signed it: with the new signing key beside it nobody could open its shares."""
    desk = full_desk()
    desk.perform(desk.machine.replace("ann", token := bytes(range(32))))
    fresh = Identity.create().public_key
    desk.perform(desk.machine.admit("ann", fresh, proof(token, "test", "ann", fresh)))
    assert "ann" in desk.machine.missing()
    desk.restart()
    assert desk.machine.missing() == {"ann": "it has announced no key"}


def test_a_revoked_person_does_not_come_back():
    desk = full_desk()
    desk.perform(desk.machine.revoke("ann"))
    assert desk.machine.revoke("ann") == []  # the server may not have heard it
    for attempt in (
        lambda: desk.machine.replace("ann", bytes(32)),
        lambda: desk.machine.invite("ann", "both", bytes(32)),
        lambda: desk.machine.vouch("ann", "both", IDENTITIES["ann"].public_key),
    ):
        with pytest.raises(DataError):
            attempt()
    with pytest.raises(DataError, match="nobody is called eve"):
        desk.machine.revoke("eve")


def test_everybody_is_in_a_state_of_the_table():
    desk = full_desk()
    desk.perform(desk.machine.invite("eve", "both", bytes(32)))
    desk.perform(desk.machine.revoke("bob"))
    desk.perform(desk.machine.replace("cem", bytes(32)))
    states = {name: person.state for name, person in desk.machine.people.items()}
    assert states == {
        "ann": "admitted",
        "bob": "revoked",
        "cem": "invited",
        "dea": "admitted",
        "eve": "invited",
    }
    known = set(life.PERSON) | {t for row in life.PERSON.values() for t in row.values()}
    assert set(states.values()) <= known


def test_tokens_never_print():
    desk = Desk()
    token = bytes(range(200, 232))
    effects = desk.machine.invite("ann", "both", token)
    shown = f"{effects} {desk.machine.people} {desk.machine} {desk.machine.people['ann'].__rich_repr__()}"
    assert repr(token)[2:-1] not in shown
    assert token.hex() not in shown


# --- lost memory ----------------------------------------------------------------------------------


def suspended_desk() -> Desk:
    desk = full_desk()
    desk.begin()
    old = MemoryStore(desk.store.snapshot())
    old.rolled_back = True
    return Desk(old)


def test_an_older_copy_signs_nothing_until_it_is_told_how_far_it_was():
    desk = suspended_desk()
    assert desk.machine.suspended
    desk.store.rolled_back = False  # its first commit made the copy current
    desk.restart()
    attempts = [
        lambda: desk.machine.begin(FOUR, FIRST),
        lambda: desk.machine.end(0, bytes(32)),
        lambda: desk.machine.invite("eve", "both", bytes(32)),
        lambda: desk.machine.replace("ann", bytes(32)),
        lambda: desk.machine.revoke("ann"),
        lambda: desk.machine.vouch("eve", "both", bytes(32)),
        lambda: desk.machine.admit("ann", bytes(32), bytes(32)),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match="recover --above"):
            attempt()


def test_a_recovered_operator_goes_on_above_with_the_people_that_were_confirmed():
    desk = suspended_desk()
    with pytest.raises(DataError, match="--above 1 at least"):
        desk.machine.recover(0, NAMES)
    with pytest.raises(DataError, match="eve is not among the people"):
        desk.machine.recover(7, [*NAMES, "eve"])
    desk.perform(desk.machine.recover(7, ["ann", "bob", "cem"]))
    desk.store.rolled_back = False
    desk.restart()
    assert not desk.machine.suspended
    assert desk.machine.people["dea"].state == "revoked"
    assert set(desk.machine.missing()) == {"ann", "bob", "cem"}  # who knows where their keys stand
    desk.hear(*(holder_key(name, after=7) for name in NAMES[:3]))
    assert desk.begin(of(3)).number == 8


def test_who_was_invited_may_be_confirmed_too():
    desk = full_desk()
    desk.perform(desk.machine.invite("eve", "both", bytes(32)))
    old = MemoryStore(desk.store.snapshot())
    old.rolled_back = True
    lost = Desk(old)
    lost.perform(lost.machine.recover(7, ["ann", "eve"]))
    assert lost.machine.people["eve"].state == "invited"


def test_the_servers_keys_are_that_of_the_epoch_and_that_of_the_next():
    desk = full_desk()
    assert desk.machine.server_keys == {SERVER.public_key}
    desk.begin()
    desk.perform(desk.machine.trust_server(b"k" * 32))
    assert desk.machine.server_keys == {SERVER.public_key, b"k" * 32}


def test_an_epoch_that_was_forgotten_is_ended_and_no_other_is():
    """The server shows it; our own signature is the proof that it is ours."""
    desk = full_desk()
    before = MemoryStore(desk.store.snapshot())
    epoch = desk.begin()
    with pytest.raises(LocalProtocolError, match="epoch 1 is remembered here"):
        desk.machine.adopt(epoch)
    before.rolled_back = True
    older = Desk(before)
    with pytest.raises(StorageError, match="recover --above"):
        older.machine.adopt(epoch)
    older.perform(older.machine.recover(0, NAMES))
    with pytest.raises(
        DataError, match="recover --above 1"
    ):  # else its number would be signed twice
        older.machine.adopt(epoch)
    older.perform(older.machine.recover(1, NAMES))
    with pytest.raises(BadSignature):
        older.machine.adopt(signed(epoch, ENROLMENT))
    older.perform(older.machine.adopt(epoch))
    before.rolled_back = False
    older.restart()
    (end,) = older.perform(older.machine.end(5, bytes(32)))
    assert isinstance(end, EpochEnd)
    assert (end.epoch, end.last_version) == (epoch.id, 5)
    assert Ed25519Verifier().verify(OPERATOR.public_key, statement(end), end.signature)


def test_keys_announced_to_the_older_copy_count_as_used():
    desk = full_desk()
    keys = list(desk.machine._announced.values())
    old = MemoryStore(desk.store.snapshot())
    old.rolled_back = True
    desk = Desk(old)
    desk.perform(desk.machine.recover(3, NAMES))
    with pytest.raises(LocalProtocolError, match="would be missing"):
        desk.begin()
    desk.restart()
    for key in keys:
        assert desk.machine.hear(key.name, key) == []  # known, and used
    assert set(desk.machine.missing()) == set(NAMES)


def test_a_store_without_a_memory_is_not_a_new_operator():
    desk = Desk(MemoryStore())
    assert desk.machine.suspended
    with pytest.raises(StorageError):
        desk.machine.invite("ann", "both", bytes(32))


def test_a_restored_folder_is_noticed_on_a_real_store(tmp_path):
    path, anchors = tmp_path / "operator.db", tmp_path / "anchors"

    def opened() -> ParticipantStore:
        return ParticipantStore(path, "operator", anchor_folder=anchors)

    with opened() as store:
        store.commit(found())
        desk = Desk(store)
        desk.enrol(*NAMES)
        desk.hear(*(holder_key(name) for name in NAMES))
    copy = path.read_bytes()
    with opened() as store:
        first = Desk(store).begin()
    with opened() as store:
        assert Desk(store).begin() == first  # no copy: it goes on
    path.with_name("operator.db-wal").unlink(missing_ok=True)
    path.write_bytes(copy)
    for _ in range(2):
        with opened() as store, pytest.raises(StorageError, match="older copy"):
            Desk(store).begin()
    with opened() as store:
        desk = Desk(store)
        desk.perform(desk.machine.recover(1, NAMES))
        desk.hear(*(holder_key(name, after=1) for name in NAMES))
        assert desk.begin().number == 2


# --- crashes --------------------------------------------------------------------------------------


class Crash(Exception):  # noqa: N818 - an event
    """The process is gone."""


class Fragile(Desk):
    """Dies before a commit, after it, or after a message has left."""

    def __init__(self, crash_at: int) -> None:
        self.boundary, self.crash_at = 0, crash_at
        self.sent: list = []
        super().__init__()

    def perform(self, effects):
        self._pass()
        self.store.commit(writes_of(effects))
        self._pass()
        messages = [send.message for send in sends_of(effects)]
        self.sent += messages
        self._pass()
        return messages

    def _pass(self) -> None:
        self.boundary += 1
        if self.boundary == self.crash_at:
            raise Crash


def steps(desk: Desk):
    """Two epochs, each step of which may be done again."""
    versions = itertools.count(1)  # a server says something else each time
    for name in NAMES:
        yield lambda name=name: desk.enrol(name)
    for after in (0, 1):
        for name in NAMES:
            key = holder_key(name, after=after)
            yield lambda key=key: desk.hear(key)
        yield lambda after=after: desk.begin(first=first_at(after))
        if after == 0:
            yield lambda: desk.perform(desk.machine.end(next(versions), bytes(32)))


def play(crash_at: int = 0) -> Fragile:
    desk = Fragile(crash_at)
    for step in steps(desk):
        try:
            step()
        except Crash:
            desk.restart()
            desk.hear(*(holder_key(n, after=desk.machine.number) for n in desk.machine.people))
            step()
    return desk


def signed_twice(desk: Fragile) -> bool:
    """Whether two different epochs with one number left, two ends, or one key in two epochs."""
    epochs = {digest_of(m): m for m in desk.sent if isinstance(m, Epoch)}
    ends = {digest_of(m) for m in desk.sent if isinstance(m, EpochEnd)}
    keys = [key for epoch in epochs.values() for key in sealing_keys(epoch)]
    return len(ends) != 1 or len(epochs) != 2 or len(set(keys)) != len(keys)


def test_a_crash_at_every_boundary():
    boundaries = play().boundary
    assert boundaries > 40
    for crash_at in range(4, boundaries + 1):  # the first three are before the story begins
        assert not signed_twice(play(crash_at)), f"the crash was at boundary {crash_at}"


# --- the property ---------------------------------------------------------------------------------

KEYS = [holder_key(name, after=after) for name in NAMES for after in (0, 0, 1, 2) for _ in range(2)]


def forged(chance: random.Random) -> HolderKey:
    """A key with one field changed, or signed by somebody else."""
    key = chance.choice(KEYS)
    field = chance.choice(HolderKey.__struct_fields__)
    other = getattr(chance.choice(KEYS), field)
    return chance.choice(
        [
            msgspec.structs.replace(key, **{field: other}),
            signed(key, IDENTITIES[chance.choice(NAMES)]),
            holder_key(key.name, sealing=SUNK),
        ]
    )


class History:
    """Anything a server, the people and fate can do, with a judge of what is signed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.desk = Desk()
        self.desk.enrol(*NAMES)
        self.numbers: list[int] = [0]
        self.epochs: dict[int, Epoch] = {}
        self.used: dict[bytes, int] = {}
        self.own = {(key.name, key.sealing_key) for key in KEYS}
        self.copies = [self.desk.store.snapshot()]

    def run(self, count: int) -> None:
        moves = [*[self.hear] * 8, self.begin, self.begin, self.end]
        moves += [self.crash, self.back_up, self.roll_back]
        for _ in range(count):
            self.chance.choice(moves)()
            self.judge_number()

    def hear(self) -> None:
        name = self.chance.choice(NAMES)
        replayed = [key for key in KEYS if key.name == name]
        key = self.chance.choice([forged(self.chance), self.chance.choice(replayed)])
        fresh = holder_key(name, after=self.desk.machine.number)
        self.own.add((name, fresh.sealing_key))
        with suppress(Refused):
            self.desk.perform(self.desk.machine.hear(name, self.chance.choice([key, fresh])))

    def begin(self) -> None:
        without = [n for n in NAMES if self.chance.random() < 0.1]
        fitting = max(2, len(NAMES) - len(without))
        parameters = of(self.chance.choice([fitting, fitting, fitting, 2, 3, 4]))
        try:
            self.desk.expect()
            effects = self.desk.machine.begin(parameters, FIRST, without=without)
        except (LocalProtocolError, WrongEpoch, StorageError):
            return
        if self.chance.random() < 0.1:  # a crash before the commit: nobody has it
            self.desk.restart()
            return
        epoch = self.desk.perform(effects)[0]
        self.judge_epoch(epoch, without)

    def judge_epoch(self, epoch: Epoch, without: list[str]) -> None:
        assert self.epochs.setdefault(epoch.number, epoch) == epoch
        assert [h.name for h in epoch.holders] == [n for n in NAMES if n not in without]
        for holder in epoch.holders:
            assert self.used.setdefault(holder.sealing_key, epoch.number) == epoch.number
            assert (holder.name, holder.sealing_key) in self.own

    def judge_number(self) -> None:
        machine = self.desk.machine
        if not machine.suspended:
            assert machine.number >= max(self.epochs, default=0)
            assert machine.number >= self.numbers[-1]
            self.numbers.append(machine.number)

    def end(self) -> None:
        with suppress(LocalProtocolError, StorageError):
            self.desk.perform(self.desk.machine.end(self.chance.randrange(5), bytes(32)))

    def crash(self) -> None:
        self.desk.restart()

    def back_up(self) -> None:
        self.copies.append(self.desk.store.snapshot())

    def roll_back(self) -> None:
        """An older copy, which its anchor gives away; its owner says how far it was."""
        if self.chance.random() < 0.7:
            return
        store = MemoryStore(self.chance.choice(self.copies))
        store.rolled_back = True
        self.desk = Desk(store)
        store.rolled_back = False
        if self.chance.random() < 0.5:
            return
        above = max(self.numbers[-1], self.desk.machine.number)
        self.desk.perform(self.desk.machine.recover(above, NAMES))


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_whatever_happens_the_counter_and_the_keys_never_go_back(seed):
    """After a recovery an old key may pass: what was forgotten cannot be known, and participants refuse it."""
    history = History(seed)
    history.roll_back = lambda: None
    history.run(100)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_no_number_is_signed_twice_even_after_old_copies(seed):
    history = History(seed)
    history.used = Forgetful()
    history.run(60)


class Forgetful(dict):
    """Judges no key: an older copy cannot know which were used."""

    def setdefault(self, key, default):
        return default


@pytest.mark.soak
@settings(max_examples=10_000)
@given(st.integers(0, 2**32))
def test_ten_thousand_histories(seed):
    history = History(seed)
    history.roll_back = lambda: None
    history.run(60)


# --- negative controls ----------------------------------------------------------------------------


def first_failure(count: int = 300) -> None:
    for seed in range(count):
        history = History(seed)
        history.roll_back = lambda: None
        history.run(60)


def test_without_memory_of_used_keys_the_judge_objects(monkeypatch):
    monkeypatch.setattr("basecagg.protocol.operator._hash", lambda key: os.urandom(32).hex())
    with pytest.raises(AssertionError):
        first_failure()


def test_without_the_signature_of_a_key_the_judge_objects(monkeypatch):
    monkeypatch.setattr(Ed25519Verifier, "verify", lambda self, key, said, signature: True)
    with pytest.raises(AssertionError):
        first_failure()


def test_without_the_rule_on_missing_holders_the_judge_objects(monkeypatch):
    real = Operator.holders
    monkeypatch.setattr(
        Operator,
        "_committee",
        lambda self, without: [
            Seat(n, self.people[n].signing_key, self._announced[n].sealing_key)
            for n in real(self, without)
            if n in self._announced
        ],
    )
    with pytest.raises(AssertionError):
        first_failure()


def test_an_operator_that_sends_before_it_writes_is_found(monkeypatch):
    def hasty(self, effects):
        self._pass()
        messages = [send.message for send in sends_of(effects)]
        self.sent += messages
        self._pass()
        self.store.commit(writes_of(effects))
        self._pass()
        return messages

    monkeypatch.setattr(Fragile, "perform", hasty)
    assert any(signed_twice(play(crash_at)) for crash_at in range(4, play().boundary + 1))
