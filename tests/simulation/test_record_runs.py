"""Simulated runs whose unit is the record: clipped one by one, noise for one record, a ledger for each user."""

from __future__ import annotations

import numpy as np
import pytest

from basecagg.errors import ParameterError
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.simulate import simulate

RECORDS = {
    "method": "basecagg-dp",
    "cryptography": "arithmetic",
    "clock": "uniform-staleness",
    "dataset": "digits",
    "model": "logistic",
    "users": 6,
    "concurrency": 6,
    "buffer_size": 4,
    "holders": 6,
    "versions": 3,
    "max_staleness": 2,
    "consistency": "honest-server",
    "min_per_version": 1,
    "max_colluding_contributors": 1,
    "local_steps": 1,
    "weight_decay": 0.0,
    "batch_size": 20,
    "local_rate": 20.0,
    "global_rate": 0.05,
    "unit": "record",
    "sampling_rate": 0.1,
    "epsilon": 3.0,
    "max_uses": 5,
    "seed": 3,
}


def config(**changes):
    return SimulationConfig(**(RECORDS | changes))


def test_the_noise_is_for_one_record_and_the_budget_is_kept():
    chosen = config()
    result = simulate(chosen)
    p = chosen.protocol_parameters(650)
    assert (p.privacy.unit, p.privacy.sampling_rate) == ("record", 0.1)
    assert 20 < p.privacy.max_records < 100
    opened, share = result.totals["opened noise"], p.mechanism.variance / p.update_levels**2
    measured = opened["squared"] / opened["elements"]
    assert measured == pytest.approx(p.buffer_size * share, rel=0.1)
    # Noise for all M records would be far more.
    assert measured < 0.1 * (p.privacy.max_records * p.privacy.noise) ** 2
    assert 0 < result.totals["epsilon"] <= 3


def test_where_nobody_is_trusted_each_adds_the_noise_of_a_sum():
    shares = [
        config(max_colluding_contributors=silent).protocol_parameters(650).mechanism.variance
        / config(max_colluding_contributors=silent).protocol_parameters(650).update_levels ** 2
        for silent in (1, 3)
    ]
    assert shares[1] / shares[0] == pytest.approx(3, rel=0.15)


def test_a_run_can_be_repeated():
    first, again = (simulate(config(versions=2)).model for _ in range(2))
    assert (first == again).all()
    assert np.isfinite(first).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fedbuff"}, "hidden by nothing else"),
        ({"epsilon": None, "noise": 0.0}, "hidden by nothing else"),
        ({"local_steps": 2}, "1 with unit"),
        ({"weigh_examples": "mean"}, "1 with unit"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"unit": "user"}, "1 for users"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ParameterError, match=words):
        config(**changes)
