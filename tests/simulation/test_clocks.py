"""The two clocks: devices are as slow as drawn, everything is charged, and staleness is what was asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate
from basecagg.costs import Prices, open_pairwise
from basecagg.options import Speed
from basecagg.parameters import ProtocolParameters
from basecagg.simulation.beginning import Devices


def run(config: SimulationConfig) -> SimulationResult:
    return simulate(config, task=tiny_task())


@pytest.mark.parametrize(
    ("speed", "mean", "least"),
    [
        ("constant", 2.0, 2.0),
        ("uniform", 4.0, 2.0),  # between 1 and 1 + 2·spread times the typical
        ("half-normal", 2 * (1 + np.sqrt(2 / np.pi)), 2.0),
        ("log-normal", 2 * np.exp(0.5), 0.0),
    ],
)
def test_speeds_are_distributed_as_named(speed: Speed, mean: float, least: float) -> None:
    config = tiny_config(users=200_000, speed=speed, seconds_per_step=2.0, speed_spread=1.0)
    drawn = Devices.draw(config, np.random.default_rng(5)).step_seconds
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.min() >= least


def test_transfers_are_charged_by_size_and_latency() -> None:
    config = tiny_config(up_mbps=8.0, down_mbps=80.0, latency=0.25)
    devices = Devices.draw(config, np.random.default_rng(0))
    assert devices.upload(1e6) == pytest.approx(1.25)
    assert devices.download(1e6) == pytest.approx(0.35)
    assert devices.training(3, 10) == pytest.approx(10 * devices.step_seconds[3])


def test_the_first_version_comes_when_its_slowest_member_is_done() -> None:
    """Constant speed, everyone at once: download, five steps of half a second, upload."""
    config = tiny_config(speed="constant", latency=0.1, up_mbps=1e9, down_mbps=1e9)
    first = run(config).versions[1]
    assert first.time == pytest.approx(0.1 + 5 * 0.5 + 0.1)


def test_opening_a_sum_takes_simulated_time() -> None:
    common = {"speed": "constant", "versions": 1, "up_mbps": 1e9, "down_mbps": 1e9}
    plain, secure, honest = (
        run(tiny_config(method, latency=0.5, **common, **more)).time
        for method, more in (
            ("fedbuff", {}),
            ("basecagg", {}),
            ("basecagg", {"consistency": "honest-server"}),
        )
    )
    assert secure > plain + 4 * 0.5  # asked for endorsements, then for answers: there and back
    assert plain + 2 * 0.5 < honest < secure - 0.9


def test_a_stopwatch_may_be_used_instead_of_the_prices() -> None:
    config = tiny_config("basecagg", versions=2)
    priced, measured = run(config), run(replace(config, crypto_time="stopwatch"))
    assert priced.totals["crypto seconds"].keys() == measured.totals["crypto seconds"].keys()
    assert measured.time != priced.time


def test_prices_grow_with_what_they_are_for() -> None:
    def prices(cryptography: bool = True, **changes: object) -> Prices:
        values: dict[str, object] = {
            "num_holders": 20,
            "recovery_threshold": 12,
            "max_colluders": 2,
            "max_dropouts": 6,
            "buffer_size": 4,
            "model_size": 1000,
        }
        parameters = ProtocolParameters(**(values | changes))  # type: ignore[arg-type]
        return Prices(parameters, cryptography=cryptography)

    usual, large, bare = prices(), prices(model_size=10**6), prices(cryptography=False)
    for step in ("deal", "mask", "answer", "open"):
        assert getattr(bare, step)() < getattr(usual, step)() < getattr(large, step)()
    assert prices(consistency="honest-server").open() < usual.open()
    # Large models have masks from keys: shares do not grow any more, but masks have to.
    larger, long = prices(model_size=10**7), prices(model_size=10**6, masks="long")
    assert large.deal() == larger.deal() < long.deal()
    assert large.answer() == larger.answer() < long.answer()
    assert long.mask() < large.mask() < larger.mask()
    assert large.open() < min(long.open(), larger.open())
    assert open_pairwise(1000, 8, 2, 9, 6) > open_pairwise(1000, 10, 0, 9, 6)


def test_users_that_vanish_are_replaced() -> None:
    result = run(tiny_config(dropout=0.6, availability=0.5, versions=3))
    assert result.versions[-1].version == 3
    with_all = run(tiny_config(versions=3))
    assert result.time > with_all.time


def test_staleness_is_uniform_on_the_papers_clock() -> None:
    config = tiny_config(clock="uniform-staleness", max_staleness=3, versions=250)
    result = run(config)
    ages = Counter(age for version in result.versions[4:] for age in version.staleness)
    assert sorted(ages) == [0, 1, 2, 3]
    expected = ages.total() / 4
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in ages.values())
    early = [max(version.staleness) for version in result.versions[1:4]]
    assert all(age <= version for version, age in enumerate(early))


def test_concurrency_bounds_staleness() -> None:
    busy = run(tiny_config(versions=6, users=30, concurrency=28))
    calm = run(tiny_config(versions=6, users=30, concurrency=4))
    mean_age = [
        np.mean([age for version in result.versions for age in version.staleness])
        for result in (busy, calm)
    ]
    assert mean_age[0] > 2 * mean_age[1]
