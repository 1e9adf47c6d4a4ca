"""The one shape that the named datasets and a user's own data share, and the table of those with names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.learning.image_sources import (
    FASHION_MNIST,
    MNIST,
    Split,
    read_cifar10,
    read_idx_source,
)

_DIGITS_TEST_SIZE = 360
_DIGITS_MEAN, _DIGITS_STD = 0.3053, 0.3761


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Examples to train on and to test with, ready for the model: inputs are already normalised."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int = 0
    """Labels are 0…num_classes − 1; 0 if targets are none: real numbers, sequences, several labels each."""

    def __post_init__(self) -> None:
        """Refuse what would only fail, or mislead, in the middle of a run."""
        _check_examples(f"{self.name}, to train on:", self.train_x, self.train_y, self.num_classes)
        _check_examples(f"{self.name}, to test with:", self.test_x, self.test_y, self.num_classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    @property
    def has_labels(self) -> bool:
        """Whether each example has one label, of so many classes."""
        return self.num_classes > 0 and _is_labels(self.train_y)


def load_dataset(name: str, *, data_dir: Path | None = None, download: bool = False) -> Dataset:
    """Load a dataset by name from `data_dir` (./data unless given), fetching missing files if `download`."""
    if name not in DATASETS:
        raise DataError(f"no dataset is called {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name](data_dir or Path("data"), download)


def _of_ten_classes(
    name: str, read: Callable[[Path, bool], tuple[Split, Split]], data_dir: Path, download: bool
) -> Dataset:
    (train_x, train_y), (test_x, test_y) = read(data_dir, download)
    return Dataset(
        name=name, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, num_classes=10
    )


def _read_digits(data_dir: Path, download: bool) -> tuple[Split, Split]:
    """The 1,797 digits of 8×8 pixels inside scikit-learn, a fixed 360 of them to test with; needs no file."""
    sklearn = require("sklearn.datasets", extra="learn", needed_for="the dataset digits")
    pixels, labels = sklearn.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(pixels[order].astype(np.float32)).reshape(-1, 1, 8, 8)
    x.div_(16).sub_(_DIGITS_MEAN).div_(_DIGITS_STD)
    y = torch.from_numpy(labels[order].astype(np.int64))
    first = _DIGITS_TEST_SIZE
    return (x[first:], y[first:]), (x[:first], y[:first])


def _check_examples(where: str, x: Tensor, y: Tensor, num_classes: int) -> None:
    if len(x) != len(y) or not len(x):
        raise DataError(f"{where} {len(x)} inputs with {len(y)} targets; take as many, and some")
    if x.is_floating_point() and not x.isfinite().all():
        raise DataError(f"{where} some inputs are NaN or infinite")
    if not (num_classes and _is_labels(y)):
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{where} labels {low}…{high} are not all in 0…{num_classes - 1}")


def _is_labels(y: Tensor) -> bool:
    return y.dim() == 1 and not y.is_floating_point()


DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": partial(_of_ten_classes, "digits", _read_digits),
    "mnist": partial(_of_ten_classes, "mnist", partial(read_idx_source, MNIST)),
    "fashion-mnist": partial(
        _of_ten_classes, "fashion-mnist", partial(read_idx_source, FASHION_MNIST)
    ),
    "cifar10": partial(_of_ten_classes, "cifar10", read_cifar10),
}
"""Every dataset that has a name: from the folder of data, and whether to fetch what is missing."""
