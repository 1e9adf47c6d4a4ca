"""t moves one certified step at a time and never back; τ stays in 0…τ_max; one version is one model."""

import msgspec
import pytest
from parties import (
    USERS,
    all_refuse,
    answers,
    ask,
    certificate_of,
    certify,
    deal,
    endorse,
    holder_at,
    intercept,
    make_federation,
    one_round,
    request_for,
    reveals,
    submit,
    unmasked_sum,
    weigh,
)

from basecagg.errors import (
    BadCertificate,
    MaskExpired,
    MaskTaken,
    StaleUpdate,
    WrongModel,
    WrongVersion,
)
from basecagg.protocol.holder import Holder
from basecagg.protocol.messages import CertifiedRequest, Endorsement, Parcel

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


def certificate(federation, version):
    return federation.server.opening._past.opened


def uploads(federation, *names, **changes):
    return [intercept(federation, name, **changes) for name in names]


@MODES
def test_a_version_that_has_passed(consistency):
    federation = make_federation(consistency=consistency)
    members = uploads(federation, "ann", "bob", "cat")
    for _ in range(2):
        one_round(federation)
    all_refuse(federation, request_for(federation, members, 0), WrongVersion)


@MODES
def test_the_same_members_again_under_a_new_t(consistency):
    """s̄ would differ, and two sums with different weights are two equations."""
    federation = make_federation(consistency=consistency)
    old = federation.server.version, federation.server.head
    submitted = [submit(federation, name, base=old[0], head=old[1]) for name in USERS[:3]]
    parcels = record(federation, Parcel)
    federation.network.run()
    assert federation.server.version == 1
    again = request_for(federation, submitted, 1, certificate(federation, 0))
    all_refuse(federation, again, MaskTaken)
    assert not parcels


def record(federation, kind):
    seen = []
    federation.network.observers.append(
        lambda letter: seen.append(letter) if isinstance(letter.message, kind) else None
    )
    return seen


@pytest.mark.parametrize("version", [1, 2, 7, 2**61])
def test_a_skipped_version(version):
    """Whatever the server shows as the certificate of t − 1."""
    federation = make_federation()
    first = request_for(federation, uploads(federation, *USERS[:3]))
    real = certificate_of(first, endorse(federation, first))
    members = uploads(federation, "ann", "bob", "cat")
    all_refuse(federation, request_for(federation, members, version, None), WrongVersion)
    if version > 1:
        all_refuse(federation, request_for(federation, members, version, real), WrongVersion)


def test_a_version_after_a_request_that_nobody_certified():
    federation = make_federation()
    first = request_for(federation, uploads(federation, *USERS[:3]))
    votes = endorse(federation, first)
    members = uploads(federation, "ann", "bob", "cat")
    short = certificate_of(first, votes[:4])
    all_refuse(federation, request_for(federation, members, 1, short), BadCertificate)
    lie = msgspec.structs.replace(certificate_of(first, votes), version=4)
    all_refuse(federation, request_for(federation, members, 5, lie), BadCertificate)
    true = request_for(federation, members, 1, certificate_of(first, votes))
    assert len(endorse(federation, true)) == 7


@MODES
def test_an_update_older_than_tau_max(consistency):
    federation = make_federation(consistency=consistency, max_staleness=2)
    members = uploads(federation, "ann", "bob", "cat")
    for turn in range(3):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    request = request_for(federation, members, 3, certificate(federation, 2))
    all_refuse(federation, request, StaleUpdate)


@MODES
def test_an_update_newer_than_the_model(consistency):
    federation = make_federation(consistency=consistency, min_per_version=1, repeated_versions=True)
    members = uploads(federation, "ann", "bob")
    members += uploads(federation, "cat", base=1)
    all_refuse(federation, request_for(federation, members), WrongVersion)


@MODES
def test_two_models_for_one_version_in_one_request(consistency):
    """A model made for one user would mark that user's update in the sum."""
    federation = make_federation(consistency=consistency)
    members = uploads(federation, "ann", "bob")
    members += uploads(federation, "victim", head=bytes(32))
    all_refuse(federation, request_for(federation, members), WrongModel)


@MODES
def test_two_models_for_one_version_in_two_requests(consistency):
    federation = make_federation(consistency=consistency)
    one_round(federation)
    members = uploads(federation, "ann", "bob", "victim", base=0, head=bytes(32))
    all_refuse(
        federation, request_for(federation, members, 1, certificate(federation, 0)), WrongModel
    )


@MODES
def test_a_refused_request_does_not_fix_a_model(consistency):
    """Model hashes are remembered from endorsed requests only, so a refused one blocks nothing."""
    federation = make_federation(consistency=consistency)
    wrong = uploads(federation, "ann", "bob", head=bytes(32))
    wrong += uploads(federation, "cat")
    all_refuse(federation, request_for(federation, wrong), WrongModel)
    one_round(federation)
    assert federation.server.version == 1


@MODES
def test_a_mask_that_has_expired(consistency):
    federation = make_federation(consistency=consistency, max_staleness=2, mask_lifetime=3)
    federation.contributor("ann")
    members = uploads(federation, "ann", base=3, head=bytes(32))
    for turn in range(3):
        one_round(federation, [USERS[(turn + step) % 7] for step in range(3)])
    members += uploads(federation, "bob", "cat", base=3, head=bytes(32))
    request = request_for(federation, members, 3, certificate(federation, 2))
    assert len(ask(federation, "user-0", request)) == 1  # its last version, and the holder at 2
    federation = make_federation(consistency="honest-server", max_staleness=2, mask_lifetime=3)
    members = uploads(federation, "ann", "bob", "cat", base=4, head=bytes(32))
    all_refuse(federation, request_for(federation, members, 4), MaskExpired)


# --- time does not run back -------------------------------------------------------------------


def endorsed_at_0_and_then_1(federation):
    """Both requests are certified, and none was answered yet."""
    first = request_for(federation, uploads(federation, "ann", "bob", "cat"))
    votes = endorse(federation, first)
    question = CertifiedRequest(first, certificate_of(first, votes))
    members = uploads(federation, "dan", "eve", "fay")
    endorse(federation, request_for(federation, members, 1, question.certificate))
    assert {federation.holder(name).version for name in USERS} == {1}
    return question


def test_a_late_answer_does_not_turn_time_back():
    federation = make_federation()
    question = endorsed_at_0_and_then_1(federation)
    assert len(answers(federation, question)) == 7
    assert {federation.holder(name).version for name in USERS} == {1}
    for name in USERS:
        federation.start(holder_at(name))
    assert {federation.holder(name).version for name in USERS} == {1}
    assert len(answers(federation, question)) == 7  # and it can be asked for again


def replay_after_expiry(federation):
    """Spend a mask, let it expire, turn time back with a late answer, and deliver the mask again.

    The server opens two sums with the victim in both. Returns what it learns from the second, or None.
    """
    parcels = record(federation, Parcel)
    previous, version = None, 0

    def members(*names, base):
        deal(federation, *names, version=version)
        return uploads(federation, *names, base=base)

    deal(federation, "victim", version=0)  # its last version is 3
    certificates = []
    for version in range(4):
        names = ("victim", "friend", "pal") if version == 1 else ("ann", "bob", "cat")
        deal(federation, *names[-2:] if version == 1 else names, version=version)
        chosen = uploads(federation, *names, base=version)
        late = certify(federation, request_for(federation, chosen, version, previous))
        previous = late.certificate
        certificates.append(previous)
        if version == 1:
            victim = chosen[0]
            assert len(answers(federation, late)) == 7
    beyond = members("dan", "eve", "fay", base=3)
    assert len(endorse(federation, request_for(federation, beyond, 4, previous))) == 7
    assert len(answers(federation, late)) == 7
    for letter in parcels:
        if letter.message.dealing.masks[0] == victim.ticket.mask:
            federation.network.deliver(letter.to, [letter])
    federation.network.in_flight.clear()
    version = 3
    others = members("friend", "pal", base=3)
    second = request_for(federation, [victim, *others], 3, certificates[2])
    votes = endorse(federation, second)
    if not votes:
        return None
    collected = answers(federation, CertifiedRequest(second, certificate_of(second, votes)))
    total = unmasked_sum(federation, second, [victim, *others], collected)
    known = sum(weigh(federation, each.ticket, 3) * each.quantized for each in others)
    return reveals(federation, total - known, weigh(federation, victim.ticket, 3), victim)


def test_a_spent_mask_does_not_come_back_after_its_expiry():
    federation = make_federation(
        max_staleness=2, mask_lifetime=3, min_per_version=1, repeated_versions=True
    )
    assert replay_after_expiry(federation) is None
    assert {type(refusal) for _, refusal in federation.network.refusals} == {
        MaskExpired,  # the replayed parcels
        WrongVersion,  # the second request
    }


def test_control_if_time_ran_back_the_mask_would_open_twice(monkeypatch):
    advance = Holder._advance

    def turn_back(self, request):
        effects = advance(self, request)
        self._progress.version = request.version
        return effects

    monkeypatch.setattr(Holder, "_advance", turn_back)
    federation = make_federation(
        max_staleness=2, mask_lifetime=3, min_per_version=1, repeated_versions=True
    )
    assert replay_after_expiry(federation) is True


def test_a_repeated_endorsement_is_identical():
    federation = make_federation()
    request = request_for(federation, uploads(federation, *USERS[:3]))
    first, second = (endorse(federation, request) for _ in range(2))
    assert first == second
    assert all(isinstance(vote, Endorsement) for vote in first)


def test_control_without_the_version_rule_a_server_skips_ahead(monkeypatch):
    """It could then age updates at will, and weigh them as it likes."""
    for rule in ("_require_version", "_require_history"):
        monkeypatch.setattr(Holder, rule, lambda self, request: None)
    federation = make_federation(weights="field")
    request = request_for(federation, uploads(federation, *USERS[:3]), 10)
    assert len(endorse(federation, request)) == 7
    assert [weigh(federation, ticket, 10) < 64 for ticket in request.tickets] == [True] * 3
