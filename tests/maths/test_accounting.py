"""ε by our code is dp-accounting's, an independent computation's, and never below the truth."""

import math

import numpy as np
import pytest
from mpmath import binomial, exp, log, mp, mpf, quad, sqrt
from mpmath import pi as mp_pi

from basecagg.maths.accounting import (
    INTEGER_ORDERS,
    ORDERS,
    Cost,
    cost_of_upload,
    divergence,
    epsilon_of,
    rho_within,
    sampled_epsilon,
    uneven,
)

DELTAS = [1e-5, 1e-6, 1e-12]


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("dp_accounting")


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.01, 0.375, 1.0, 20.0])
def test_epsilon_is_the_librarys(library, rho, delta):
    accountant = library.rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(library.ZCDpEvent(rho=rho))
    assert epsilon_of(rho, delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-9)


@pytest.mark.parametrize("uses", [1, 3, 100])
def test_uploads_compose_as_the_librarys_gaussians(library, uses):
    accountant = library.rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(library.GaussianDpEvent(2.0), uses)
    rho = uses * cost_of_upload(10**6, 4 * 10**4, 100, 7850)
    assert epsilon_of(rho, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("ratio", [0.7, 2.0, 10.0])
def test_sampled_records_are_accounted_as_in_the_library(library, rate, ratio):
    accountant = library.rdp.RdpAccountant(orders=INTEGER_ORDERS)
    event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(ratio))
    accountant.compose(event, 50)
    ours, _ = sampled_epsilon(Cost(1 / (2 * ratio**2), rate), 50, 1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-9, rel=1e-9)


# --- computed another way ------------------------------------------------------------------------


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", [0.01, 0.375, 1.0, 20.0])
def test_epsilon_is_the_formula_in_many_digits(rho, delta):
    with mp.workprec(200):
        each = (
            mpf(rho) * a + log(1 - 1 / mpf(a)) - log(mpf(delta) * a) / (mpf(a) - 1) for a in ORDERS
        )
        assert epsilon_of(rho, delta) == pytest.approx(float(min(each)), abs=1e-9)


@pytest.mark.parametrize(("length", "sigma", "uses"), [(10, 20.0, 3), (3, 3.0, 1), (5, 50.0, 100)])
def test_no_true_epsilon_is_larger(length, sigma, uses):
    """δ of the discrete Gaussian itself, from its probabilities, at the ε that is claimed for δ = 10⁻⁵.

    `uses` uploads along one axis are as one that is √uses longer, up to the grid.
    """
    claimed = epsilon_of(uses * length**2 / (2 * sigma**2), 1e-5)
    far = math.floor(length * math.sqrt(uses))
    values = np.arange(-60 * int(sigma) - far, 60 * int(sigma) + far + 1).astype(float)
    p = np.exp(-(values**2) / (2 * sigma**2))
    q = np.exp(-((values - far) ** 2) / (2 * sigma**2))
    true_delta = np.maximum(p - math.exp(claimed) * q, 0).sum() / p.sum()
    assert true_delta <= 1e-5
    # Negative control: with half of the claim it is larger.
    assert np.maximum(p - math.exp(claimed / 2) * q, 0).sum() / p.sum() > 1e-5


@pytest.mark.parametrize("order", [2, 3, 8])
def test_sampled_divergences_are_the_integral(order):
    """The divergence of a mixture of two Gaussians from one, integrated; the other way round it is smaller."""
    rate, ratio = 0.1, 1.5
    with mp.workprec(120):
        density = lambda x, at: exp(-((x - at) ** 2) / (2 * mpf(ratio) ** 2))  # noqa: E731
        scale = 1 / (mpf(ratio) * sqrt(2 * mp_pi))
        mixed = lambda x: (1 - rate) * density(x, 0) + rate * density(x, 1)  # noqa: E731
        ends = [-40, -10, 0, 1, 10, 20, 60]
        one = quad(lambda x: scale * mixed(x) ** order / density(x, 0) ** (order - 1), ends)
        found = divergence(Cost(1 / (2 * ratio**2), rate), order)
        assert found == pytest.approx(float(log(one) / (order - 1)), rel=1e-9)
        moments = sum(
            binomial(order, k) * mpf(1 - rate) ** (order - k) * mpf(rate) ** k
            * exp(mpf(k * k - k) / (2 * mpf(ratio) ** 2))
            for k in range(order + 1)
        )  # fmt: skip
        assert found == pytest.approx(float(log(moments) / (order - 1)), rel=1e-12)


# --- the parts -----------------------------------------------------------------------------------


def test_the_figures_of_the_lab():
    """z = 2, three uploads, δ = 10⁻⁵: ε = 4.01. ρ = 1: 7.08, where the textbook has 7.79."""
    assert epsilon_of(3 / (2 * 2.0**2), 1e-5) == pytest.approx(4.01, abs=0.005)
    assert epsilon_of(1.0, 1e-5) == pytest.approx(7.08, abs=0.005)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_the_budget_is_what_epsilon_allows(epsilon, delta):
    rho = rho_within(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * (1 + 1e-9), delta) > epsilon


def test_what_rounding_adds_does_not_shrink_with_the_weight():
    """ρ of an upload weighed by ¼ is more than a sixteenth: its bound has d/4 in it."""
    whole, quarter = 10**4 + 250, 10**4 // 16 + 250
    costs = [cost_of_upload(bound, 100, 10, 1000) for bound in (whole, quarter)]
    assert costs[1] > costs[0] / 16 * 1.3


def test_small_shares_of_noise_cost_more():
    """τ of K-L-S is next to nothing from σ_i = 3, and much below it."""
    assert uneven(9, 600) * math.sqrt(1e6) < 1e-30
    exact = 10 * sum(math.exp(-2 * math.pi**2 * k / (k + 1)) for k in range(1, 5000))
    assert exact <= uneven(1, 5000) < 1.01 * exact
    assert uneven(9, 2**62) >= uneven(9, 600)
    assert uneven(1, 10) > 1e-4
    assert cost_of_upload(100, 1, 10, 10**6) > 100 / (2 * 10)
