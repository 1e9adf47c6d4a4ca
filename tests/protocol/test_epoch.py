"""What everyone looks up in an epoch. Who may not be believed is tested in claims/."""

import dataclasses

import msgspec
import pytest
from parties import USERS, make_federation, parameters

from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import BadSignature, NotEnrolled, WrongEpoch
from basecagg.protocol import messages
from basecagg.protocol.epoch import NEVER, _remember, accept
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import (
    Certificate,
    Closing,
    Credential,
    Endorsement,
    MaskName,
    Receipt,
    signed,
    statement,
)


@pytest.fixture(scope="module")
def federation():
    return make_federation()


@pytest.fixture(scope="module")
def agreement(federation):
    return federation.agreement


def test_the_id_covers_everything_but_the_signature(agreement):
    epoch = unpack(pack(agreement.epoch), MAX_CONTROL_BYTES)
    assert epoch == agreement.epoch
    assert epoch.id == agreement.id
    assert len(agreement.id) == 32


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"correctness": "honest-holders"}, 5),  # the quorum
        ({"liars": 1, "max_dropouts": 1}, 6),
        ({"consistency": "honest-server"}, 4),
        ({"consistency": "honest-server", "correctness": "agreed"}, 5),
    ],
)
def test_how_many_holders_must_keep_a_share(changes, needed):
    assert make_federation(**changes).agreement.holders_needed == needed


def test_holders_are_found_by_name(agreement):
    assert [agreement.holder_index(name) for name in USERS] == list(range(7))
    assert agreement.holder_index("server") is None
    assert agreement.holder_names == USERS


def test_points_are_distinct_and_nonzero(agreement):
    assert len({*agreement.epoch.points, 0}) == 8


def test_a_message_of_another_epoch(agreement):
    agreement.require_id(agreement.id)
    with pytest.raises(WrongEpoch):
        agreement.require_id(bytes(32))


def test_who_signed(federation, agreement):
    vote = signed(
        Endorsement(agreement.id, 0, 0, bytes(32), bytes(32), 3), federation.identity("user-3")
    )
    assert agreement.signed_by_holder(vote, 3, vote.signature)
    for other in (0, 6, 7, -1, 10**9):
        assert not agreement.signed_by_holder(vote, other, vote.signature)
        with pytest.raises(BadSignature):
            agreement.require_signed_by_holder(vote, other, vote.signature)
    last = signed(
        Endorsement(agreement.id, 0, 0, bytes(32), bytes(32), 6), federation.identity("user-6")
    )
    assert not agreement.signed_by_holder(last, -1, last.signature)


def test_never_is_the_last_moment_that_fits():
    """Also in an epoch that an older version signed."""
    assert NEVER == 2**62 - 1


def test_the_least_that_anybody_insists_on():
    assert LocalFloor() == LocalFloor(2, 1, "honest-server")


def test_who_is_enrolled(federation, agreement):
    federation.contributor("ann")
    credential = federation._credentials["ann"]
    agreement.require_enrolled(credential, "ann")
    with pytest.raises(NotEnrolled):
        agreement.require_enrolled(credential, "bob")
    with pytest.raises(NotEnrolled):
        make_federation().agreement.require_enrolled(credential, "ann")


def test_what_is_remembered_stays_small(federation, agreement):
    """Statements of a size that the sender chooses are not kept, and of certificates the last few only."""
    before = messages._known_statement.cache_info().currsize
    masks = tuple(MaskName(f"stranger-{index}", bytes(16)) for index in range(100))
    for version in range(20):
        statement(Closing(agreement.id, version, masks, "burned"))
        statement(Receipt(agreement.id, version, masks))
    assert messages._known_statement.cache_info().currsize == before
    for version in range(20):
        votes = []
        for index, name in enumerate(USERS):
            vote = Endorsement(agreement.id, version, 0, bytes(32), bytes(32), index)
            votes.append((index, signed(vote, federation.identity(name)).signature))
        certificate = Certificate(agreement.id, version, 0, bytes(32), bytes(32), tuple(votes))
        agreement.require_certificate(certificate)
    assert len(agreement._certificates) <= 8


def test_parameters_travel_unchanged(agreement):
    read = unpack(pack(agreement.epoch), MAX_CONTROL_BYTES).parameters
    assert read == parameters()
    assert dataclasses.asdict(read) == dataclasses.asdict(agreement.parameters)


def test_nobody_is_called_as_the_server_is(federation):
    """A message's sender decides where it goes: a holder of this name would shadow the server."""
    epoch = federation.agreement.epoch
    first, *others = epoch.holders
    shadow = msgspec.structs.replace(first, name="server")
    forged = signed(
        msgspec.structs.replace(epoch, holders=(shadow, *others)), federation.identity("operator")
    )
    with pytest.raises(WrongEpoch, match="may be called 'server'"):
        accept(forged, federation.identity("operator").public_key, federation.agreement.verifier)
    credential = Credential(federation.agreement.id, "server", bytes(32))
    with pytest.raises(NotEnrolled, match="may be called 'server'"):
        federation.agreement.require_enrolled(credential, "server")


def test_what_was_found_good_is_remembered_and_the_oldest_forgotten():
    known = {}
    for good in "abc":
        _remember(good, known, 2)
    assert list(known) == ["b", "c"]


def test_a_known_credential_is_checked_once():
    federation = make_federation()
    federation.contributor("user-0")
    agreement, credential = federation.agreement, federation._credentials["user-0"]
    agreement.checks_saved = 0
    agreement._credentials.clear()
    for _ in range(3):
        agreement.require_enrolled(credential, "user-0")
    assert agreement.checks_saved == 2
