"""What a slow node costs on the deployment engine: `python tests/flower/deployment_figures.py`, ten minutes.

Three SuperNodes on this machine, all holders, all needed for a sum (U = N). One of them trains for two minutes,
the others for seconds. They mostly sleep meanwhile, so that other work on the machine matters little.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from deployment_apps import accuracies, slow_app
from deployment_harness import Deployment

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results" / "flower-deployment.json"
NODES, BUFFER, VERSIONS = 3, 2, 2
SECONDS = "120 if node == 'node2' else 4"
OPTIONS = {"recovery_threshold": NODES, "max_dropouts": 0, "max_colluders": 1, "poll_interval": 1.0}


def measure(training: str) -> dict[str, object]:
    """One run: how long did it take, and how many messages?"""
    with tempfile.TemporaryDirectory() as folder, Deployment.running(NODES) as federation:
        app = slow_app(Path(folder), SECONDS, training=training, **OPTIONS)
        settings = f"num-server-rounds={VERSIONS} buffer-size={BUFFER} fraction-evaluate=0.0"
        federation.start_run(app, settings)
        seen: dict[int, float] = {}
        while federation.is_running("run"):
            for version in accuracies(federation.said("run")):
                seen.setdefault(version, time.monotonic())
            time.sleep(0.2)
        federation.finish_run()
        heard = [federation.said(f"node{node}").count("Receiving: ") for node in range(NODES)]
    return {
        "training": training,
        "seconds from start to each version": [
            round(seen[version] - seen[0]) for version in range(1, VERSIONS + 1)
        ],
        "messages": sum(heard),
    }


def main() -> None:
    """Measure both ways to train and keep the figures."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.machine import describe

    about = describe() | {
        "nodes": NODES,
        "buffer": BUFFER,
        "seconds of training": SECONDS,
    }
    cases = [measure(training) for training in ("detached", "attached")]
    FIGURES.write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n", "utf-8")
    print(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
