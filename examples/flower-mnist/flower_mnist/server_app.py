"""What the server does: start the strategy, test the global model, keep it."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from basecagg.flower import BufferedSecAgg
from flower_mnist import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the run's configuration says."""
    config = context.run_config
    fraction_evaluate = config["fraction-evaluate"]

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = task.test(task.load_net(config, arrays), task.load_test(config))
        print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = BufferedSecAgg(
        buffer_size=context.run_config["buffer-size"],
        fraction_evaluate=fraction_evaluate,
        evaluate_metrics={"eval_acc": 1.0},
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.Net(config["dataset"]).state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    if config["model-file"]:
        torch.save(result.arrays.to_torch_state_dict(), config["model-file"])
