"""Every cheat of a server leaves a file that convicts it; nobody else can make one against an honest server."""

from __future__ import annotations

import random

import numpy as np
import pytest
from changes import changes
from cheats import (
    CHEATS,
    MISCALCULATIONS,
    after,
    evidence,
    lies,
    miscalculation,
    operator_key,
    parts_of,
    release,
    replaced_model,
    resigned,
    unasked_sum,
    with_answers,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from parties import USERS, deal, holder_at, make_federation, one_round, released, submit

from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.channels.wire import MAGIC, pack, unpack_file
from basecagg.errors import ChannelError, NotProven, PartsDamaged, Refused
from basecagg.protocol.messages import Answer, History, encode
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import Account, Caught, Fork, Miscalculation
from basecagg.protocol.recomputation import judge, recompute
from basecagg.storage.in_memory import MemoryStore

VERIFIER = Ed25519Verifier()


def handed_on(federation, proof, key=None) -> str:
    """What a judge makes of the file."""
    file = pack(evidence(federation, proof))
    return judge(unpack_file(file), key or operator_key(federation), VERIFIER)


# --- every cheat is found, and leaves its file ------------------------------------------------


@pytest.mark.parametrize("mode", ["certified", "honest-server"])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("cheat", CHEATS)
def test_every_cheat_leaves_a_file_that_convicts(cheat, rounds, mode):
    federation, parts = after(rounds, consistency=mode)
    assert "the server" in handed_on(federation, CHEATS[cheat](federation, parts))


@pytest.mark.parametrize("cheat", MISCALCULATIONS)
def test_a_participant_that_makes_the_version_again_is_stopped_by_it(cheat):
    """Without doing so it notices nothing: the release is signed and contradicts no other."""
    federation, parts = after()
    cheated = cheat(federation, parts)
    watch = ModelWatch(federation.agreement, MemoryStore())
    assert watch.hear(cheated.release)
    with pytest.raises(Caught) as caught:
        watch.check(cheated)
    assert caught.value.proof == Miscalculation(cheated)


def test_what_a_release_says_is_compared_with_what_was_heard():
    federation, parts = after()
    watch = ModelWatch(federation.agreement, MemoryStore())
    watch.hear(CHEATS["fork"](federation, parts).second)
    with pytest.raises(Caught) as caught:
        watch.check(parts)
    assert isinstance(caught.value.proof, Fork)


@pytest.mark.parametrize("cheat", CHEATS)
def test_words_of_somebody_else_prove_nothing(cheat):
    federation, parts = after()
    proof = resigned(CHEATS[cheat](federation, parts), Identity.create())
    with pytest.raises(NotProven, match="signature"):
        handed_on(federation, proof)


@pytest.mark.parametrize("cheat", CHEATS)
def test_another_operators_epoch_proves_nothing(cheat):
    federation, parts = after()
    with pytest.raises(NotProven, match="operator"):
        handed_on(federation, CHEATS[cheat](federation, parts), Identity.create().public_key)


def test_honest_words_prove_nothing():
    federation, parts = after()
    request = replace(parts.request, signature=b"")
    with pytest.raises(NotProven, match="agree"):
        handed_on(federation, Miscalculation(parts))
    with pytest.raises(NotProven, match="agree"):
        handed_on(federation, Fork(parts.release, parts.release))
    with pytest.raises(NotProven, match="agree"):
        handed_on(federation, Fork(parts.release, parts.request))
    with pytest.raises(NotProven, match="signature"):
        handed_on(federation, Fork(parts.release, request))


def test_words_of_two_epochs_prove_nothing():
    """A server may serve several, each with a chain of its own."""
    federation, parts = after()
    elsewhere = release(federation, replaced_model(federation, parts), epoch=bytes(32)).release
    with pytest.raises(NotProven, match="epoch"):
        handed_on(federation, Fork(parts.release, elsewhere))


def test_a_release_goes_on_from_the_chain_that_its_sum_was_asked_for_in():
    federation, parts = after(3)
    link = parts.release.history.links[-1]
    other = release(federation, parts, history=History(2, bytes(32), (link,)))
    assert "another chain" in handed_on(federation, Miscalculation(other))


def test_a_sum_that_holders_did_not_certify_convicts_nobody_but_is_not_trained_from():
    """Its certificate cannot exist; whoever shows the parts may have left it out."""
    federation, parts = after()
    with pytest.raises(Refused) as refusal:
        recompute(federation.agreement, unasked_sum(federation, parts))
    assert not isinstance(refusal.value, Caught)


def test_without_certificates_the_same_sum_convicts():
    federation, parts = after(consistency="honest-server")
    assert "another request" in handed_on(
        federation, miscalculation(unasked_sum)(federation, parts)
    )


# --- framing: an honest server is never convicted ---------------------------------------------

UNCHECKED = (".request.signature", ".certificate", ".state")
"""Changes here may leave the parts whole: the release names the request by its statement, a certificate may
have votes to spare, and the first step of an epoch needs no state."""


@pytest.mark.parametrize("mode", ["certified", "honest-server"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_no_change_of_a_part_convicts_an_honest_server(rounds, mode):
    federation, parts = after(rounds, consistency=mode)
    accepted = []
    for where, changed in changes(parts):
        try:
            account = unpack_file(
                pack(Account(federation.agreement.epoch, changed, operator_key(federation)))
            )
            recompute(federation.agreement, account.parts)
            accepted += [where] if changed != parts else []
        except Caught as caught:
            pytest.fail(f"{where} frames the server: {caught}")
        except (Refused, ChannelError):
            pass
    assert [where for where in accepted if not where.startswith(UNCHECKED)] == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_garbled_file_convicts_an_honest_server(honest, data):
    federation, file = honest
    garbled = bytearray(file)
    for _ in range(data.draw(st.integers(1, 3))):
        garbled[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        filed = unpack_file(bytes(garbled))
    except ChannelError:
        return
    with pytest.raises(NotProven):
        judge(filed, operator_key(federation), VERIFIER)


@pytest.fixture(scope="module")
def honest():
    federation, parts = after()
    return federation, pack(evidence(federation, Miscalculation(parts)))


def test_a_holder_that_signs_two_answers_frames_nobody():
    """The release names the one that the server had; with the other the parts are damaged."""
    federation, parts = after()
    for index, answer in enumerate(parts.answers):
        other = [*parts.answers]
        other[index] = lies(federation, answer)
        with pytest.raises(PartsDamaged, match="answers"):
            recompute(federation.agreement, replace(parts, answers=tuple(other)))
    # A server that had that one, and released what it had without it, is convicted.
    with pytest.raises(Caught):
        recompute(federation.agreement, with_answers(federation, parts, other))


@pytest.mark.parametrize("liar", range(7))
def test_a_holder_that_lies_to_the_server_frames_nobody(liar):
    """It is named unless it came too late, and whoever makes the version again names it too."""
    federation = make_federation()
    for name in USERS[:3]:
        submit(federation, name)
    network = federation.network
    while network.in_flight:
        letters = list(network.in_flight)
        network.in_flight.clear()
        for letter in letters:
            said = letter.message
            lie = isinstance(said, Answer) and said.holder == liar
            told = replace(letter, message=lies(federation, said)) if lie else letter
            network.deliver(told.to, [told])
    parts = parts_of(federation)
    heard = federation.agreement.parameters.answers_needed
    assert parts.release.wrong == ((liar,) if liar < heard else ())
    model, _ = recompute(federation.agreement, parts)
    assert (model == federation.server.model).all()
    blame = () if parts.release.wrong else (liar,)
    hidden = release(federation, parts, wrong=blame)
    assert "blames" in handed_on(federation, Miscalculation(hidden))


@pytest.mark.parametrize("victims", [1, 2, 3, 4])
def test_a_dealer_whose_shares_do_not_fit_frames_nobody(victims):
    """However many holders it cheats: what the server makes of their answers is what everybody does."""
    federation = make_federation()
    deal(federation, *USERS[:3])
    for name in USERS[:victims]:
        store = federation.network.nodes[holder_at(name)].store
        (key,) = [key for key in store.keys("share") if key.startswith("user-0/")]
        share = np.frombuffer(store.read("share", key), "<u4").copy()
        share[0] ^= 1
        store._kinds["share"][key] = share.tobytes()
    one_round(federation)
    news = released(federation)
    if not news:
        assert victims > 1
        return
    parts = parts_of(federation)
    assert parts.release.wrong == tuple(range(victims))
    recompute(federation.agreement, parts)


def test_an_answer_without_its_signature_convicts_nobody():
    federation, parts = after()
    first, *others = parts.answers
    stripped = replace(parts, answers=(replace(first, signature=b""), *others))
    with pytest.raises(PartsDamaged):
        recompute(federation.agreement, stripped)


# --- remembering ------------------------------------------------------------------------------


def test_what_was_checked_is_remembered_for_as_long_as_it_matters():
    federation, store = make_federation(), MemoryStore()
    watch = ModelWatch(federation.agreement, store)
    for _ in range(4):
        one_round(federation)
        store.commit([*watch.check(parts_of(federation))])
    assert [int(key) for key in store.keys("checked")] == [3, 4]
    assert store.read("checked", f"{4:016d}") == federation.server.head


def test_it_works_where_only_the_present_version_may_be_trained_from():
    federation = make_federation(max_staleness=0)
    for _ in range(3):
        one_round(federation)
        recompute(federation.agreement, parts_of(federation))
    assert federation.server.version == 3


# --- hostile files ----------------------------------------------------------------------------


def test_a_file_is_read_back_as_it_was_written(honest):
    federation, file = honest
    parts = parts_of(federation)
    assert unpack_file(file) == evidence(federation, Miscalculation(parts))
    account = Account(federation.agreement.epoch, parts, operator_key(federation))
    assert unpack_file(pack(account)) == account


def test_a_file_that_was_cut_is_refused(honest):
    _, file = honest
    for length in [*range(12), *range(12, len(file), 97), len(file) - 1]:
        with pytest.raises(ChannelError):
            unpack_file(file[:length])


def test_a_file_that_is_too_large_or_none_is_refused(honest):
    federation, file = honest
    with pytest.raises(ChannelError, match="limit"):
        unpack_file(file, len(file) - 1)
    with pytest.raises(ChannelError):
        unpack_file(file + b"\0")
    with pytest.raises(ChannelError):
        unpack_file(MAGIC + encode(parts_of(federation).release))
    with pytest.raises(ChannelError):
        unpack_file(random.Random(1).randbytes(1000))
    with pytest.raises(ChannelError):
        unpack_file(MAGIC + b"\x93\xa8Evidence\xdd\xff\xff\xff\xff")
