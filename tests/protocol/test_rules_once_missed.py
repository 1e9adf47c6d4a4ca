"""Rules that no other test missed when they were taken out. scripts/mutants/named.py takes each of them out."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from participants import Ann, Town, quick  # noqa: F401 - a fixture
from parties import (
    QUORUM,
    USERS,
    answers,
    ask,
    certify,
    endorse,
    history_at,
    intercept,
    make_federation,
    one_round,
    parameters,
    refuse,
    request_for,
)
from private import private
from test_ledger_of_records import charged, mechanism
from test_verify_command import operator_key, pedigree_of

from basecagg.channels.identity import Ed25519Verifier
from basecagg.errors import PartsDamaged, WrongModel
from basecagg.maths.randomness import WordStream
from basecagg.maths.staleness import polynomial
from basecagg.protocol import masking
from basecagg.protocol.effects import Persist
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.messages import Answer, Endorsement
from basecagg.protocol.recomputation import trace
from basecagg.protocol.recovery import Recovery
from basecagg.storage.in_memory import MemoryStore

# --- holders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("honest", [False, True])
def test_a_version_is_made_from_the_sum_that_was_certified(certified, honest):
    """The server shows the certificate of one sum and says that the next model was made from another."""
    first, later = [[intercept(certified, name) for name in USERS[at : at + 3]] for at in (0, 3)]
    question = certify(certified, request_for(certified, first))
    answers(certified, question)
    history = history_at(certified, 1)
    if not honest:
        made_up = replace(history.links[-1], digest=bytes(32))
        history = replace(history, links=(*history.links[:-1], made_up))
    request = request_for(certified, later, 1, question.certificate, history=history)
    if honest:
        assert len(endorse(certified, request)) == 7
    else:
        refusal = refuse(certified, "user-0", request, WrongModel)
        assert "not made from the sum that was certified" in str(refusal)


def test_whoever_endorsed_another_sum_answers_a_certificate_and_never_signs_it(certified):
    """Two endorsements of one mask would be two certificates that share a vote."""
    uploads = [intercept(certified, name) for name in USERS[:5]]
    other = request_for(certified, uploads[:3])
    asked = request_for(certified, [uploads[0], *uploads[3:]], attempt=other.attempt)
    assert len(endorse(certified, other, USERS[:1])) == 1
    question = certify(certified, asked, USERS[1 : 1 + QUORUM])
    for name, signs in (("user-0", False), ("user-6", True)):
        (answer,) = ask(certified, name, question)
        assert isinstance(answer, Answer)
        (reply,) = ask(certified, name, asked)
        assert isinstance(reply, Endorsement if signs else Answer)


# --- participants and contributors --------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_no_server_knows_which_versions_a_participant_recomputes(tmp_path):
    """They are drawn with a coin of its own: with a known one the server would cheat in the others."""
    coins = set()
    for name in ("one", "two"):
        ann = Ann(Town(), tmp_path / name)
        ann.join()
        coins.add(ann.store.read("coin", ""))
        ann.store.close()
    assert len(coins) == 2
    assert all(len(set(coin)) > 1 for coin in coins)


def test_noise_and_coins_of_rounding_come_from_streams_of_their_own(monkeypatch):
    """From one stream, whoever learns how a number was rounded learns its noise."""
    streams = []

    def noting(seed):
        streams.append(WordStream(seed).draw(8).tobytes())
        return WordStream(seed)

    monkeypatch.setattr(masking, "WordStream", noting)
    p = parameters(**private())
    fresh = bytes([1]) * 32
    mask = masking.mask_of(bytes(32), fresh, bytes(32), p)
    masking.hide_with_noise(np.zeros(p.model_size), 0, fresh, p, mask)
    assert len(streams) == len(set(streams)) == 2


def test_a_fresh_update_costs_all_that_a_fresh_update_costs():
    paid, store = mechanism(staleness=polynomial()), MemoryStore()
    assert paid.costs(0) != paid.costs(1)
    charged(PrivacyLedger(store), store, paid, 0)
    assert PrivacyLedger(store)._uploads == {paid.costs(0): 1}


# --- the server and its judges ------------------------------------------------------------------


def test_what_a_server_asked_for_can_not_be_taken_back(certified, monkeypatch):
    """Restored from an older copy, a server that forgot a request would ask for another in its slot."""
    begun, honest = [], Recovery.begin

    def begin(self, history, members):
        begun.append(honest(self, history, members))
        return begun[-1]

    monkeypatch.setattr(Recovery, "begin", begin)
    one_round(certified)
    ((effects, _),) = begun
    past = [each for each in effects if isinstance(each, Persist) and each.kind == "past"]
    assert [each.irreversible for each in past] == [True]


def test_a_certificate_of_another_sum_of_the_epoch_vouches_for_no_model():
    federation = make_federation()
    for _ in range(2):
        one_round(federation)
    good, key, verifier = pedigree_of(federation), operator_key(federation), Ed25519Verifier()
    model = federation.server.model
    assert trace(good, model, key, verifier).version == 2
    members = [intercept(federation, name) for name in USERS[:3]]
    other = certify(federation, request_for(federation, members, 2, good.certificate)).certificate
    assert len(other.signatures) >= QUORUM
    with pytest.raises(PartsDamaged, match="certificate of the sum that made version 2"):
        trace(replace(good, certificate=other), model, key, verifier)
