"""The queue of versions: each is published with its sum, no sooner and no later, also after a checkpoint."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from tiny import tiny_config

from basecagg import SimulationConfig
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol.effects import Abandoned
from basecagg.protocol.server import Server
from basecagg.simulation import checkpoint
from basecagg.simulation.aggregator import Aggregator
from basecagg.simulation.beginning import Beginning, Devices
from basecagg.simulation.build import make_sums
from lying import lie

CONFIG = tiny_config("basecagg", cryptography="arithmetic", latency=5.0)
MODEL = np.zeros(12, np.float32)


def aggregator(state: dict[str, object], config: SimulationConfig = CONFIG) -> Aggregator:
    devices = Devices.draw(config, np.random.default_rng(0))
    return Aggregator(Beginning(config, MODEL, config.step_rule(12, 12), devices, state), make_sums)


def fill(server: Aggregator, users: range, scale: float = 0.1) -> None:
    for user in users:
        server.sums.prepare(user)
        server.submit(user, np.full(12, scale * (1 + user), np.float32), server.version)


def test_a_sum_that_is_not_published_yet_waits_with_its_version() -> None:
    server = aggregator({})
    fill(server, range(4))
    server.advance(1.0)
    fill(server, range(4, 8))
    assert server.take_step() == (None, 0)
    first, second = (publication.step for publication in server.pending)
    server.advance(server.pending[0].at)
    assert server.take_step() == (first, 0)
    assert server.take_step() == (None, 0)
    server.advance(inf)
    assert server.take_step() == (second, 0)
    assert first is not None
    assert first.base_versions == (0, 0, 0, 0)


def test_what_waits_survives_a_checkpoint(tmp_path) -> None:  # type: ignore[no-untyped-def]
    server = aggregator({})
    fill(server, range(4))
    server.sums.network.news.append(Abandoned(0, (), "its answers disagree"))
    checkpoint.save(tmp_path / "state", server.state())
    again = aggregator(checkpoint.load(tmp_path / "state"))
    for each in (server, again):
        assert each.is_opening
        each.advance(inf)
    (step, burned), (same, burned_too) = server.take_step(), again.take_step()
    assert (burned, burned_too) == (1, 1)
    assert step is not None
    assert same is not None
    assert same.members == step.members
    np.testing.assert_array_equal(same.weighted_sum, step.weighted_sum)
    np.testing.assert_array_equal(again.model, server.model)
    assert again.totals() == server.totals()


def after_a_spoiled_sum(monkeypatch: pytest.MonkeyPatch) -> int:
    """The version that four users come to whose first sum one of them spoils.

    Four others have dealt masks, and never upload.
    """
    server = aggregator({}, tiny_config("basecagg"))
    for user in range(4, 8):
        server.sums.prepare(user)
    fill(server, range(3))
    with monkeypatch.context() as lying:
        lying.setattr(contributor_module, "hide", lie)
        fill(server, range(3, 4))
    assert server.take_step() == (None, 1)
    fill(server, range(4), 0.2)
    return server.server.version


def test_members_of_a_spoiled_sum_are_left_out_for_a_while_only(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A run has no clock of the server: its deadline passes while their updates wait for others."""
    assert after_a_spoiled_sum(monkeypatch) == 1


def test_a_run_that_did_not_wait_for_them_would_stand_still(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Negative control."""
    monkeypatch.setattr(Server, "waits_for_others", False)
    assert after_a_spoiled_sum(monkeypatch) == 0
