"""An audit that can fail: what an attacker gets out of opened sums is below the claim, and not far below.

K orthogonal canaries in each sum: every contributor along an axis of its own, with all that it may send or with
nothing, by a coin. The attacker knows the axes, and the noise of T_c members, which it subtracts. Its errors
give a lower bound of μ for Gaussian differential privacy (Nasr et al. 2023); the claim is μ = √(2ρ).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from harness import Dice
from parties import parameters as small_parameters
from parties import released, submit
from private import private
from scipy import stats

from basecagg.maths.clipping import round_within
from basecagg.maths.noise import noise_and_mask, noise_table
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import WordStream
from basecagg.parameters import ProtocolParameters
from basecagg.simulation.federation import Federation

Q = 2**32 - 5
MEMBERS, SILENT = 50, 5
CONFIDENCE = 0.95


def parameters(noise=1.0):
    return ProtocolParameters(
        num_holders=10,
        recovery_threshold=2,
        max_colluders=1,
        max_dropouts=0,
        buffer_size=MEMBERS,
        model_size=MEMBERS,
        max_colluding_contributors=SILENT,
        **private(noise=noise, epsilon=20.0),
    )


def canaries(coins):
    """One row for each member: C along its own axis, or nothing."""
    return np.diag(coins.astype(float))


def one_sum(p, coins, dice, variance):
    """A sum without the noise of the silent ones, in steps."""
    total = np.zeros(p.model_size, np.int64)
    out, mask = np.empty(p.model_size, np.uint32), np.zeros(p.model_size, np.uint32)
    bound, clip = p.mechanism.squared_bound(0), p.privacy.clip_norm
    for index, update in enumerate(canaries(coins)):
        rounded = out.view(np.int32)
        words = WordStream(dice.randbytes(32))
        round_within(update * clip, p.update_levels, clip, 1.0, bound, words, rounded)
        if index < SILENT:
            total += rounded
            continue
        noise_and_mask(rounded, noise_table(variance), words, mask, Q, out)
        total += signed(out, Q)
    return total


def observed(count, seed, noise=1.0, variance=None):
    """What the attacker sees of each canary: with nothing in it, and with all."""
    p, dice = parameters(noise), random.Random(seed)
    seen = {0: [], 1: []}
    while min(map(len, seen.values())) < count:
        coins = np.array([dice.getrandbits(1) for _ in range(MEMBERS)])
        total = one_sum(p, coins, dice, variance or p.mechanism.variance)
        for coin in (0, 1):
            seen[coin] += total[coins == coin].tolist()
    return p, np.array(seen[0][:count]), np.array(seen[1][:count])


def lower_bound(nothing, everything):
    """μ ≥ Φ⁻¹(1 − α) − Φ⁻¹(β), with Clopper and Pearson's upper bounds of both errors."""
    threshold = (nothing.mean() + everything.mean()) / 2
    errors = (nothing > threshold).sum(), (everything <= threshold).sum()
    sure = 1 - (1 - CONFIDENCE) / 2
    alpha, beta = (
        stats.beta.ppf(sure, wrong + 1, len(nothing) - wrong) for wrong in map(int, errors)
    )
    return stats.norm.ppf(1 - alpha) - stats.norm.ppf(beta)


def claim(p):
    return math.sqrt(2 * p.mechanism.cost(0))


def test_the_claim_holds_and_is_not_far_from_the_truth():
    p, *seen = observed(6000, seed=1)
    assert 0.8 * claim(p) <= lower_bound(*seen) <= claim(p)


def test_with_half_of_the_noise_the_audit_fails():
    p = parameters()
    p, *seen = observed(2000, seed=2, variance=p.mechanism.variance // 4)
    assert lower_bound(*seen) > claim(p)


@pytest.mark.soak
def test_the_claim_holds_in_long_runs():
    """z = 2, 50,000 of each world."""
    p, *seen = observed(50_000, seed=3, noise=2.0)
    assert 0.8 * claim(p) <= lower_bound(*seen) <= claim(p)


@pytest.mark.soak
def test_with_half_of_the_noise_nearly_every_audit_fails():
    p = parameters(2.0)
    half = p.mechanism.variance // 4
    seen = [observed(5000, seed, 2.0, half)[1:] for seed in range(20)]
    assert sum(lower_bound(*each) > claim(p) for each in seen) >= 19


# --- through the machines -------------------------------------------------------------------------


def through_machines(openings, members=10):
    """The same with dealt masks, tickets and answers; the first member's noise is known and subtracted."""
    options = private(noise=1.0, epsilon=20.0) | {"buffer_size": members, "model_size": members}
    p = small_parameters(max_colluding_contributors=1, **options)
    federation = Federation(p, np.zeros(members), cryptography=False, entropy=Dice(4))
    dice, seen = random.Random(4), {0: [], 1: []}
    for opening in range(openings):
        coins = np.array([dice.getrandbits(1) for _ in range(members)])
        names = [f"user-{opening}-{index}" for index in range(members)]
        sent = [submit(federation, *pair) for pair in zip(names, canaries(coins), strict=True)]
        federation.network.run()
        (news,) = released(federation)
        total = np.rint(news.weighted_sum * p.update_levels).astype(np.int64)
        known = sent[0].quantized[:members]
        for index in range(1, members):
            seen[coins[index]].append(int(total[index] - known[index]))
    least = min(map(len, seen.values()))
    return p, np.array(seen[0][:least]), np.array(seen[1][:least])


def test_the_claim_holds_through_the_machines():
    """Few sums: only that nobody sees more than is claimed, and that something is seen."""
    p, *seen = through_machines(40)
    assert 0.2 * claim(p) <= lower_bound(*seen) <= claim(p)


@pytest.mark.soak
def test_the_claim_holds_through_the_machines_in_long_runs():
    p, *seen = through_machines(1500)
    assert 0.8 * claim(p) <= lower_bound(*seen) <= claim(p)


def test_the_claim_is_that_of_the_accounting():
    p = parameters(2.0)
    assert claim(p) == pytest.approx(1 / 2, rel=1e-3)
    assert claim(replace(p, max_colluding_contributors=20)) == pytest.approx(1 / 2, rel=1e-3)
