"""A tuned run finds its B and c_l, epoch by epoch, from any start; and it can be stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, SimulationResult, simulate
from basecagg.errors import ParameterError
from basecagg.protocol.effects import Abandoned
from basecagg.simulation.build import build
from basecagg.simulation.logbook import VersionRecord

COARSE = {"update_levels": 1}
FINE = {"update_levels": 2**33, "allow_wraparound": True, "cryptography": "arithmetic"}
CLIPPED = {"update_levels": 2**33, "clip": 2.0**-11}


def tuned(**changes: Any) -> SimulationConfig:
    """Constant weights make every report count the same.

    Reports are noisy: 24 versions say enough with one seed of two, 60 with nine of ten.
    """
    values = {"auto_tune": True, "tune_after": 6, "versions": 60, "staleness": "constant"}
    return tiny_config("basecagg", **values | changes)


def run(config: SimulationConfig, **options: Any) -> SimulationResult:
    return simulate(config, task=tiny_task(), **options)


@pytest.mark.parametrize("clock", ["devices", "uniform-staleness"])
@pytest.mark.parametrize("start", [COARSE, FINE, CLIPPED], ids=["coarse", "fine", "clipped"])
def test_a_tuned_run_leaves_a_bad_start(start: dict[str, Any], clock: str) -> None:
    result = run(tuned(clock=clock, **start))
    first, *later = result.totals["epochs"]
    assert first["update_levels"] == start["update_levels"]
    assert later, "no epoch with better parameters was begun"
    assert later[0]["first_version"] >= 6
    # 2²⁶ with field weights; own weights leave their six bits to the levels.
    assert 2**16 <= later[-1]["update_levels"] <= 2**32
    assert [record.version for record in result.versions] == list(range(61))


def test_a_tuned_run_ends_where_a_good_start_ends() -> None:
    """And an untuned one does not: the control."""
    good = run(tiny_config("basecagg", versions=60))
    bad = run(tiny_config("basecagg", versions=60, **FINE))
    found = run(tuned(**FINE))
    assert np.linalg.norm(bad.model - good.model) > 0.5
    assert found.score >= good.score - 0.05


def test_staleness_is_counted_across_epochs_and_never_crosses_them() -> None:
    result = run(tuned(clock="uniform-staleness", max_staleness=3, **COARSE))
    starts = [epoch["first_version"] for epoch in result.totals["epochs"]]
    for record in result.versions[1:]:
        epoch = max(start for start in starts if start < record.version)
        assert record.staleness
        assert all(0 <= tau <= min(3, record.version - 1 - epoch) for tau in record.staleness)


def test_updates_under_way_are_lost_with_their_epoch() -> None:
    """On the clock of devices users are training when an epoch ends; the clock of staleness wastes nobody."""
    counts = run(tuned(**COARSE)).totals["counts"]
    assert counts["updates of an earlier epoch"] > 0
    counts = run(tuned(clock="uniform-staleness", **COARSE)).totals["counts"]
    assert counts["updates of an earlier epoch"] == 0


@pytest.mark.parametrize("last", [3, 13])
def test_a_resumed_run_is_the_same(tmp_path: Path, last: int) -> None:
    config = tuned(checkpoint_every=2, **FINE)
    whole = run(config)

    class Cut(Exception):  # noqa: N818
        pass

    def cut(record: VersionRecord) -> None:
        if record.version > last:
            raise Cut

    with pytest.raises(Cut):
        run(config, folder=tmp_path / "run", progress=cut)
    resumed = run(config, folder=tmp_path / "run", resume=True)
    assert resumed.versions == whole.versions
    assert resumed.model.tobytes() == whole.model.tobytes()
    assert resumed.totals["epochs"] == whole.totals["epochs"]


def test_a_burned_buffer_is_counted_and_does_not_end_the_run() -> None:
    aggregator = build(tuned(), tiny_task(), {}).aggregator
    aggregator.sums.network.news.append(Abandoned(0, (), "its answers disagree"))
    aggregator.collect_news()
    assert aggregator.take_step() == (None, 1)


def test_a_tuned_start_that_fits_stays() -> None:
    once = run(tuned(**COARSE)).totals["epochs"][-1]
    start = {"update_levels": once["update_levels"], "clip": once["clip"]}
    assert len(run(tuned(**start)).totals["epochs"]) == 1


def test_a_tuned_run_has_exact_sums_however_long_the_model_is() -> None:
    """Without tuning such a model has masks from keys: the control."""
    chosen = [
        config.protocol_parameters(model_size=10**5).masks
        for config in (tuned(staleness="polynomial"), tiny_config("basecagg"))
    ]
    assert chosen == ["long", "keys"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedbuff"}, "auto_tune = True must be false unless method is basecagg"),
        ({"update_levels": 1, "clip": 0.5}, "update_levels = 1 must be at least 1/clip"),
        ({"masks": "keys"}, "masks = 'keys' must be 'long' for auto_tune"),
        ({"tune_after": 0}, "tune_after = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_tuned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        tuned(**changes) if "method" not in changes else tiny_config(auto_tune=True, **changes)
