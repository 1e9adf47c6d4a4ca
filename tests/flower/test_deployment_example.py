"""The example on Flower's two engines, by the commands that a user types."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from deployment_apps import accuracies
from deployment_harness import EXAMPLE, Deployment, Simulation
from deployment_stores import OUTLIVING, kinds_of_records

NODES, BUFFER = 6, 3
CHANCE = 0.1
TRACES = ("ray/session_*", "basecagg*", "basecagg*/*", "flwr*")
"""What the three leave among temporary files."""


def footprints() -> set[tuple[str, int]]:
    """The files that Flower, Ray and basecagg write if nobody tells them otherwise, and the example's."""
    home = Path.home()
    own = [home / ".flwr", home / ".local" / "state" / "basecagg", EXAMPLE]
    shared = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    files = [file for place in own for file in place.rglob("*") if file.is_file()]
    traces = [trace for place in shared for name in TRACES for trace in place.glob(name)]
    return {(str(path), path.lstat().st_mtime_ns) for path in (*files, *traces)}


@pytest.mark.parametrize(
    "place", [".flwr/a", ".local/state/basecagg/a/b", "ray/session_1/a", "basecagg-flower/1/a"]
)
def test_footprints_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = footprints()
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()
    assert footprints() != before


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
    """Over TLS with node authentication; at the end the nodes have erased sealing keys, masks and shares."""
    before = footprints()
    with Deployment.running(NODES) as federation:
        model = federation.folder / "model.pt"
        settings = f"num-server-rounds=3 buffer-size={BUFFER} model-file='{model}'"
        federation.start_run(EXAMPLE, settings)
        learned = accuracies(federation.finish_run())
        kept = kinds_of_records(federation.folder / "state")
        assert model.exists()
    assert list(learned) == [0, 1, 2, 3]
    assert learned[3] > 3 * CHANCE
    assert kept == OUTLIVING
    assert footprints() == before
