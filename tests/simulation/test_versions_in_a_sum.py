"""m members of each version in a sum: on the clock of devices, not on the paper's, which knows no company."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate
from basecagg.errors import LocalProtocolError, ParameterError
from basecagg.protocol.buffer import Buffer

STAGGERED = {"users": 5, "buffer_size": 3, "versions": 25, "speed": "log-normal", "dropout": 0.4}
"""Few, of very different speeds, and many updates are lost: nobody else is there to fill a version."""


def run(method: str = "basecagg", **changes: Any) -> SimulationResult:
    return simulate(tiny_config(method, **changes), task=tiny_task())


def fewest(result: SimulationResult) -> int:
    """Members of the rarest version in any sum."""
    sums = (record.staleness for record in result.versions if record.staleness)
    return min(count for ages in sums for count in Counter(ages).values())


@pytest.mark.parametrize("cryptography", ["full", "arithmetic"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_few_users_of_many_speeds_go_on(cryptography: str, seed: int) -> None:
    result = run(
        **STAGGERED, concurrency=5, min_per_version=3, cryptography=cryptography, seed=seed
    )
    assert result.versions[-1].version == 25
    assert fewest(result) == 3


def test_control_without_giving_way_they_all_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they train again from one version at once; who waits for the next one meets others there."""
    monkeypatch.setattr(Buffer, "evict_lonely", lambda self, at_work: [])
    trusting = {"consistency": "honest-server", "cryptography": "arithmetic"}
    with pytest.raises(LocalProtocolError, match="nobody trains"):
        run(**STAGGERED, **trusting, concurrency=5, min_per_version=3)


@pytest.mark.parametrize("m", [1, 2])
def test_versions_mix_within_m(m: int) -> None:
    chosen = {"min_per_version": m, "weights": "own" if m > 1 else "field"}
    result = run(versions=20, cryptography="arithmetic", speed_spread=2.0, **chosen)
    assert fewest(result) == m
    assert any(len(set(record.staleness)) > 1 for record in result.versions)


def test_fedbuff_in_clear_knows_no_m() -> None:
    """Its server reads every update as it is."""
    plain, asked = (run("fedbuff", versions=10, min_per_version=m) for m in (1, 4))
    assert [record.staleness for record in plain.versions] == [
        record.staleness for record in asked.versions
    ]


def test_the_default_is_certified() -> None:
    assert SimulationConfig().protocol_parameters(10).least_per_version == 3
    trusting = SimulationConfig(consistency="honest-server")
    assert trusting.protocol_parameters(10).least_per_version == 1


def test_the_papers_clock_needs_m_of_one_by_name() -> None:
    paper = {"method": "basecagg", "clock": "uniform-staleness"}
    with pytest.raises(ParameterError, match="min_per_version = None must be 1 on this clock"):
        SimulationConfig(**paper)
    SimulationConfig(**paper, min_per_version=1)
    SimulationConfig(**paper, consistency="honest-server")
    SimulationConfig(**paper | {"method": "fedbuff"})
