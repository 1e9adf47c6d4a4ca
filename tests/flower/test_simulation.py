"""On Flower's simulation engine: 100 nodes, K = 10, digits. Each run is a program with a Ray of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name, for Ray's sockets; in memory if there is such a place."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="fl", dir=memory if memory.is_dir() else None)
    yield Path(folder)
    shutil.rmtree(folder)


def simulate(place: Path, **options: Any) -> dict[str, Any]:
    plain = place / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    plain.mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "digits_simulation.py"), str(plain), json.dumps(options)],
        env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0, done.stderr[-3000:]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_a_hundred_nodes_open_exact_sums_and_learn(place: Path) -> None:
    found = simulate(place, versions=5, seed=0, holders=10)
    assert found["exact"]
    assert found["sums"] == 5
    assert found["contributors"] >= 20
    assert found["accuracy"][-1] > found["accuracy"][0] + 0.2
    assert not list((place / "basecagg-flower").rglob("*"))


@pytest.mark.soak
def test_masks_cost_no_accuracy(place: Path) -> None:
    """Mean of three seeds, the last versions of 40: within two points of FedBuff, every sum exact."""
    finals: dict[str, list[float]] = {"basecagg": [], "none": []}
    for seed in range(3):
        for protection, accuracies in finals.items():
            found = simulate(place, versions=40, seed=seed, holders=10, protection=protection)
            assert found.get("exact") or protection == "none"
            assert found["sums"] == 40
            accuracies.append(float(np.mean(found["accuracy"][-5:])))
    masked, plain = (float(np.mean(accuracies)) for accuracies in finals.values())
    print(f"accuracy: basecagg {finals['basecagg']}, FedBuff {finals['none']}")
    assert plain > 0.85
    assert abs(masked - plain) <= 0.02


@pytest.mark.soak
def test_every_node_may_be_a_holder(place: Path) -> None:
    """As in the paper: N = 100."""
    found = simulate(place, versions=6, seed=0, consistency="certified")
    assert found["exact"]
    assert found["sums"] == 6
