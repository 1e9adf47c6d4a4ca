"""On Flower's simulation engine: 100 nodes, K = 10, digits. Each run is a program with a Ray of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import Processes, short_folder

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
"""Faster than a disk for a hundred nodes' stores."""


def simulate(**options: Any) -> dict[str, Any]:
    """What the program found. At its end no process is left, nor a node's folder."""
    with short_folder(MEMORY if MEMORY.is_dir() else None) as folder:
        processes = Processes(folder, PYTHONPATH=_with_here())
        arguments = str(folder / "work"), json.dumps(options)
        with processes.stopped_at_the_end():
            processes.start("run", sys.executable, str(HERE / "digits_simulation.py"), *arguments)
            said = processes.finish("run")
        assert not list((folder / "tmp" / "basecagg-flower").rglob("*"))
    (line,) = (line for line in said.splitlines() if line.startswith('{"seconds"'))
    found: dict[str, Any] = json.loads(line)
    return found


def _with_here() -> str:
    """Where Ray's workers find the program's modules."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("nodes", [25, pytest.param(100, marks=pytest.mark.soak)])
def test_many_nodes_open_exact_sums_and_learn(nodes: int) -> None:
    found = simulate(versions=5, seed=0, nodes=nodes, holders=10)
    assert found["exact"]
    assert found["sums"] == 5
    assert found["contributors"] >= 20
    assert found["accuracy"][-1] > found["accuracy"][0] + 0.2


@pytest.mark.soak
def test_masks_cost_no_accuracy() -> None:
    """Mean of three seeds, the last versions of 40: within two points of FedBuff, every sum exact."""
    finals: dict[str, list[float]] = {"basecagg": [], "none": []}
    for seed in range(3):
        for protection, accuracies in finals.items():
            found = simulate(versions=40, seed=seed, holders=10, protection=protection)
            assert found.get("exact") or protection == "none"
            assert found["sums"] == 40
            accuracies.append(float(np.mean(found["accuracy"][-5:])))
    masked, plain = (float(np.mean(accuracies)) for accuracies in finals.values())
    print(f"accuracy: basecagg {finals['basecagg']}, FedBuff {finals['none']}")
    assert plain > 0.85
    assert abs(masked - plain) <= 0.02


@pytest.mark.soak
def test_every_node_may_be_a_holder() -> None:
    """As in the paper: N = 100."""
    found = simulate(versions=6, seed=0, consistency="certified")
    assert found["exact"]
    assert found["sums"] == 6
