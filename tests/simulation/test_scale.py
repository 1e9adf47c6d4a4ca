"""Many users: drawing one costs the same among ten or ten thousand, and an idle user costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg.simulation.build import build
from basecagg.simulation.clock import IdleUsers
from basecagg.simulation.event_clock import DeviceClock
from basecagg.simulation.secure_sums import SecureSums
from basecagg.simulation.simulate import play


class CountingGenerator:
    """A generator that counts what is asked of it."""

    def __init__(self) -> None:
        self.asked = 0
        self._generator = np.random.default_rng(1)

    def integers(self, low: int, high: int) -> int:
        self.asked += 1
        return int(self._generator.integers(low, high))

    def random(self) -> float:
        self.asked += 1
        return float(self._generator.random())


def test_drawing_from_many_takes_no_longer_than_from_few() -> None:
    for users in (10, 100_000):
        generator = CountingGenerator()
        idle = IdleUsers(range(users), 1.0, generator)  # type: ignore[arg-type]
        assert len(set(idle.draw(5))) == 5
        assert generator.asked == 5


def test_every_user_is_drawn_equally_often() -> None:
    idle = IdleUsers(range(10), 1.0, np.random.default_rng(2))
    counts = np.zeros(10)
    for _ in range(4000):
        for user in idle.draw(3):
            counts[user] += 1
    expected = 4000 * 3 / 10
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected * 0.7)


def test_only_those_who_are_allowed_idle_and_there_are_drawn() -> None:
    idle = IdleUsers(range(20), 1.0, np.random.default_rng(3))
    idle.leave(4)
    assert set(idle.draw(20, lambda user: user % 2 == 0)) == {*range(0, 20, 2)} - {4}
    idle.join(4)
    assert set(idle.draw(20)) == set(range(20))
    assert idle.draw(0) == []
    half = IdleUsers(range(2000), 0.5, np.random.default_rng(3))
    assert 900 < len(half.draw(2000)) < 1100


def test_an_idle_user_has_no_machine_and_no_model_of_its_own() -> None:
    config = tiny_config(
        "basecagg", users=2000, holders=5, max_dropouts=1, max_colluders=1, versions=3
    )
    simulation = build(config, tiny_task(examples=2000), {})
    play(simulation)
    assert isinstance(simulation.aggregator.sums, SecureSums)
    members = simulation.aggregator.sums.network.members.values()
    contributors = [each for each in members if each.participant.contributor is not None]
    assert len(contributors) <= simulation.workshop.updates + config.users_at_once
    assert isinstance(simulation.clock, DeviceClock)
    saved = simulation.clock.state()
    assert len(saved["models"]) <= config.versions + 1
    assert len(saved["agenda"]) <= config.users_at_once + 1


CHILD = r"""
import re, sys
from pathlib import Path
import torch
from basecagg.learning import Dataset, Task
from basecagg.learning.models import build_model
from basecagg import SimulationConfig, simulate
x, y = torch.randn(10_000, 1, 28, 28), torch.arange(10_000) % 10
data = Dataset(name="noise", train_x=x, train_y=y, test_x=x[:9], test_y=y[:9], num_classes=10)
task = Task(name="noise", model=lambda: build_model("lenet5", (1, 28, 28), 10), dataset=data)
simulate(
    SimulationConfig(
        method="basecagg", users=10_000, holders=100, concurrency=100, versions=30, evaluate_every=30
    ),
    task=task,
)
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_ten_thousand_users_fit_in_eight_gigabytes() -> None:
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={"PYTHONPATH": source, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert int(peak) < 8e6
