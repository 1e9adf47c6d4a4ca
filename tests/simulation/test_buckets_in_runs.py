"""A version of several sums, in arithmetic runs: one attacker spoils its bucket, and not the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationResult, simulate
from basecagg.errors import ParameterError
from basecagg.maths.robust_means import ROBUST_MEANS
from basecagg.protocol.buckets import Bucket
from basecagg.simulation.build import build
from basecagg.simulation.simulate import play

MANY = {"users": 24, "concurrency": 16, "buffer_size": 12, "buckets": 4, "holders": 6}
LIE = {"attack": "scaled", "attackers": 0.04, "attack_strength": -50.0}
"""One of 24."""
MORE = {"users": 48, "concurrency": 32, "buffer_size": 30, "buckets": 10}


def config(method: str = "basecagg", **changes: Any) -> Any:
    usual = {
        "cryptography": "arithmetic",
        "min_per_version": 3,
        "versions": 12,
        "robust_mean": "median",
    }
    return tiny_config(method, **MANY | usual | changes)


def run(method: str = "basecagg", **changes: Any) -> SimulationResult:
    return simulate(config(method, **changes), task=tiny_task(120))


def buckets_of(**changes: Any) -> list[Sequence[Bucket]]:
    """Those of every version of a run."""
    parts, found = build(config(**changes), tiny_task(120), {}), list[Sequence[Bucket]]()
    parts.aggregator.suspects.learn = found.append  # type: ignore[method-assign]
    play(parts)
    return found


@pytest.mark.parametrize("speed_spread", [0.2, 1.0, 3.0])
def test_every_bucket_has_b_members_and_nobody_is_in_two(speed_spread: float) -> None:
    versions = buckets_of(speed_spread=speed_spread)
    assert len(versions) == 12
    for buckets in versions:
        assert [len(bucket.members) for bucket in buckets] == [3] * 4
        names = [name for bucket in buckets for name in bucket.members]
        assert len(set(names)) == 12
    assert len({bucket.base_version for buckets in versions for bucket in buckets}) > 3


def test_sums_have_versions_in_multiples_of_b() -> None:
    result = run(speed_spread=3.0)
    for record in result.versions[1:]:
        assert all(count % 3 == 0 for count in Counter(record.staleness).values())


def test_control_one_sum_has_them_as_they_come() -> None:
    result = run(speed_spread=3.0, buckets=1)
    counts = [n for each in result.versions for n in Counter(each.staleness).values()]
    assert any(count % 3 for count in counts)


@pytest.mark.parametrize("robust_mean", [name for name in ROBUST_MEANS if name != "mean"])
@pytest.mark.parametrize("method", ["basecagg", "fedbuff"])
def test_one_attacker_does_not_spoil_the_model(method: str, robust_mean: str) -> None:
    honest, lied = (run(method, robust_mean=robust_mean, **lie) for lie in ({}, LIE))
    assert lied.score >= honest.score - 0.15


@pytest.mark.parametrize("changes", [{"buckets": 1}, {"robust_mean": "mean"}])
def test_control_without_a_robust_mean_it_does(changes: dict[str, Any]) -> None:
    assert run(**changes, **LIE).score < run(**changes).score - 0.15


def test_the_mean_of_buckets_is_nearly_the_one_sum() -> None:
    """Buckets of one weight each: the same updates, rounded with the same coins."""
    same = {"staleness": "constant", "masks": "long", "speed": "constant", "latency": 0.0}
    one, four = (run(buckets=g, robust_mean="mean", versions=1, **same) for g in (1, 4))
    assert np.allclose(one.model, four.model, atol=1e-5)


def test_attackers_are_suspected_in_a_run() -> None:
    lie = {"attack": "sign-flip", "attackers": 0.04, "versions": 40, "local_rate": 0.02}
    suspects = simulate(config(**MORE, **lie), task=tiny_task(240)).totals["suspects"]
    assert max(suspects, key=suspects.get) in ("user-0", "user-1")
    assert "suspects" not in run(buckets=1).totals


def test_a_resumed_run_comes_to_the_same(tmp_path: Path) -> None:
    settings, task = config(checkpoint_every=4, **MORE, **LIE), tiny_task(240)
    whole = simulate(settings, task=task)

    def stop(record: Any) -> None:
        if record.version == 6:
            raise InterruptedError

    folder = tmp_path / "run"
    with pytest.raises(InterruptedError):
        simulate(settings, task=task, folder=folder, progress=stop)
    resumed = simulate(settings, task=task, folder=folder, resume=True)
    assert np.array_equal(whole.model, resumed.model)
    assert whole.totals["suspects"] == resumed.totals["suspects"] != {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"buckets": 5}, "buckets = 5 must be a divisor of buffer_size = 12"),
        ({"buckets": 6}, "buckets = 6 must be at most 4"),
        ({"robust_mean": "krum"}, "robust_mean = 'krum' must be one of mean, median"),
        ({"cryptography": "full"}, "buckets = 4 must be 1 here"),
        ({"method": "basecagg-dp", "staleness": "constant"}, "buckets = 4 must be 1 here"),
        ({"method": "secagg", "concurrency": 16}, "buckets = 4 must be 1 here"),
        ({"method": "fedasync"}, "buckets = 4 must be 1 here"),
        ({"clock": "uniform-staleness", "consistency": "honest-server"}, "clock"),
    ],
)
def test_where_there_are_no_buckets_they_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        config(**{"method": "basecagg"} | changes)
