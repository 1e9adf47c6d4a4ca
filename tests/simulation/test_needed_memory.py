"""Large models: how many copies of a vector a run makes, and that one which will not fit is told of."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_task
from torch import nn

from basecagg import SimulationConfig, simulate
from basecagg.errors import BASecAggWarning
from basecagg.learning import Dataset, Task
from basecagg.maths import quantization
from basecagg.protocol import masking, step_rule
from basecagg.simulation import needed_memory, secure_sums


def wide_task(inputs: int, hidden: int) -> Task:
    """Almost all parameters are in one layer, and there is next to nothing to learn from."""
    x, y = torch.randn(40, inputs), torch.arange(40) % 10
    return Task(
        name="wide",
        model=lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
        dataset=Dataset(
            name="noise", train_x=x, train_y=y, test_x=x[:9], test_y=y[:9], num_classes=10
        ),
    )


def ten_users(**changes: object) -> SimulationConfig:
    """N = 10, K = 4, U = 7, T = 2: shares of d/5 numbers; everybody trains all the time."""
    config = SimulationConfig(
        method="basecagg",
        users=10,
        concurrency=10,
        buffer_size=4,
        max_dropouts=1,
        versions=3,
        local_steps=1,
        local_rate=0.01,
        batch_size=4,
        evaluate_every=3,
    )
    return replace(config, **changes)


def treat_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a million numbers as if it were one of hundreds."""
    for limit in ("_AHEAD_BYTES", "_HELD_BYTES"):
        monkeypatch.setattr(secure_sums, limit, 0)
    for module in (masking, quantization, step_rule):
        monkeypatch.setattr(module, "_SEGMENT", 2**14)


def test_a_run_keeps_few_copies_of_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of the test below, on the protocol's side alone: torch is not traced."""
    treat_as_large(monkeypatch)
    simulate(ten_users(versions=1), task=wide_task(30, 30))  # compiles and imports what there is
    task = wide_task(1000, 1000)
    tracemalloc.start()
    try:
        result = simulate(ten_users(), task=task)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The server keeps a shipment as it came, for all holders, until the last of them has it: that is one copy.
    # Users that rest until the next version train from two versions at a time here: that is another.
    assert peak / (4 * result.totals["model size"]) < 26


def test_dealing_late_changes_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # A mask's name says when it expires, so the coin of its weight depends on when it is dealt: here all are 1.
    config = tiny_config("basecagg", versions=6, verify="never", staleness="constant")
    monkeypatch.setattr(secure_sums, "_AHEAD_BYTES", 0)
    early = simulate(config, task=tiny_task())
    monkeypatch.setattr(secure_sums, "_HELD_BYTES", 0)
    late = simulate(config, task=tiny_task())
    assert late.versions == early.versions
    np.testing.assert_array_equal(late.model, early.model)
    assert late.totals["counts"] == early.totals["counts"]


def test_a_run_that_does_not_fit_is_told_of_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needed_memory, "free_bytes", lambda: 3e9)
    with pytest.warns(BASecAggWarning, match=r"about 4\.\d GB .* 30000000 parameters, and 3\.0 GB"):
        needed_memory.warn_if_too_large(ten_users(masks="long"), 30_000_000)
    monkeypatch.setattr(needed_memory, "free_bytes", lambda: 5e9)
    needed_memory.warn_if_too_large(ten_users(masks="long"), 30_000_000)  # warnings are errors


def test_simulate_warns_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed_memory, "free_bytes", lambda: 0.0)
    monkeypatch.setattr(needed_memory, "_SMALL", 0.0)
    with pytest.warns(BASecAggWarning, match="will take about"):
        simulate(tiny_config(versions=1), task=tiny_task())


@pytest.mark.parametrize(
    "more",
    [
        {"buffer_size": 8},
        {"consistency": "honest-server", "max_dropouts": 5},
        {"crypto_time": "stopwatch"},
        {"executor": "processes", "workers": 4},
    ],
)
def test_the_estimate_grows_with_what_takes_memory(more: dict[str, object]) -> None:
    size, usual = 30_000_000, ten_users(masks="long")
    assert needed_memory.needed_bytes(replace(usual, **more), size) > needed_memory.needed_bytes(
        usual, size
    )
    assert needed_memory.needed_bytes(ten_users(), size) < needed_memory.needed_bytes(usual, size)


def test_free_memory_is_what_the_machine_or_its_container_leaves() -> None:
    assert 0 < needed_memory.free_bytes() < 2**50


CHILD = """
import resource, sys
sys.path[:0] = {paths!r}
from test_needed_memory import ten_users, wide_task
from basecagg import simulate
from basecagg.simulation import needed_memory
result = simulate(ten_users(), task=wide_task(30_000, 1000))
size = result.totals["model size"]
print(size, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(len(result.versions), needed_memory.needed_bytes(result.config, size))
"""


def said_by(program: str) -> list[float]:
    """The numbers that a process of its own prints."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "schedules"), str(here.parents[1] / "src")]
    done = subprocess.run(
        [sys.executable, "-c", program.format(paths=paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(each) for each in re.findall(r"[\d.]+", done.stdout)]


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux")
def test_a_run_with_thirty_million_parameters_fits_in_three_gigabytes() -> None:
    size, peak, versions, estimate = said_by(CHILD)
    assert (versions, size) == (4, 30_011_010)
    assert peak < 3e9
    assert peak < estimate < 1.5 * peak


ALL_PARTIES = """
import resource, sys
sys.path[:0] = {paths!r}
import numpy as np
from basecagg import Federation, ProtocolParameters
from basecagg.parameters import usual_tolerance
dropouts, colluders, threshold = usual_tolerance(10, 4, "certified")
p = ProtocolParameters(num_holders=10, max_dropouts=dropouts, max_colluders=colluders,
    recovery_threshold=threshold, buffer_size=4, model_size=30_000_000)
federation, rng = Federation(p, np.zeros(p.model_size, np.float32)), np.random.default_rng(1)
for _ in range(2):
    for index in range(4):
        federation.contribute("user-" + str(index), rng.standard_normal(p.model_size, np.float32))
        federation.run()
print(federation.server.version, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""All parties of two sums, and the parts of the first, which a server keeps."""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux")
def test_all_parties_of_thirty_million_parameters_fit_in_two_and_a_half_gigabytes() -> None:
    version, peak = said_by(ALL_PARTIES)
    assert version == 2
    assert peak < 2.5e9
