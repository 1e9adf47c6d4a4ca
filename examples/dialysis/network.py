"""A centre's own training: a small network for the chance to die in each four months, on its own patients only.

`basecagg join INVITATION --train network:train --data centre-0120.npz` trains on the rows in that file. The
likelihood is that of `basecagg.statistics.hazard`; a hidden layer instead of x·β lets age matter in bends.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from patients import COVARIATES, MOST
from torch import nn

from basecagg.learning import FlatModel, derive_seed
from basecagg.statistics import HazardModel

MODEL = HazardModel(tuple(range(4, 45, 4)), COVARIATES, MOST)
RATE, STEPS, BATCH = 0.5, 10, 64
torch.set_num_threads(1)  # many centres share this machine


def build() -> nn.Module:
    """What everybody trains: six covariates in, a logit for each interval out."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden, last = nn.Linear(len(COVARIATES), 8), nn.Linear(8, len(MODEL.times))
        nn.init.constant_(last.bias, -3.0)  # about one in twenty dies within an interval
        return nn.Sequential(hidden, nn.Tanh(), last)


def train(model, info):
    """Some steps on this centre's patients."""
    flat, (x, risk, event) = _flat(), _patients(info.data)
    flat.load(model)
    draws = torch.Generator().manual_seed(derive_seed(0, info.version, info.round))
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (BATCH,), generator=draws)
        flat.gradient.zero_()
        _loss(flat.module(x[chosen]), risk[chosen], event[chosen]).backward()
        with torch.no_grad():
            flat.weights -= RATE * flat.gradient
    return flat.vector()


def score(model, info):
    """The operator's own test: log likelihood of an interval of patients that no centre trains on."""
    flat, (x, risk, event) = _flat(), _patients("test.npz")
    flat.load(model)
    with torch.no_grad():
        return -float(_loss(flat.module(x), risk, event))


def _loss(logits, risk, event):
    """Minus the log likelihood of an interval at risk, on average."""
    each = nn.functional.binary_cross_entropy_with_logits(logits, event, reduction="none")
    return (each * risk).sum() / risk.sum()


@cache
def _flat() -> FlatModel:
    return FlatModel(build())


@cache
def _patients(path: str):
    rows = dict(np.load(path))
    risk, event = MODEL.periods(rows)
    return tuple(
        torch.tensor(each, dtype=torch.float32) for each in (MODEL.scaled(rows), risk, event)
    )
