"""Local differential privacy: the clip holds, the noise is as large as it says, ε is that of the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from basecagg.errors import ParameterError
from basecagg.protections.local_dp import LocalDP


def test_an_update_is_clipped_to_its_norm_and_a_small_one_is_kept() -> None:
    quiet = LocalDP(clip_norm=2.0, noise_multiplier=1e-9)
    long = np.full(16, 5.0, np.float32)
    clipped = quiet.protect(long, np.random.default_rng(0))
    assert np.linalg.norm(clipped) == pytest.approx(2.0, abs=1e-5)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped), long / np.linalg.norm(long), 1e-5)
    short = np.full(16, 0.1, np.float32)
    np.testing.assert_allclose(quiet.protect(short, np.random.default_rng(0)), short, atol=1e-6)
    assert not np.isnan(quiet.protect(np.zeros(4, np.float32), np.random.default_rng(0))).any()


def test_the_noise_has_the_standard_deviation_that_it_says() -> None:
    noisy = LocalDP(clip_norm=0.5, noise_multiplier=3.0)
    noise = noisy.protect(np.zeros(100_000, np.float32), np.random.default_rng(1))
    assert noise.std() == pytest.approx(1.5, rel=0.02)  # 4σ of the estimate is below 1 %
    assert noise.mean() == pytest.approx(0.0, abs=0.02)


def test_epsilon_of_one_release_agrees_with_the_exact_gaussian_mechanism() -> None:
    """The zCDP bound may only be larger than the exact ε at the same δ (Balle and Wang 2018), and not much."""
    z, delta = 4.0, 1e-5
    bound = LocalDP(1.0, z).epsilon(releases=1, delta=delta)
    ratio = 1 / z  # sensitivity C over σ = z·C

    def exact_delta(epsilon: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        up, down = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return phi(up) - math.exp(epsilon) * phi(down)

    assert exact_delta(bound) <= delta
    assert exact_delta(0.75 * bound) > delta


def test_more_releases_and_less_noise_cost_more() -> None:
    assert LocalDP(1, 2).epsilon(10, 1e-5) > LocalDP(1, 2).epsilon(1, 1e-5)
    assert LocalDP(1, 2).epsilon(1, 1e-5) > LocalDP(1, 4).epsilon(1, 1e-5)
    assert LocalDP(5, 2).epsilon(1, 1e-5) == LocalDP(1, 2).epsilon(1, 1e-5)


@pytest.mark.parametrize(("clip_norm", "noise"), [(0, 1), (1, 0), (-1, 1), (math.inf, 1)])
def test_numbers_that_protect_nothing_are_refused(clip_norm: float, noise: float) -> None:
    with pytest.raises(ParameterError, match="must be positive"):
        LocalDP(clip_norm, noise)
