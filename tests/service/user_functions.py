"""Functions that users might write."""

import os
import time
from pathlib import Path

calls = []


def chatty(model, info):
    print("epoch 1, loss 0.5")
    return model + info.version


def on_one_record(model, info):
    import torch

    from basecagg.learning import FlatModel, record_update

    record = torch.full((1, 3), 1e6), torch.zeros(1, 1)
    linear = FlatModel(torch.nn.Linear(3, 1))
    mse = torch.nn.functional.mse_loss
    return model - record_update(linear, model, record, mse, info.privacy, step=1.0)


def counting(model, info):
    calls.append(info)
    return model * 0 + len(calls)


def failing(model, info):
    return model / (1 // 0)


def dying(model, info):
    os._exit(3)


def blocking(model, info):
    """Says that it has begun, and is busy until somebody says that it may end."""
    folder, end = Path(info.data), time.monotonic() + 120
    (folder / "begun").touch()
    while not (folder / "go").exists():
        assert time.monotonic() < end, "nobody came to say so"
    return model


def endless(model, info):
    print("this takes for ever", flush=True)
    time.sleep(10**6)
