"""Seconds per version on the deployment engine: `python tests/flower/deployment_figures.py`, ten minutes.

Six SuperNodes on this machine, over TLS with authentication. Training takes eight seconds more than it needs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from deployment_apps import accuracies, slow_app
from deployment_harness import Deployment

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results" / "flower-deployment.json"
NODES, BUFFER, VERSIONS, SECONDS = 6, 3, 7, 8.0
CASES: dict[str, dict[str, object]] = {
    "FedBuff in clear": {"protection": "none", "training": "attached"},
    "private, training within the message": {"training": "attached"},
    "private, training in a process of its own": {"training": "detached"},
}


def measure(options: dict[str, object]) -> dict[str, float]:
    """One run: when did each version come?"""
    with tempfile.TemporaryDirectory() as folder, Deployment.running(NODES) as federation:
        app = slow_app(Path(folder), SECONDS, **options)
        settings = f"num-server-rounds={VERSIONS} buffer-size={BUFFER} fraction-evaluate=0.0"
        federation.start_run(app, settings)
        seen: dict[int, float] = {}
        while federation.is_running("run"):
            for version in accuracies(federation.said("run")):
                seen.setdefault(version, time.monotonic())
            time.sleep(0.1)
        learned = accuracies(federation.finish_run())
    gaps = [seen[version + 1] - seen[version] for version in range(1, VERSIONS)]
    return {
        "seconds to the first version": round(seen[1] - seen[0], 1),
        "seconds per version": round(median(gaps), 1),
        "accuracy at the end": learned[VERSIONS],
    }


def main() -> None:
    """Measure every case and keep the figures."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.machine import describe

    about = describe() | {
        "nodes": NODES,
        "buffer": BUFFER,
        "versions": VERSIONS,
        "extra seconds of training": SECONDS,
    }
    cases = {name: measure(options) for name, options in CASES.items()}
    FIGURES.write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n", "utf-8")
    print(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
