"""Sums that may wrap around: exact while they fit, spoiled and counted when they do not, never in an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from basecagg import SimulationConfig, simulate
from basecagg.errors import ParameterError
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.beginning import Beginning, Devices
from basecagg.simulation.field_sums import WrappingSums


def config(**changes: Any) -> SimulationConfig:
    values: dict[str, Any] = {
        "method": "basecagg",
        "cryptography": "arithmetic",
        "allow_wraparound": True,
        "clock": "uniform-staleness",
        "versions": 3,
        "buffer_size": 4,
        "users": 10,
        "staleness": "constant",
        "consistency": "honest-server",
        "weights": "field",
    }
    return SimulationConfig(**values | changes)


def opened(levels: int, updates: list[np.ndarray]) -> tuple[np.ndarray, dict[str, float]]:
    """The step that these updates make in a model of zeros."""
    chosen = config(buffer_size=len(updates), update_levels=levels, global_rate=1.0)
    size = updates[0].size
    rule, devices = chosen.step_rule(size, size), Devices.draw(chosen, np.random.default_rng(0))
    first = Beginning(chosen, np.zeros(size, np.float32), rule, devices)
    aggregator = Aggregator(first, WrappingSums)
    for user, update in enumerate(updates):
        aggregator.submit(user, update.astype(np.float32), 0)
    aggregator.advance(1.0)
    return -aggregator.model, aggregator.totals()["field errors"]


UPDATES = [np.array([0.5, -0.25, 0.0]), np.array([0.25, 0.25, -1.0])]
MEAN = np.array([0.375, 0.0, -0.5])


def test_a_sum_that_fits_is_the_sum() -> None:
    step, errors = opened(2**16, UPDATES)
    assert np.array_equal(step, MEAN)
    assert {name: value for name, value in errors.items() if value} == {
        "elements": 3,
        "squared_signal": 0.375**2 + 0.5**2,
    }


def test_a_sum_that_does_not_fit_wraps_and_is_counted() -> None:
    step, errors = opened(2**26, UPDATES)  # room for ±(q − 1)/(2·2²⁶·128) = ±0.25
    assert errors["wrapped"] == 2
    assert errors["squared_wraparound"] > 0.1
    assert errors["squared_rounding"] == 0
    assert abs(step[0]) <= 0.25
    assert step[1] == 0


def test_coarse_levels_round() -> None:
    step, errors = opened(1, UPDATES)
    assert errors["wrapped"] == 0
    assert errors["squared_rounding"] > 0
    assert set(2 * step) <= {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_the_rounding_is_unbiased() -> None:
    size = 20_000
    step, _ = opened(1, [np.full(size, 0.3)] * 2)
    assert abs(step.mean() - 0.3) < 5 * 0.5 / np.sqrt(2 * size)


def test_what_leaves_the_clip_is_counted() -> None:
    _, errors = opened(2**10, [np.array([9.0, 1.0]), np.array([-9.0, 1.0])])
    assert errors["clipped"] == 2


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    whole = simulate(config(versions=4), folder=tmp_path / "whole")

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record: Any) -> None:
        if record.version == 3:
            raise Stop

    cut = config(versions=4, checkpoint_every=2)
    with pytest.raises(Stop):
        simulate(cut, folder=tmp_path / "cut", progress=stop)
    again = simulate(cut, folder=tmp_path / "cut", resume=True)
    assert again.totals["field errors"] == whole.totals["field errors"]
    assert np.array_equal(again.model, whole.model)


@pytest.mark.parametrize("changes", [{"cryptography": "full"}, {"method": "fedbuff"}])
def test_only_an_arithmetic_run_may_wrap(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="allow_wraparound"):
        config(**changes)


def test_the_last_versions_are_all_evaluated() -> None:
    chosen = config(versions=9, evaluate_every=4, evaluate_last=3)
    scored = [v.version for v in simulate(chosen).versions if v.score is not None]
    assert scored == [0, 4, 7, 8, 9]
