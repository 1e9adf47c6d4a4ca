"""A learning problem of 12 numbers, and configurations that fit it: a whole run takes a moment."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from basecagg import SimulationConfig
from basecagg.learning import Dataset, Task

FEATURES, CLASSES = 3, 3


def tiny_task(examples: int = 48) -> Task:
    """Logistic regression on three Gaussian clouds."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)

    def clouds(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % CLASSES
        centres = 2 * torch.eye(CLASSES)[labels]
        return centres + torch.randn(count, FEATURES, generator=generator), labels

    (train_x, train_y), (test_x, test_y) = clouds(examples), clouds(30)
    return Task(
        name="clouds",
        model=lambda: nn.Linear(FEATURES, CLASSES),
        dataset=Dataset(
            name="clouds",
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            num_classes=CLASSES,
        ),
    )


def tiny_config(method: str = "fedbuff", **changes: Any) -> SimulationConfig:
    """Eight users, buffers of four, whole steps.

    Two of each version meet in a sum: nobody works with the server. Where somebody may, for there is noise, the
    server is honest, and versions meet as they like.
    """
    values = {"users": 8, "concurrency": 6, "buffer_size": 4, "versions": 4, "tiers": 2}
    meeting: dict[str, Any] = {"max_colluding_contributors": 0, "min_per_version": 2}
    if method == "basecagg-dp":
        meeting = {"consistency": "honest-server"}
    if changes.get("clock") == "uniform-staleness":
        meeting["min_per_version"] = 1
    return SimulationConfig(method=method, **({"global_rate": 1.0} | meeting | values | changes))
