"""Small tasks and small official-looking files; no test of this room needs a download."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from basecagg.learning import Dataset, Task

torch.set_num_threads(1)  # models this small only make threads wait for each other


def random_dataset(
    shape: tuple[int, ...] = (3, 8, 8), num_train: int = 60, num_classes: int = 4
) -> Dataset:
    generator = torch.Generator().manual_seed(5)
    return Dataset(
        name="random",
        train_x=torch.randn(num_train, *shape, generator=generator),
        train_y=torch.randint(num_classes, (num_train,), generator=generator),
        test_x=torch.randn(25, *shape, generator=generator),
        test_y=torch.randint(num_classes, (25,), generator=generator),
        num_classes=num_classes,
    )


def normed_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(6 * 36, 4),
    )


@pytest.fixture
def normed_task() -> Task:
    return Task(name="normed", model=normed_network, dataset=random_dataset())


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


@pytest.fixture
def mnist_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "train-images-idx3-ubyte": rng.integers(0, 256, (12, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": rng.integers(0, 10, 12).astype(np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (5, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, 5).astype(np.uint8),
    }


@pytest.fixture
def write_mnist(mnist_arrays: dict[str, np.ndarray]) -> Callable[..., Path]:
    def write(folder: Path, *, packed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in mnist_arrays.items():
            data = idx_bytes(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
        return folder

    return write
