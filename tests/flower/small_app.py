"""An ordinary Flower app, small enough for tests: linear regression on private data, with metrics in clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from basecagg.flower import BufferedSecAgg

TRUTH = np.arange(1, 6, dtype=np.float32)


def initial_arrays() -> ArrayRecord:
    return ArrayRecord([np.zeros(5, np.float32), np.zeros(1, np.float32)])


def data_of(partition: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(20 + partition, 5)).astype(np.float32)
    return x, times(x, TRUTH) + 0.5


def times(x: Any, vector: Any) -> Any:
    """Matrix times vector, without a BLAS: that sometimes raises flags over lanes which it does not use."""
    return (x * vector).sum(axis=1)


def make_app(mods: list[Any], watch: Callable[[int, Any, Any], None] | None = None) -> ClientApp:
    """`watch` is told of every training: the node, the model before, and the model after."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w, b = (array.copy() for array in message.content["arrays"].to_numpy_ndarrays())
        before = np.concatenate([w, b])
        x, y = data_of(int(context.node_config["partition-id"]))
        # No training is ever repeated exactly: the same update twice would be refused.
        kept = np.random.default_rng().permutation(len(y))[:-2]
        x, y = x[kept], y[kept]
        for _ in range(10):
            e = times(x, w) + b[0] - y
            w -= 0.05 * times(x.T, e) / len(y)
            b -= 0.05 * e.mean()
        assert np.isfinite([*w, *b]).all()
        if watch is not None:
            watch(context.node_id, before, np.concatenate([w, b]))
        metrics = {"num-examples": len(y), "loss": float((e**2).mean())}
        return Message(
            RecordDict({"arrays": ArrayRecord([w, b]), "metrics": MetricRecord(metrics)}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w, b = message.content["arrays"].to_numpy_ndarrays()
        x, y = data_of(int(context.node_config["partition-id"]))
        metrics = {"num-examples": len(y), "mse": float(((times(x, w) + b[0] - y) ** 2).mean())}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def small_strategy(**options: Any) -> BufferedSecAgg:
    """A strategy for grids of a few nodes in one process."""
    defaults = {
        "buffer_size": 3,
        "concurrency": 4,
        "training": "attached",
        "poll_interval": 0.0,
        "seed": 1,
    }
    return BufferedSecAgg(**(defaults | options))
