"""Uploads without noise count: after them no ε covers all that was ever uploaded."""

from __future__ import annotations

import math

import pytest
from parties import USERS, at, deal, fresh_update, make_federation, one_round, submit
from private import bounded, make, private
from test_ledger_of_records import of_records

from basecagg.errors import BudgetSpent
from basecagg.maths.staleness import polynomial
from basecagg.protocol.effects import perform
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.protocol.participant import _MACHINES
from basecagg.storage.in_memory import MemoryStore

CLEAR = {"no privacy": {}, "a bound without noise": bounded()}
PRIVATE = {"user": private(), "record": of_records()}


def kept_across_epochs(federation, name: str) -> MemoryStore:
    """What a participant still has when it joins the next epoch."""
    records = federation.network.nodes[at(name)].store.snapshot()
    return MemoryStore({kind: rows for kind, rows in records.items() if kind not in _MACHINES})


def after_three_clear_uploads(options: dict) -> MemoryStore:
    federation = make(options)
    for _ in range(3):
        for name in USERS[:3]:
            submit(federation, name, fresh_update(0.05))
        federation.network.run()
    return kept_across_epochs(federation, USERS[0])


@pytest.mark.parametrize("unit", PRIVATE)
@pytest.mark.parametrize("clear", CLEAR)
def test_no_promise_covers_what_was_uploaded_without_noise(clear, unit):
    later = make(PRIVATE[unit])
    later.start(at(USERS[0]), after_three_clear_uploads(CLEAR[clear]))
    contributor = later.contributor(USERS[0])
    assert (contributor.ledger.uses, contributor.ledger.spent) == (3, math.inf)
    assert not contributor.may_spend
    deal(later, USERS[0])
    with pytest.raises(
        BudgetSpent, match=r"3 earlier uploads from this store had no noise.*new name"
    ):
        submit(later, USERS[0])


def test_without_the_fingerprints_of_those_uploads_they_would_be_forgotten():
    """Negative control: the same store, but for what it remembers of the updates that it sent."""
    records = after_three_clear_uploads({}).snapshot()
    later = make()
    later.start(at(USERS[0]), MemoryStore({k: v for k, v in records.items() if k != "sent"}))
    assert later.contributor(USERS[0]).may_spend


def test_uploads_without_noise_go_on_and_cost_nothing_there():
    federation = make_federation()
    later = make_federation()
    one_round(federation)
    later.start(at(USERS[0]), kept_across_epochs(federation, USERS[0]))
    assert later.contributor(USERS[0]).may_spend
    one_round(later)
    assert later.server.version == 1


def test_an_upload_costs_what_its_own_staleness_costs():
    mechanism = make(private(staleness=polynomial())).agreement.parameters.mechanism
    for staleness in (0, 1, 3):
        store = MemoryStore()
        perform(store, PrivacyLedger(store).charge(mechanism, staleness), lambda news: None)
        cost = mechanism.cost(staleness)
        assert PrivacyLedger(store).spent == pytest.approx(cost, rel=1e-12)
    assert mechanism.cost(0) > mechanism.cost(1) > mechanism.cost(3)
