"""A simulated run under SecAgg and SecAgg+: the step is the plain one, and a resumed run is the same run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from basecagg import SimulationConfig, simulate
from basecagg.errors import ParameterError
from basecagg.simulation.secagg_sums import round_parameters

TINY = {
    "users": 12,
    "concurrency": 8,
    "buffer_size": 6,
    "versions": 3,
    "dropout": 0.1,
    "speed": "constant",
    "latency": 0.0,
    "local_epochs": None,
    "local_steps": 1,
}
PAIRWISE = pytest.mark.parametrize("method", ["secagg", "secagg+"])


@PAIRWISE
def test_a_round_takes_the_same_step_as_fedavg_up_to_rounding(method: str) -> None:
    tiny = TINY | {"versions": 1}
    plain = simulate(SimulationConfig(method="fedavg", **tiny))
    masked = simulate(SimulationConfig(method=method, **tiny))
    # Each of the K members is rounded to a neighbouring multiple of 1/c_l.
    assert np.abs(plain.model - masked.model).max() <= 2.0**-16 + 1e-6
    assert not np.array_equal(plain.model, np.zeros_like(plain.model))


@PAIRWISE
def test_a_resumed_run_is_the_same_run(method: str, tmp_path: Path) -> None:
    config = SimulationConfig(method=method, **TINY, checkpoint_every=1)
    whole = simulate(config, folder=tmp_path / "whole")

    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(record: object) -> None:
        if getattr(record, "version", 0) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulate(config, folder=tmp_path / "cut", progress=interrupt)
    resumed = simulate(config, folder=tmp_path / "cut", resume=True)
    assert np.array_equal(whole.model, resumed.model)


def test_secagg_plus_uses_a_sparse_graph_when_there_is_one() -> None:
    config = SimulationConfig(method="secagg+", users=200, concurrency=200, buffer_size=180)
    assert len(round_parameters(config, 200, 10).graph[0]) < 50
    small = SimulationConfig(method="secagg+", users=12, concurrency=12, buffer_size=6)
    assert len(round_parameters(small, 12, 10).graph[0]) == 11


@PAIRWISE
def test_a_sum_that_could_wrap_is_refused(method: str) -> None:
    with pytest.raises(ParameterError, match="c_l"):
        SimulationConfig(method=method, **TINY | {"update_levels": 2**28})


@PAIRWISE
def test_another_field_is_refused(method: str) -> None:
    with pytest.raises(ParameterError, match="modulus"):
        SimulationConfig(method=method, **TINY | {"modulus": 65537})
