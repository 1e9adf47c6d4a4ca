"""Uploads of records add up at one order, fixed by the first of them; users and records do not mix freely."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from parties import SIZE, USERS, make_federation, one_round, released, submit
from private import private

from basecagg.errors import BudgetSpent, ParameterError, WrongEpoch
from basecagg.maths.accounting import INTEGER_ORDERS, epsilon_of, rho_within
from basecagg.maths.staleness import polynomial
from basecagg.privacy import Mechanism, Privacy
from basecagg.protocol.effects import perform
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.storage.in_memory import MemoryStore

OF_RECORDS = {"unit": "record", "sampling_rate": 0.05, "max_records": 20, "max_uses": 40}


def of_records(**changes) -> dict:
    """Changes to the usual parameters of a test."""
    return private(**(OF_RECORDS | {"epsilon": 0.9} | changes)) | {"clip": 50.0}


def mechanism(**changes) -> Mechanism:
    chosen = of_records(**changes)
    return Mechanism(chosen["privacy"], 5, 1, 1000, 2**10, chosen["staleness"])


def users() -> Mechanism:
    return Mechanism(private(max_uses=100, epsilon=50.0)["privacy"], 5, 1, 1000, 2**10)


def charged(ledger, store, paid, staleness=0):
    perform(store, ledger.charge(paid, staleness), lambda news: None)


def library_epsilon(library, events, delta):
    accountant = library.rdp.RdpAccountant(orders=INTEGER_ORDERS)
    for ratio, count in events:
        event = library.PoissonSampledDpEvent(0.05, library.GaussianDpEvent(ratio))
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def test_epsilon_is_the_librarys():
    """z is σ/Δ̃(1), and nothing else of the mechanism matters; to 10⁻⁹."""
    library = pytest.importorskip("dp_accounting")
    paid = mechanism()
    ratio = (paid.honest * paid.variance / paid.squared_change(0)) ** 0.5
    found = library_epsilon(library, [(ratio, 40)], paid.conversion_delta)
    assert paid.epsilon == pytest.approx(found, abs=1e-9)
    assert paid.epsilon <= 0.9


def test_all_uploads_are_paid_from_what_epsilon_allows():
    ledger, store, paid = PrivacyLedger(MemoryStore()), MemoryStore(), mechanism()
    for _ in range(40):
        charged(ledger, store, paid)
    assert ledger.spent <= paid.budget
    with pytest.raises(BudgetSpent, match="all k_max = 40 uploads"):
        ledger.charge(paid, 0)


def test_it_stops_where_epsilon_does():
    """More uploads are allowed in number than in ε: no epoch promises that, but an older ledger may have it."""
    paid, store = mechanism(max_uses=60), MemoryStore()
    assert paid.epsilon > 0.9
    ledger = PrivacyLedger(store)
    while ledger.affords(paid):
        charged(ledger, store, paid)
    with pytest.raises(BudgetSpent, match="leaves no room"):
        ledger.charge(paid, 0)
    assert 40 <= ledger.uses == paid.uses_within < 60
    allowed = replace(paid, privacy=replace(paid.privacy, max_uses=ledger.uses))
    assert allowed.epsilon <= 0.9


def test_old_updates_cost_less_but_more_than_their_square():
    paid = mechanism(staleness=polynomial())
    assert paid.cost(0) / 4 < paid.cost(1) < paid.cost(0)


def test_the_first_upload_fixes_the_order():
    """The best order afterwards would be chosen by what was seen: it is not allowed."""
    store = MemoryStore()
    ledger, paid, other = PrivacyLedger(store), mechanism(), mechanism(noise=30.0, max_uses=2000)
    assert paid.order != other.order
    charged(ledger, store, paid)
    charged(ledger, store, other)
    again = PrivacyLedger(store)
    assert again._spent.order == paid.order
    assert again.uses == 2
    assert again.spent == ledger.spent


def test_users_are_not_covered_by_what_hid_records():
    ledger, store = PrivacyLedger(MemoryStore()), MemoryStore()
    charged(ledger, store, mechanism())
    assert not ledger.affords(users())
    with pytest.raises(BudgetSpent, match="hid single records"):
        ledger.charge(users(), 0)


def test_records_pay_for_what_their_user_uploaded():
    """A record is part of all that its user uploads: that counts in full, and without sampling."""
    ledger, store, paid = PrivacyLedger(MemoryStore()), MemoryStore(), mechanism(epsilon=5.0)
    charged(ledger, store, users())
    charged(ledger, store, paid)
    alone = PrivacyLedger(MemoryStore())
    charged(alone, MemoryStore(), paid)
    assert ledger.spent == pytest.approx(alone.spent + paid.order * users().cost(0))


# --- in the machines ------------------------------------------------------------------------------


def test_a_sum_of_records_opens_and_is_charged():
    federation = make_federation(**of_records())
    submit(federation, "ann", np.full(SIZE, 1e6))  # far more than M·C
    one_round(federation, USERS[:2])
    (news,) = released(federation)
    assert news.applied
    ledger = federation.contributor("ann").ledger
    assert ledger.uses == 1
    assert ledger.spent > 0


def test_nobody_is_in_an_epoch_of_records_unawares():
    p = make_federation(**of_records()).agreement.parameters
    with pytest.raises(WrongEpoch, match="only if training clips each of them"):
        LocalFloor().require(p)
    LocalFloor(unit="record", max_epsilon=1.0).require(p)
    with pytest.raises(WrongEpoch, match=r"my floor is ε = 0\.5"):
        LocalFloor(unit="record", max_epsilon=0.5).require(p)
    LocalFloor(unit="record").require(make_federation(**private()).agreement.parameters)


def test_sampling_is_worth_what_it_costs():
    """Negative control: the same uploads without sampling cost far more than is promised."""
    paid = mechanism()
    assert epsilon_of(40 * paid.cost(0), paid.conversion_delta) > 10 * paid.epsilon
    assert 40 * paid.cost(0) > rho_within(0.9, paid.conversion_delta)
    with pytest.raises(ParameterError, match="cost ε"):
        make_federation(**of_records(sampling_rate=1.0))


def test_the_unit_is_user_unless_told():
    assert Privacy(clip_norm=1.0).unit == "user"
