"""Handwritten digits on Flower's simulation engine: python digits_simulation.py FOLDER '{"options": …}'.

A program of its own, because Ray's workers outlive what pytest could clean up. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from audit import noting_plain_updates, noting_sums, require_exact
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from basecagg.flower import BufferedSecAgg, basecagg_mod

HIDDEN = 32


@lru_cache
def digits() -> tuple[Any, ...]:
    """Training images and labels, then those for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    return x[:1500], y[:1500], x[1500:], y[1500:]


def scores(arrays: list[Any], x: Any) -> tuple[Any, Any]:
    w1, b1, w2, b2 = arrays
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return hidden, raised / raised.sum(1, keepdims=True)


def sgd(arrays: list[Any], x: Any, y: Any, rng: np.random.Generator) -> list[Any]:
    """Five epochs of a small network, in numpy: torch in every worker would take longer to import."""
    w1, b1, w2, b2 = (array.copy() for array in arrays)
    for _ in range(5):
        for batch in np.array_split(rng.permutation(len(y)), 2):
            hidden, p = scores([w1, b1, w2, b2], x[batch])
            p[np.arange(len(batch)), y[batch]] -= 1
            p /= len(batch)
            back = (p @ w2.T) * (hidden > 0)
            w2 -= 0.3 * hidden.T @ p
            b2 -= 0.3 * p.sum(0)
            w1 -= 0.3 * x[batch].T @ back
            b1 -= 0.3 * back.sum(0)
    return [w1, b1, w2, b2]


def client_app(folder: str, seed: int, nodes: int, protection: str) -> ClientApp:
    def audited(message: Message, context: Context, call_next: Any) -> Message:
        with noting_plain_updates(Path(folder)):
            return call_next(message, context)

    app = ClientApp(mods=[] if protection == "none" else [audited, basecagg_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, y, *_ = digits()
        part = int(context.node_config["partition-id"])
        version = int(message.content["config"]["server-round"])
        rng = np.random.default_rng([seed, part, version])
        own = slice(part, None, nodes)
        arrays = sgd(message.content["arrays"].to_numpy_ndarrays(), x[own], y[own], rng)
        metrics = MetricRecord({"num-examples": len(y[own]), "secret": 1.0})
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
        )

    return app


def initial(seed: int) -> ArrayRecord:
    rng = np.random.default_rng(seed)
    shapes = ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
    return ArrayRecord([(0.1 * rng.normal(size=s)).astype(np.float32) for s in shapes])


def accuracy(arrays: ArrayRecord) -> float:
    *_, x, y = digits()
    _, p = scores(arrays.to_numpy_ndarrays(), x)
    return float((p.argmax(1) == y).mean())


def main(folder: str, versions: int, seed: int, nodes: int = 100, **options: Any) -> None:
    found: dict[str, Any] = {}
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        started = time.perf_counter()
        strategy = BufferedSecAgg(
            buffer_size=10, concurrency=20, seed=seed, min_available_nodes=nodes, **options
        )
        with noting_sums() as sums:
            result = strategy.start(
                grid=grid,
                initial_arrays=initial(seed),
                num_rounds=versions,
                evaluate_fn=lambda _, arrays: MetricRecord({"accuracy": accuracy(arrays)}),
            )
        curve = [m["accuracy"] for m in result.evaluate_metrics_serverapp.values()]
        found["seconds"] = time.perf_counter() - started
        found["accuracy"], found["sums"] = curve, len(sums)
        ages = [s.version - base for s in sums for base in s.base_versions]
        found["staleness"] = float(np.mean(ages))
        found["contributors"] = len({m.contributor for s in sums for m in s.members})
        if options.get("protection") != "none":
            require_exact(sums, Path(folder))
            found["exact"] = True

    run_simulation(
        server_app=server,
        client_app=client_app(folder, seed, nodes, options.get("protection", "basecagg")),
        num_supernodes=nodes,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    import digits_simulation  # workers know this module by its name, not as the main one

    digits_simulation.main(sys.argv[1], **json.loads(sys.argv[2]))
