"""A user's own code: an 8×8 digits classifier in torch, on this user's part of the examples.

`basecagg join INVITATION --train digits:train --data 3/12` trains on part 3 of 12.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn

from basecagg.learning import (
    FlatModel,
    LocalTraining,
    Task,
    built_in_task,
    derive_seed,
    evaluate,
    partition,
    train_locally,
)

TRAINING = LocalTraining(learning_rate=0.1, epochs=2, batch_size=20)
torch.set_num_threads(1)  # many users share this machine


def build() -> nn.Module:
    """The model that everybody trains."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _task().model()


def train(model, info):
    """Train the global model on this user's own examples."""
    part, parts = map(int, info.data.split("/"))
    seed = derive_seed(0, part, info.version, info.round)
    update = train_locally(
        _task(), _flat(), model, _parts(parts)[part], TRAINING, seed=seed, user=info.name
    )
    return model - update.delta


def accuracy(model, info):
    """The operator's own test: the part of the test digits that the model reads rightly."""
    return evaluate(_task(), _flat(), model).score


@cache
def _task() -> Task:
    return built_in_task("mlp", "digits")


@cache
def _flat() -> FlatModel:
    return FlatModel(build())


@cache
def _parts(count: int):
    labels = _task().dataset.train_y.numpy()
    return partition("dirichlet", labels, count, np.random.default_rng(0), alpha=1.0)
