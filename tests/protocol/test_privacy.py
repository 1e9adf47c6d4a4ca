"""An opened sum is the updates' own plus the promised noise, and every contributor keeps its own budget."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from harness import Dice
from parties import (
    SIZE,
    USERS,
    all_refuse,
    at,
    deal,
    fresh_update,
    holder_at,
    intercept,
    make_federation,
    one_round,
    released,
    request_for,
    submit,
)
from private import bounded, make, private
from scipy import stats

from basecagg.errors import BudgetSpent, DataError, LocalProtocolError, WrongEpoch, WrongVersion
from basecagg.maths.accounting import epsilon_of
from basecagg.maths.noise import noise_table
from basecagg.maths.staleness import polynomial
from basecagg.protocol import masking
from basecagg.protocol.effects import BudgetEnded, MaskEnded, Uploaded, sends_of
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.messages import Upload, Verdict, signed
from basecagg.protocol.stored import Refusals, parse
from basecagg.storage.in_memory import MemoryStore

MANY = 10**6


def short(size=SIZE, seed=0):
    """An update on the grid, shorter than C: it is rounded to itself."""
    most = int(2**10 / math.sqrt(size) / 2)
    return np.random.default_rng(seed).integers(-most, most + 1, size) / 2**10


# --- the noise in a sum ---------------------------------------------------------------------------


def noise_of_a_sum(size=MANY, *, away=(), **options):
    """The opened sum minus the sum of the updates, in steps, and σ_i²."""
    # Repeatable, or one run in some thousands would be too unlikely to be believed.
    federation = make(cryptography=False, model_size=size, entropy=Dice(1), **options)
    updates = [short(size, seed) for seed in range(3)]
    for name, update in zip(USERS[:3], updates, strict=True):
        submit(federation, name, update)
    for name in away:
        federation.stop(holder_at(name))
    federation.network.run()
    (news,) = released(federation)
    p = federation.agreement.parameters
    noise = (news.weighted_sum - np.sum(updates, axis=0)) * p.update_levels
    assert (noise == np.rint(noise)).all()
    return noise.astype(np.int64), p.mechanism.variance


def fits(noise, variance):
    """The p-value of χ² against the discrete Gaussian of this variance."""
    cells = np.linspace(-3.5, 3.5, 101) * math.sqrt(variance)
    edges = (
        np.unique(np.floor(cells)) + 0.5
    )  # between integers, where its distribution is the normal one's
    chances = np.diff(stats.norm.cdf(edges, scale=math.sqrt(variance)), prepend=0)
    chances[0] = stats.norm.cdf(edges[0], scale=math.sqrt(variance))
    chances = np.append(chances, 1 - chances.sum())
    counts = np.bincount(np.searchsorted(edges, noise), minlength=chances.size)
    return stats.chisquare(counts, chances * noise.size).pvalue


def test_the_noise_of_a_sum_is_what_is_promised():
    """Also when D holders are gone: it is in the uploads, and all K are in the sum."""
    noise, variance = noise_of_a_sum(away=USERS[5:])
    assert fits(noise, 3 * variance) > 1e-4


@pytest.fixture
def altered(monkeypatch):
    """Contributors who draw other noise than they should."""

    def alter(table_of):
        monkeypatch.setattr(masking, "noise_table", table_of)

    return alter


def test_half_of_the_noise_would_be_noticed(altered):
    altered(lambda variance: noise_table(variance // 4))
    noise, variance = noise_of_a_sum()
    assert fits(noise, 3 * variance) < 1e-9


def test_noise_from_one_stream_would_be_noticed(monkeypatch):
    honest = masking.hide_with_noise
    same = lambda update, staleness, fresh, *rest: honest(update, staleness, bytes(32), *rest)  # noqa: E731
    monkeypatch.setattr("basecagg.protocol.contributor.hide_with_noise", same)
    noise, variance = noise_of_a_sum(10**5)
    assert fits(noise, 3 * variance) < 1e-9


def test_noise_that_is_gone_with_a_holder_would_be_noticed(altered):
    """As where holders add it after the fact: two of three shares of it are left."""
    away = USERS[5:]
    drawn = []

    def table(variance):
        drawn.append(variance)
        return noise_table(1 if away and len(drawn) == 1 else variance)

    altered(table)
    noise, variance = noise_of_a_sum(10**5, away=away)
    assert fits(noise, 3 * variance) < 1e-9


@pytest.mark.soak
def test_with_a_silent_contributor_a_million_elements_have_what_is_promised(altered):
    drawn = []

    def table(variance):
        drawn.append(variance)
        return noise_table(1 if len(drawn) == 1 else variance)

    altered(table)
    noise, variance = noise_of_a_sum()
    assert fits(noise, 2 * variance) > 1e-4


def test_with_a_silent_contributor_there_is_as_much_as_promised(altered):
    drawn = []

    def table(variance):
        drawn.append(variance)
        return noise_table(1 if len(drawn) == 1 else variance)  # the first adds next to nothing

    altered(table)
    noise, variance = noise_of_a_sum(3 * 10**5)
    p = make().agreement.parameters
    promised = 4 * p.mechanism.squared_bound(0) / variance  # z²·C̃² in shares: not more than two
    assert promised <= 2
    assert noise.var() >= 2 * variance * 0.99
    assert fits(noise, 2 * variance) > 1e-4


def test_what_is_no_number_is_uploaded_as_zeros_with_noise():
    federation = make()
    submitted = submit(federation, "ann", np.full(SIZE, np.nan))
    one_round(federation, USERS[:2])
    assert released(federation)[0].applied
    deviation = math.sqrt(federation.agreement.parameters.mechanism.variance)
    assert 0 < np.abs(submitted.quantized[:SIZE]).max() < 14 * deviation
    assert not submitted.quantized[SIZE:].any()


def test_without_noise_what_is_no_number_is_refused():
    with pytest.raises(DataError):
        submit(make(bounded()), "ann", np.full(SIZE, np.nan))


def test_nothing_is_told_about_clipping():
    federation = make()
    submit(federation, "ann", np.full(SIZE, 100.0))
    (news,) = [each for each in federation.take_news() if isinstance(each, Uploaded)]
    assert news.clipped == 0


def test_the_seed_of_the_noise_is_stored_nowhere(monkeypatch):
    drawn, honest = [], masking.hide_with_noise

    def hide(update, staleness, fresh, *rest):
        drawn.append(fresh)
        return honest(update, staleness, fresh, *rest)

    monkeypatch.setattr("basecagg.protocol.contributor.hide_with_noise", hide)
    federation = make()
    submit(federation, "ann", short())
    stored = federation.network.nodes[at("ann")].store.snapshot()
    assert len(set(drawn)) == 1
    assert not any(drawn[0] in value for kind in stored.values() for value in kind.values())


# --- the budget -----------------------------------------------------------------------------------


def upload(federation, name, update=None):
    """Deal and submit; the server is never told."""
    deal(federation, name)
    intercept(federation, name, short() if update is None else update)


def test_the_contributor_stops_when_its_budget_is_spent():
    federation = make()
    for _ in range(3):
        upload(federation, "ann")  # the same update again: it is paid for
    ledger = federation.contributor("ann").ledger
    mechanism = federation.agreement.parameters.mechanism
    assert (ledger.uses, ledger.spent) == (3, pytest.approx(3 * mechanism.cost(0)))
    (ended,) = [news for news in federation.take_news() if isinstance(news, BudgetEnded)]
    told = parse(federation.network.nodes[at("ann")].store.read("refusal", "BudgetSpent"), Refusals)
    assert ended.reason == told.reason == "all k_max = 3 uploads of ε = 5 at δ = 1e-05 are made"
    assert not federation.contributor("ann").may_spend
    deal(federation, "ann")
    with pytest.raises(BudgetSpent, match="all k_max = 3 uploads of ε = 5 at δ = 1e-05 are made"):
        submit(federation, "ann", short())
    assert epsilon_of(ledger.spent, 1e-5) <= 5.0
    upload(federation, "bob")
    assert federation.contributor("bob").may_spend


def test_a_refused_or_burned_upload_is_not_refunded():
    federation = make()
    deal(federation, "ann")
    submit(federation, "ann", short(), head=bytes(32))  # another model than the server's
    federation.network.run()
    assert [e.state for e in federation.take_news() if isinstance(e, MaskEnded)] == ["refused"]
    assert federation.contributor("ann").ledger.uses == 1


def test_what_was_spent_survives_a_restart_and_an_epoch():
    federation = make()
    upload(federation, "ann")
    store = federation.network.nodes[at("ann")].store
    federation.start(at("ann"))
    assert federation.contributor("ann").ledger.uses == 1
    records = MemoryStore({"ledger": store.snapshot()["ledger"]})
    later = make()
    later.start(at("ann"), records)
    upload(later, "ann")
    upload(later, "ann")
    with pytest.raises(BudgetSpent):
        upload(later, "ann")


def test_earlier_uploads_with_less_noise_count_for_what_they_cost():
    """One upload with half of the noise costs four: then (ε, δ) stops it before k_max."""
    dear = make(private(noise=1.0, epsilon=5.0, max_uses=1))
    upload(dear, "ann")
    later = make(private(epsilon=5.0))
    store = MemoryStore({"ledger": dear.network.nodes[at("ann")].store.snapshot()["ledger"]})
    later.start(at("ann"), store)
    with pytest.raises(BudgetSpent, match=r"after 1 uploads ε = 5 .* no room"):
        upload(later, "ann")


def test_an_old_copy_has_spent_everything():
    federation = make()
    upload(federation, "ann")
    old = MemoryStore(federation.network.nodes[at("ann")].store.snapshot())
    old.rolled_back = True
    federation.start(at("ann"), old)
    assert federation.contributor("ann").ledger.spent == math.inf
    old.rolled_back = False  # as after its first commit
    federation.start(at("ann"), old)
    deal(federation, "ann")
    with pytest.raises(BudgetSpent, match="older copy"):
        submit(federation, "ann", short())


def test_an_upload_that_cannot_be_made_costs_nothing():
    federation = make()
    with pytest.raises(LocalProtocolError, match="no mask is ready"):
        federation.contributor("ann").submit(short(), 0, federation.server.head, 0)
    assert federation.contributor("ann").ledger.uses == 0


def test_without_noise_nothing_is_paid_for_but_counted_and_no_update_is_sent_twice():
    federation = make(bounded())
    upload(federation, "ann", short(seed=5))
    assert not federation.network.nodes[at("ann")].store.keys("ledger")
    assert federation.contributor("ann").ledger.uses == 1
    deal(federation, "ann")
    with pytest.raises(LocalProtocolError, match="masked before"):
        submit(federation, "ann", short(seed=5))


def test_the_floor_has_a_largest_epsilon():
    p = make().agreement.parameters
    LocalFloor(max_epsilon=5.0).require(p)
    LocalFloor().require(make_federation().agreement.parameters)
    with pytest.raises(WrongEpoch, match=r"it would spend ε = 5 .* floor is ε = 4"):
        LocalFloor(max_epsilon=4.0).require(p)
    with pytest.raises(WrongEpoch, match="δ = 1e-06"):
        LocalFloor(max_epsilon=5.0, max_delta=1e-6).require(p)
    for plain in (make_federation(), make(bounded())):
        with pytest.raises(WrongEpoch, match="adds no noise"):
            LocalFloor(max_epsilon=100.0).require(plain.agreement.parameters)


# --- weighing by the contributor ------------------------------------------------------------------


def aged(**changes):
    """A federation at version 2 whose contributors weigh by the tiers of 1/(1 + τ̂): 1, ½, ½."""
    federation = make(bounded(staleness=polynomial()), min_per_version=1, **changes)
    for round_ in range(2):
        for index, name in enumerate(USERS[:3]):
            submit(federation, name, short(seed=10 * round_ + index))
        federation.network.run()
    federation.take_news()
    return federation


def test_the_contributor_weighs_and_the_mean_is_over_its_weights():
    federation = aged()
    before = federation.server.model.copy()
    updates = [fresh_update(0.02) for _ in range(3)]
    members = [
        submit(federation, name, update, base=base)
        for name, update, base in zip(USERS[:3], updates, (0, 1, 2), strict=True)
    ]
    assert [m.ticket.staleness for m in members] == [2, 1, 0]
    federation.network.run()
    (news,) = released(federation)
    assert news.weights == (1 / 2, 1 / 2, 1)
    mean = sum(w * u for w, u in zip(news.weights, updates, strict=True)) / sum(news.weights)
    assert np.abs((before - federation.server.model) - mean).max() <= 3 / 2**10


def forged(federation, submitted, **changes):
    """The same upload with another ticket, signed by its dealer."""
    name = submitted.ticket.mask.contributor
    ticket = msgspec.structs.replace(submitted.ticket, signature=b"", **changes)
    return Upload(signed(ticket, federation.identity(name)), submitted.upload.words)


@pytest.mark.parametrize(
    ("base", "told", "words"), [(2, 1, "weighed at version 2"), (0, 11, "at most 10")]
)
def test_an_age_that_cannot_be_is_refused_by_server_and_holders(base, told, words):
    federation = aged()
    deal(federation, *USERS[:3])
    members = [intercept(federation, name, base=base) for name in USERS[:3]]
    lie = forged(federation, members[0], staleness=told)
    effects = federation.server.receive(USERS[0], lie)
    (verdict,) = [e.message for e in sends_of(effects) if isinstance(e.message, Verdict)]
    assert (verdict.outcome, words in verdict.reason) == ("refused", True)
    previous = federation.server.opening.kept.certificate_of(2)
    request = request_for(federation, [lie.ticket, *members[1:]], 2, previous)
    all_refuse(federation, request, WrongVersion)


def test_where_the_field_weighs_a_ticket_tells_no_age():
    federation = make_federation(cryptography=True, weights="field")
    members = [intercept(federation, name) for name in USERS[:3]]
    assert {m.ticket.staleness for m in members} == {0}
    lie = forged(federation, members[0], staleness=1)
    all_refuse(federation, request_for(federation, [lie.ticket, *members[1:]]), WrongVersion)


def test_what_is_too_old_is_not_paid_for():
    federation = make()
    contributor = federation.contributor("ann")
    deal(federation, "ann")
    for version in (11, -1):
        with pytest.raises(LocalProtocolError, match="download the model again"):
            contributor.submit(short(), 0, federation.server.head, version)
    assert contributor.ledger.uses == 0


def test_a_stale_upload_costs_less():
    federation = make(private(staleness=polynomial()))
    deal(federation, "ann")
    contributor, mechanism = (
        federation.contributor("ann"),
        federation.agreement.parameters.mechanism,
    )
    contributor.submit(short(), 0, federation.server.head, 1)
    assert contributor.ledger.spent == mechanism.cost(1) < mechanism.cost(0)
