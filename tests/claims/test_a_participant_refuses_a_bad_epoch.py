"""Everyone has pinned the operator's key and has its own floor: a server cannot change who holds shares."""

import dataclasses

import msgspec
import pytest
from parties import make_federation, parameters

from basecagg.channels.identity import Ed25519Verifier
from basecagg.channels.unprotected import NoVerifier
from basecagg.errors import BadSignature, WrongEpoch
from basecagg.maths.staleness import constant
from basecagg.protocol.epoch import accept
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import signed

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def federation():
    return make_federation()


def taken(federation, epoch, floor=None, verifier=None):
    operator = federation.identity("operator").public_key
    return accept(epoch, operator, verifier or Ed25519Verifier(), floor)


def resigned(federation, **changes):
    """What the operator itself would have to have signed."""
    return signed(replace(federation.agreement.epoch, **changes), federation.identity("operator"))


def test_the_true_one_is_taken(federation):
    assert taken(federation, federation.agreement.epoch).id == federation.agreement.id


def swapped_roster(epoch):
    first, second, *others = epoch.holders
    return replace(epoch, holders=(second, first, *others))


def roster_with_the_servers_key(epoch):
    first, *others = epoch.holders
    return replace(epoch, holders=(replace(first, sealing_key=bytes(32)), *others))


FORGERIES = {
    "swapped roster": swapped_roster,
    "a sealing key of the server's": roster_with_the_servers_key,
    "other parameters": lambda epoch: replace(epoch, parameters=parameters(buffer_size=4)),
    "another enrolment key": lambda epoch: replace(epoch, enrolment_key=bytes(32)),
    "another server": lambda epoch: replace(epoch, server_key=bytes(32)),
    "another start": lambda epoch: replace(epoch, first=replace(epoch.first, version=5)),
    "another suite": lambda epoch: replace(epoch, suite="mlkem768-x25519"),
    "another name": lambda epoch: replace(epoch, federation="other"),
    "another number": lambda epoch: replace(epoch, number=2),
    "no signature": lambda epoch: replace(epoch, signature=b""),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged(federation, forgery):
    with pytest.raises(BadSignature):
        taken(federation, FORGERIES[forgery](federation.agreement.epoch))


@pytest.mark.parametrize("signer", ["server", "enrolment", "user-0"])
def test_signed_by_anybody_but_the_operator(federation, signer):
    with pytest.raises(BadSignature):
        taken(federation, signed(federation.agreement.epoch, federation.identity(signer)))


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_has_another_id(federation, forgery):
    """So no message of the true epoch counts in it."""
    epoch = federation.agreement.epoch
    same = forgery == "no signature"
    assert (FORGERIES[forgery](epoch).id == epoch.id) is same


@pytest.mark.parametrize(
    "points",
    [(0, 2, 3, 4, 5, 6, 7), (1, 1, 3, 4, 5, 6, 7), (1, 2, 3), (2**32 - 4, 2, 3, 4, 5, 6, 7)],
    ids=["zero", "twice", "too few", "1 mod q, too large"],
)
def test_bad_points(federation, points):
    """The holder of β = 0 would own a sub-mask; two equal points are one share short."""
    with pytest.raises(WrongEpoch, match="points"):
        taken(federation, resigned(federation, points=points))


def test_points_in_another_order(federation):
    points = federation.agreement.epoch.points
    with pytest.raises(WrongEpoch, match="points"):
        taken(federation, resigned(federation, points=points[::-1]))


def test_too_many_or_too_few_holders(federation):
    holders = federation.agreement.epoch.holders
    with pytest.raises(WrongEpoch, match="6 holders are listed, N = 7"):
        taken(federation, resigned(federation, holders=holders[:6]))


def test_one_holder_twice(federation):
    first, second, *others = federation.agreement.epoch.holders
    twice = replace(second, name=first.name)
    with pytest.raises(WrongEpoch, match="twice"):
        taken(federation, resigned(federation, holders=(first, twice, *others)))


def test_one_key_for_two_holders(federation):
    """It would sign for two, and a quorum would count it twice."""
    first, second, *others = federation.agreement.epoch.holders
    twin = replace(second, signing_key=first.signing_key)
    with pytest.raises(WrongEpoch, match="same signing key"):
        taken(federation, resigned(federation, holders=(first, twin, *others)))


def test_wraparound(federation):
    with pytest.raises(WrongEpoch, match="allow_wraparound"):
        taken(federation, resigned(federation, parameters=parameters(allow_wraparound=True)))


@pytest.mark.parametrize(
    "floor",
    [
        LocalFloor(buffer_size=4),
        LocalFloor(max_colluders=2),
        LocalFloor(min_per_version=4),
        LocalFloor(buffer_size=100, max_colluders=50),
    ],
)
def test_below_the_local_floor(federation, floor):
    with pytest.raises(WrongEpoch, match="below my floor"):
        taken(federation, federation.agreement.epoch, floor)


def test_without_certificates_when_the_floor_asks_for_them():
    federation = make_federation(consistency="honest-server")
    with pytest.raises(WrongEpoch, match="certified"):
        taken(federation, federation.agreement.epoch, LocalFloor(consistency="certified"))
    assert taken(federation, federation.agreement.epoch, LocalFloor())


@pytest.mark.parametrize("consistency", ["certified", "honest-server"])
def test_with_holders_taken_to_be_honest_when_the_floor_asks_for_answers_that_agree(consistency):
    trusting = make_federation(consistency=consistency, correctness="honest-holders")
    with pytest.raises(WrongEpoch, match="agreed"):
        taken(trusting, trusting.agreement.epoch, LocalFloor(correctness="agreed"))
    assert taken(trusting, trusting.agreement.epoch, LocalFloor())
    careful = make_federation(consistency=consistency, correctness="agreed")
    assert taken(careful, careful.agreement.epoch, LocalFloor(correctness="agreed"))


def test_at_the_floor_is_enough(federation):
    floor = LocalFloor(
        buffer_size=3,
        max_colluders=1,
        consistency="certified",
        correctness="agreed",
        min_per_version=3,
        max_burns=federation.agreement.epoch.max_burns,
    )
    assert taken(federation, federation.agreement.epoch, floor)
    with pytest.raises(WrongEpoch, match="max_burns = 20 is above my limit 19"):
        taken(federation, federation.agreement.epoch, dataclasses.replace(floor, max_burns=19))


def test_who_insists_on_certificates_insists_on_three_of_each_version():
    """Unless it says otherwise; who trusts the server does not."""
    federation = make_federation(min_per_version=2, max_colluding_contributors=0, max_burns=1)
    epoch = federation.agreement.epoch
    with pytest.raises(WrongEpoch, match="m = 2 is below my floor 3"):
        taken(federation, epoch, LocalFloor(consistency="certified"))
    assert taken(federation, epoch, LocalFloor(consistency="certified", min_per_version=2))
    assert taken(federation, epoch, LocalFloor())


def test_and_on_two_more_than_work_with_the_server():
    federation = make_federation(
        weights="field", min_per_version=3, buffer_size=4, max_colluding_contributors=2, max_burns=1
    )
    certified = LocalFloor(consistency="certified", field_weights=True)
    with pytest.raises(WrongEpoch, match="m = 3 is below my floor 4"):
        taken(federation, federation.agreement.epoch, certified)


def test_and_on_weights_that_are_not_in_the_field():
    """Integers c_g·s(τ) in a sum tell more than the sum of numbers does; the same weight for all does not."""
    federation = make_federation(weights="field", max_burns=1)
    epoch, certified = federation.agreement.epoch, LocalFloor(consistency="certified")
    with pytest.raises(WrongEpoch, match="weights in the field"):
        taken(federation, epoch, certified)
    assert taken(federation, epoch, dataclasses.replace(certified, field_weights=True))
    assert taken(federation, epoch, LocalFloor())
    alike = make_federation(weights="field", staleness=constant(), max_burns=1)
    assert taken(alike, alike.agreement.epoch, certified)
    own = make_federation(max_burns=1)
    assert taken(own, own.agreement.epoch, certified)


def test_control_a_verifier_that_believes_everything_takes_a_swapped_roster(federation):
    swapped = swapped_roster(federation.agreement.epoch)
    assert taken(federation, swapped, verifier=NoVerifier()).id == swapped.id
