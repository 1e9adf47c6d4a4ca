"""An audit that can fail: what an attacker gets out of opened sums is below the claim, and not far below.

`reproduction.canaries` says how it attacks; its page has the long forms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from reproduction import canaries
from reproduction.canaries import LEAST, MEMBERS, SILENT, Seen, audit, claim, lower_bound


def ratio(way, noise, seed, wanted):
    found = audit(way, noise, seed, wanted)
    return found["bound"] / found["claim"]


def test_the_claim_holds_and_is_not_far_from_the_truth():
    assert LEAST <= ratio("arithmetic", "honest", 1, 6000) <= 1


def test_with_half_of_the_noise_the_audit_fails():
    assert ratio("arithmetic", "half", 2, 2000) > 1


def test_the_claim_holds_through_the_machines():
    """Few sums: only that nobody sees more than is claimed, and that something is seen."""
    assert 0.2 <= ratio("machines", "honest", 4, 180) <= 1


def test_with_half_of_the_noise_the_audit_fails_through_the_machines():
    assert ratio("machines", "half", 4, 180) > 1


@pytest.mark.soak
@pytest.mark.parametrize("way", ["arithmetic", "machines"])
def test_the_claim_holds_in_long_runs(way):
    assert LEAST <= ratio(way, "honest", 3, {"arithmetic": 50_000, "machines": 8000}[way]) <= 1


@pytest.mark.soak
def test_with_half_of_the_noise_nearly_every_audit_fails():
    assert sum(ratio("arithmetic", "half", seed, 5000) > 1 for seed in range(20)) >= 19


# --- the audit itself -----------------------------------------------------------------------------


def test_the_claim_is_that_of_the_accounting():
    p = canaries.parameters(MEMBERS, SILENT, noise=2.0)
    assert claim(p) == pytest.approx(1 / 2, rel=1e-3)
    more = replace(p, max_colluding_contributors=20, min_per_version=None)
    assert claim(more) == pytest.approx(1 / 2, rel=1e-3)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_a_bound_is_rarely_above_the_truth(mu):
    """Of Gaussians that are μ apart, in 95 % of all audits: here in all but 2 of 200 at most."""
    generator = np.random.default_rng(7)
    bounds = [
        lower_bound(Seen(generator.normal(0, 1000, 2000), generator.normal(1000 * mu, 1000, 2000)))
        for _ in range(200)
    ]
    assert sum(bound > mu for bound in bounds) <= 2
    assert np.median(bounds) > 0.65 * mu


@pytest.mark.parametrize(("errors", "count"), [(0, 100), (3, 50), (300, 1000), (999, 1000)])
def test_an_error_is_never_thought_to_be_rarer_than_it_may_be(errors, count):
    """Beside Clopper and Pearson's bound, which is the exact one."""
    exact = stats.beta.ppf(1 - (1 - canaries.SURE) / 2, errors + 1, count - errors)
    assert exact <= canaries._at_most(errors, count) <= min(1, exact + 2 / np.sqrt(count))
