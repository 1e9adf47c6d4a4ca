"""Twelve centres as real processes over TLS learn a model of survival: `python examples/dialysis/service.py`.

Each has a file with its own rows and nobody else's. They train at their own pace, on a server that learns sums
of five updates only. `--made-up` takes patients that need no package.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import patients

sys.path.append(str(Path(__file__).parent.parent / "federation"))

from run import Processes, free_port, last_score, wait_for_version, wait_until_listening

CENTRES = 12
HELD_BACK = 5
"""One patient of so many is not trained on, but tested."""


def main() -> None:
    """Tell the whole story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=40, help="when to stop")
    parser.add_argument("--made-up", action="store_true", help="made-up patients: needs no package")
    given = parser.parse_args()
    centres = patients.made_up(CENTRES) if given.made_up else patients.real()
    with tempfile.TemporaryDirectory(prefix="dialysis-") as folder:
        processes = Processes(Path(folder), Path(__file__).parent)
        names = hand_out(centres, processes.folder)
        try:
            tell(processes, names, given.versions)
        finally:
            processes.stop()


def hand_out(centres: dict[str, patients.Rows], folder: Path) -> list[str]:
    """A file for each of the twelve largest centres, and one for the operator's test."""
    largest = sorted(centres, key=lambda name: -len(centres[name]["time"]))[:CENTRES]
    chosen = {name: centres[name] for name in sorted(largest)}
    for name, rows in chosen.items():
        np.savez(folder / f"{name}.npz", **_part(rows, held_back=False))
    tested = [_part(rows, held_back=True) for rows in chosen.values()]
    together = {name: np.concatenate([each[name] for each in tested]) for name in patients.COLUMNS}
    np.savez(folder / "test.npz", **together)
    return list(chosen)


def _part(rows: patients.Rows, *, held_back: bool) -> patients.Rows:
    at = np.arange(len(rows["time"])) % HELD_BACK == 0
    return {name: values[at == held_back] for name, values in rows.items()}


def tell(processes: Processes, names: list[str], versions: int) -> None:
    """Invite the centres, learn, export."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    processes.run("operator", "init", "--name", "dialysis", "--url", url)
    processes.start(
        "server",
        *("serve", "--state", "operator/server", "--host", "127.0.0.1", "--port", str(port)),
        *("--evaluate", "network:score", "--answer-timeout", "5"),
    )
    wait_until_listening(port, processes)
    processes.run("operator", "invite", *names)
    for name in names:
        processes.start(
            name,
            *("join", f"{name}.invitation", "--state", name, "--anchors", "anchors"),
            *("--train", "network:train", "--data", f"{name}.npz", "--longest-wait", "2"),
        )
    processes.run(
        *("operator", "start", "--model", "network:build", "--holders", str(CENTRES)),
        *("--max-dropouts", "3", "--max-colluders", "3", "--buffer-size", "5"),
    )
    wait_for_version(processes, 1)
    before = last_score(processes)
    wait_for_version(processes, versions)
    processes.run("operator", "export", "survival.safetensors", "--model", "network:build")
    print(f"log likelihood of an interval, on patients held back: {before:.4f} at version 1,"
          f" {last_score(processes):.4f} at version {versions}")  # fmt: skip


if __name__ == "__main__":
    main()
