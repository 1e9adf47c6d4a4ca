"""Local differential privacy: the clip holds, the noise is as large as it says, ε is that of the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest

from basecagg.baselines.local_noise import Noisy, Vector
from basecagg.errors import ParameterError

DELTA = 1e-5


def protected(noisy: Noisy, update: Vector, seed: int = 0) -> Vector:
    return noisy.protect(0, update, lambda: np.random.default_rng(seed))


def epsilon(clip_norm: float, noise: float, releases: int = 1) -> float:
    spent = Noisy(clip_norm, noise, DELTA).epsilon(releases)
    assert spent is not None
    return spent


def test_an_update_is_clipped_to_its_norm_and_a_small_one_is_kept() -> None:
    quiet = Noisy(clip_norm=2.0, noise=1e-9, delta=DELTA)
    long = np.full(16, 5.0, np.float32)
    clipped = protected(quiet, long)
    assert np.linalg.norm(clipped) == pytest.approx(2.0, abs=1e-5)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped), long / np.linalg.norm(long), 1e-5)
    short = np.full(16, 0.1, np.float32)
    np.testing.assert_allclose(protected(quiet, short), short, atol=1e-6)
    assert not np.isnan(protected(quiet, np.zeros(4, np.float32))).any()


def test_the_noise_has_the_standard_deviation_that_it_says() -> None:
    noisy = Noisy(clip_norm=0.5, noise=3.0, delta=DELTA)
    noise = protected(noisy, np.zeros(100_000, np.float32), seed=1)
    assert noise.std() == pytest.approx(1.5, rel=0.02)  # 4σ of the estimate is below 1 %
    assert noise.mean() == pytest.approx(0.0, abs=0.02)


def test_epsilon_of_one_release_agrees_with_the_exact_gaussian_mechanism() -> None:
    """The zCDP bound may only be larger than the exact ε at the same δ (Balle and Wang 2018), and not much."""
    z = 4.0
    bound = epsilon(1.0, z)
    ratio = 1 / z  # sensitivity C over σ = z·C

    def exact_delta(epsilon: float) -> float:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        up, down = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return phi(up) - math.exp(epsilon) * phi(down)

    assert exact_delta(bound) <= DELTA
    assert exact_delta(0.75 * bound) > DELTA


def test_more_releases_and_less_noise_cost_more() -> None:
    assert epsilon(1, 2, releases=10) > epsilon(1, 2)
    assert epsilon(1, 2) > epsilon(1, 4)
    assert epsilon(5, 2) == epsilon(1, 2)


@pytest.mark.parametrize(("clip_norm", "noise"), [(0, 1), (1, 0), (-1, 1), (math.inf, 1)])
def test_numbers_that_protect_nothing_are_refused(clip_norm: float, noise: float) -> None:
    with pytest.raises(ParameterError, match="must be positive"):
        Noisy(clip_norm, noise, DELTA)
