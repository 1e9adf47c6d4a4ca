"""The example on Flower's two engines, by the commands that a user types."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_apps import accuracies
from deployment_harness import EXAMPLE, Deployment, Simulation

NODES, BUFFER = 6, 3
CHANCE = 0.1


def footprints() -> set[tuple[str, int]]:
    """The files where Flower and basecagg would write if nobody told them otherwise, and the example's own."""
    home = Path.home()
    places = [home / ".flwr", home / ".local" / "state" / "basecagg", EXAMPLE]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    return {(str(file), file.stat().st_mtime_ns) for file in files}


def test_it_learns_on_the_simulation_engine() -> None:
    before = footprints()
    with Simulation.running(NODES) as federation:
        federation.start_run(EXAMPLE, f"num-server-rounds=3 buffer-size={BUFFER}")
        learned = accuracies(federation.finish_run())
    assert list(learned) == [0, 1, 2, 3]
    assert learned[3] > 3 * CHANCE
    assert footprints() == before


@pytest.mark.soak
def test_it_learns_on_the_deployment_engine() -> None:
    """Over TLS with node authentication; at the end the nodes have erased what they kept."""
    before = footprints()
    with Deployment.running(NODES) as federation:
        model = federation.folder / "model.pt"
        settings = f"num-server-rounds=3 buffer-size={BUFFER} model-file='{model}'"
        federation.start_run(EXAMPLE, settings)
        learned = accuracies(federation.finish_run())
        kept = [path for path in (federation.folder / "state").rglob("*") if path.is_file()]
        assert model.exists()
    assert list(learned) == [0, 1, 2, 3]
    assert learned[3] > 3 * CHANCE
    assert kept == []
    assert footprints() == before
