"""What is learned: a small network on handwritten digits. Nothing here knows of any protection."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, UserConfig
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from basecagg.learning import Dataset, load_dataset, partition

torch.set_num_threads(1)  # many nodes may share this machine
PIXELS = {"digits": 8 * 8, "mnist": 28 * 28}


class Net(nn.Module):
    """One hidden layer of 64."""

    def __init__(self, dataset: str) -> None:
        """Take the images of `dataset`."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(PIXELS[dataset], 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Score the ten classes."""
        return self.layers(images)


def load_net(run: UserConfig, arrays: ArrayRecord) -> Net:
    """The network with these weights."""
    net = Net(run["dataset"])
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


@cache
def load(dataset: str, data_dir: str) -> Dataset:
    """Digits come with scikit-learn; MNIST is fetched into `data_dir` if it is not there."""
    return load_dataset(dataset, data_dir=Path(data_dir), download=True)


def load_part(run: UserConfig, node: UserConfig) -> DataLoader:
    """The examples of one node: a Dirichlet(1) part, so that nodes differ."""
    data = load(run["dataset"], run["data-dir"])
    labels, generator = data.train_y.numpy(), np.random.default_rng(0)
    parts = partition("dirichlet", labels, node["num-partitions"], generator, alpha=1.0)
    part = parts[node["partition-id"]]
    return DataLoader(
        TensorDataset(data.train_x[part], data.train_y[part]), batch_size=20, shuffle=True
    )


def load_test(run: UserConfig) -> DataLoader:
    """The examples that nobody trains on."""
    data = load(run["dataset"], run["data-dir"])
    return DataLoader(TensorDataset(data.test_x, data.test_y), batch_size=1000)


def train(net: nn.Module, examples: DataLoader, epochs: int, learning_rate: float) -> float:
    """Plain SGD; return the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    losses = []
    for _ in range(epochs):
        for images, labels in examples:
            optimizer.zero_grad()
            loss = cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: nn.Module, examples: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy."""
    outputs, labels = zip(*((net(images), labels) for images, labels in examples), strict=True)
    scores, truth = torch.cat(outputs), torch.cat(labels)
    accuracy = (scores.argmax(dim=1) == truth).float().mean()
    return cross_entropy(scores, truth).item(), accuracy.item()
