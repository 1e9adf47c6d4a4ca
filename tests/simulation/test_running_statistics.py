"""BatchNorm under stale sums: variances stay variances, and evaluation stays finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import CLASSES, FEATURES, tiny_config, tiny_task
from torch import nn

from basecagg import SimulationConfig
from basecagg.errors import BASecAggWarning
from basecagg.learning import FlatModel, Task, local_training
from basecagg.simulation.build import RunParts, build
from basecagg.simulation.simulate import play as play_all


def normed() -> nn.Module:
    """Activations with a tenth of the variance that BatchNorm supposes at first."""
    network = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    nn.init.normal_(network[0].weight, std=0.1)
    return network


def normed_task() -> Task:
    return replace(tiny_task(examples=8 * 16), model=normed)


def stale_sums(method: str, **changes: object) -> SimulationConfig:
    """Eight users, K = 2, staleness to 10, fifty versions, whole steps."""
    values = {
        "buffer_size": 2,
        "max_staleness": 10,
        "clock": "uniform-staleness",
        "versions": 50,
        "batch_size": 8,
        "staleness": "constant",
        "cryptography": "arithmetic",
        "consistency": "honest-server",
    }
    return tiny_config(method, **(values | changes))


def play(simulation: RunParts) -> tuple[list[float], float]:
    """The losses of all versions, and the least variance that there ever was."""
    least = []

    def look(_: object) -> None:
        least.append(float(simulation.schedule.model[-6:].min()))

    records = play_all(simulation, progress=look)
    simulation.workshop.close()
    return [record.loss for record in records if record.loss is not None], min(least)


@pytest.mark.parametrize("method", ["fedbuff", "basecagg"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stale_sums_leave_variances_positive_and_evaluation_finite(method: str, seed: int) -> None:
    simulation = build(stale_sums(method, seed=seed), normed_task(), {})
    losses, least = play(simulation)
    assert len(losses) == 51
    assert np.isfinite(losses).all()
    assert least > 0
    assert simulation.totals()["negative variances"] == 0


def test_whole_changes_would_add_up_to_less_than_nothing_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the same run, its statistics moved as far as its weights."""
    monkeypatch.setattr(local_training, "damped", lambda change, max_staleness: change)
    simulation = build(stale_sums("fedbuff"), normed_task(), {})
    with pytest.warns(BASecAggWarning, match=r"6 running variance\(s\).*below zero"):
        losses, least = play(simulation)
    assert least < 0
    assert np.isfinite(losses).all()  # read as zero
    assert simulation.totals()["negative variances"] > 0


@pytest.mark.parametrize("method", ["fedavg", "lightsecagg"])
def test_in_rounds_the_statistics_are_those_of_the_users(method: str) -> None:
    """Nothing is stale there, so nothing is slowed down: one round, and the mean of the users is reached."""
    config = tiny_config(method, users=8, concurrency=8, buffer_size=8, versions=1, batch_size=16)
    simulation = build(config, normed_task(), {})
    start = simulation.schedule.model
    ends = [start - simulation.workshop.begin(user, 0, start)() for user in range(8)]
    play(simulation)
    np.testing.assert_allclose(
        simulation.schedule.model[-6:], np.mean(ends, axis=0)[-6:], atol=1e-4
    )


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_no_optimiser_scales_the_statistics(
    optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in rounds above. Negative control: a rule that is not told where they are scales them too."""
    config = tiny_config("fedavg", users=8, concurrency=8, buffer_size=8, versions=1, batch_size=16)
    config = replace(config, server_optimiser=optimiser, global_rate=0.01)

    def statistics() -> tuple[np.ndarray, np.ndarray]:
        simulation = build(config, normed_task(), {})
        start = simulation.schedule.model
        ends = [start - simulation.workshop.begin(user, 0, start)() for user in range(8)]
        play(simulation)
        return simulation.schedule.model[-6:], np.mean(ends, axis=0)[-6:]

    np.testing.assert_allclose(*statistics(), atol=1e-4)
    whole = SimulationConfig.step_rule
    monkeypatch.setattr(SimulationConfig, "step_rule", lambda c, _, size: whole(c, size, size))
    scaled, of_users = statistics()
    assert np.abs(scaled - of_users).min() > 0.1


@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_stale_sums_leave_variances_positive_with_every_optimiser(optimiser: str) -> None:
    config = stale_sums("basecagg", server_optimiser=optimiser, global_rate=None)
    simulation = build(config, normed_task(), {})
    losses, least = play(simulation)
    assert np.isfinite(losses).all()
    assert least > 0


def test_a_model_without_batchnorm_has_nothing_to_count() -> None:
    config = tiny_config("fedbuff", versions=1)
    simulation = build(config, tiny_task(), {})
    play_all(simulation)
    assert "negative variances" not in simulation.totals()
    assert FlatModel(nn.Linear(2, 2)).below_zero(np.full(6, -1.0, np.float32)) == 0
