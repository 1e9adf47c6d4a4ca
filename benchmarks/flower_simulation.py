"""Flower's simulation engine running FedAvg, in an interpreter of its own: `.venv/flower-peer`.

One client at a time, as our in-process executor trains; the first round starts the workers and is not counted.
Started by `benchmarks.simulation`, which see.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from basecagg.learning.models import build_model
from benchmarks.simulation import CLASSES, SHAPE, Sizes, epoch_of_sgd

DATA = "BENCHMARK_DATA"
client_app, server_app = ClientApp(), ServerApp()


@lru_cache
def world() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """One model and the data, once per process."""
    torch.set_num_threads(1)
    with np.load(os.environ[DATA]) as arrays:
        data = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return build_model("lenet5", SHAPE, CLASSES), data


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch, the same steps as the bare loop takes."""
    model, data = world()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    indices = data["parts"][int(context.node_config["partition-id"])]
    started = time.perf_counter()
    epoch_of_sgd(model, data["x"], data["y"], indices)
    seconds = time.perf_counter() - started
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(indices), "seconds": seconds}),
        }
    )
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):
    """Notes when each round ends, and how long its clients trained."""

    def __init__(self, **options: Any) -> None:
        """As FedAvg."""
        super().__init__(**options)
        self.rounds: list[tuple[float, float, int]] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """As FedAvg, with a stopwatch."""
        messages = list(replies)
        result = super().aggregate_train(server_round, messages)
        seconds = [float(message.content["metrics"]["seconds"]) for message in messages]
        self.rounds.append((time.perf_counter(), sum(seconds), len(seconds)))
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds and print what they took."""
    sizes = Sizes(**json.loads(sys.argv[1]))
    model, _ = world()
    strategy = TimedFedAvg(
        fraction_train=sizes.buffer / sizes.users,
        fraction_evaluate=0.0,
        min_available_nodes=sizes.users,
        min_train_nodes=sizes.buffer,
    )
    first = ArrayRecord(model.state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=sizes.versions + 1)
    (begun, _, _), *rounds = strategy.rounds
    result = {
        "wall": rounds[-1][0] - begun,
        "training": sum(training for _, training, _ in rounds),
        "updates": sum(count for _, _, count in rounds),
    }
    print("RESULT " + json.dumps(result), flush=True)


def main() -> None:
    """Run the federation on one core of Ray."""
    sizes = Sizes(**json.loads(sys.argv[1]))
    one_at_a_time: Any = {
        "init_args": {"num_cpus": 1, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, sizes.users, backend_config=one_at_a_time)
