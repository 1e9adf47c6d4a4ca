"""The datasets that have names, and the one shape that they share with a user's own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.learning.data_files import Bytes, RemoteFile, fetch, read_cifar, read_idx

Split = tuple[Tensor, Tensor]
"""Inputs float32[n, channels, height, width] and labels int64[n]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Examples to train on and to test with, ready for the model: inputs are already normalised."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int = 0
    """Labels are 0…num_classes − 1; leave it 0 where targets are real numbers, sequences, or several labels."""
    owners: Sequence[int] | Sequence[str] | None = None
    """Whose each training example is, by any names, for `partition="owners"`: users are in the names' order."""

    def __post_init__(self) -> None:
        """Refuse what would only fail, or mislead, in the middle of a run."""
        _check_examples(f"{self.name}, to train on:", self.train_x, self.train_y, self.num_classes)
        _check_examples(f"{self.name}, to test with:", self.test_x, self.test_y, self.num_classes)
        if self.owners is not None and len(self.owners) != len(self.train_y):
            raise DataError(
                f"{self.name}: {len(self.train_y)} examples to train on have {len(self.owners)} owners"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    @property
    def has_labels(self) -> bool:
        """Whether each example has exactly one label, 0…num_classes − 1."""
        return self.num_classes > 0 and _is_labels(self.train_y)


def load_dataset(name: str, *, data_dir: Path | None = None, download: bool = False) -> Dataset:
    """Load a dataset by name from `data_dir` (./data unless given), fetching missing files if `download`."""
    if name not in DATASETS:
        raise DataError(f"no dataset is called {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name](data_dir or Path("data"), download)


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


# --- digits ---------------------------------------------------------------------------------------

_DIGITS_TEST_SIZE = 360
_DIGITS_MEAN, _DIGITS_STD = 0.3053, 0.3761


def _read_digits(data_dir: Path, download: bool) -> Dataset:
    """The 1,797 digits of 8×8 pixels inside scikit-learn, a fixed 360 of them to test with; needs no file."""
    sklearn = require("sklearn.datasets", extra="learn", needed_for="the dataset digits")
    pixels, labels = sklearn.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(pixels[order].astype(np.float32)).reshape(-1, 1, 8, 8)
    x.div_(16).sub_(_DIGITS_MEAN).div_(_DIGITS_STD)
    y = torch.from_numpy(labels[order].astype(np.int64))
    first = _DIGITS_TEST_SIZE
    return _of_ten_classes("digits", (x[first:], y[first:]), (x[:first], y[:first]))


# --- MNIST and Fashion-MNIST ----------------------------------------------------------------------


@dataclass(frozen=True)
class IdxSource:
    """Four IDX files with 28×28 images in a folder of this name. `sha256` is of the .gz as published."""

    name: str
    torchvision: str
    """Where torchvision keeps the same files."""
    urls: tuple[str, ...]
    sha256: dict[str, str]
    mean: float
    std: float


MNIST = IdxSource(
    name="mnist",
    torchvision="MNIST/raw",
    urls=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    sha256={
        "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    mean=0.1307,
    std=0.3081,
)

FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    torchvision="FashionMNIST/raw",
    urls=(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    sha256={
        "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    mean=0.2860,
    std=0.3530,
)


def read_idx_source(source: IdxSource, data_dir: Path, download: bool) -> Dataset:
    """The dataset of these files."""
    folder = _folder_with_all(source, data_dir, download)
    train, test = (_read_split(source, folder, part) for part in ("train", "t10k"))
    return _of_ten_classes(source.name, train, test)


def _read_split(source: IdxSource, folder: Path, part: str) -> Split:
    pixels = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(_find(folder, f"{part}-labels-idx1-ubyte"), dimensions=1)
    if pixels.shape[1:] != (28, 28):
        raise DataError(
            f"the {part} images in {folder} have {pixels.shape[1:]} pixels, not (28, 28)"
        )
    return _as_split(pixels[:, None], labels, (source.mean,), (source.std,))


def _folder_with_all(source: IdxSource, data_dir: Path, download: bool) -> Path:
    """The first folder that holds all four files; else ours, with the missing ones fetched if `download`."""
    ours, theirs = data_dir / source.name, data_dir / source.torchvision
    missing = _missing_from(ours, source)
    if missing and not _missing_from(theirs, source):
        return theirs
    if missing and not download:
        names = [f"{name}.gz" for name in missing]
        raise _missing(source.name, names, data_dir, source.name, f"{source.torchvision}/")
    for name in missing:
        urls = tuple(f"{base}{name}.gz" for base in source.urls)
        fetch(RemoteFile(f"{name}.gz", source.sha256[name], urls), ours)
    return ours


def _missing_from(folder: Path, source: IdxSource) -> list[str]:
    return [name for name in source.sha256 if not _find(folder, name).is_file()]


def _find(folder: Path, name: str) -> Path:
    """The plain file if it is there, else the path of the .gz, whether that is there or not."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


# --- CIFAR-10 -------------------------------------------------------------------------------------

_CIFAR_ARCHIVE = RemoteFile(
    name="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def _read_cifar10(data_dir: Path, download: bool) -> Dataset:
    """From the unpacked folder, or else out of the archive. The last batch is to test with."""
    folder, archive = data_dir / _CIFAR_FOLDER, data_dir / _CIFAR_ARCHIVE.name
    missing = [name for name in _CIFAR_BATCHES if not (folder / name).is_file()]
    if missing and not archive.is_file():
        if not download:
            raise _missing("cifar10", missing, data_dir, _CIFAR_FOLDER, archive.name)
        fetch(_CIFAR_ARCHIVE, data_dir)
    *train, test = (
        read_cifar(archive, member=f"{_CIFAR_FOLDER}/{name}")
        if missing
        else read_cifar(folder / name)
        for name in _CIFAR_BATCHES
    )
    pixels, labels = zip(*train, strict=True)
    both = (np.concatenate(pixels), np.concatenate(labels)), test
    splits = (_as_split(x, y, _CIFAR_MEAN, _CIFAR_STD) for x, y in both)
    return _of_ten_classes("cifar10", *splits)


# --- what they share ------------------------------------------------------------------------------


def _missing(
    dataset: str, names: Sequence[str], data_dir: Path, folder: str, instead: str
) -> DataError:
    return DataError(
        f"{dataset} needs {', '.join(names)} in <data_dir>/{folder}/ (or all in <data_dir>/{instead}),"
        f" and data_dir is {data_dir.absolute()}: put the official files there, set data_dir to where"
        " they are, or set download=True to fetch them"
    )


def _as_split(pixels: Bytes, labels: Bytes, mean: Sequence[float], std: Sequence[float]) -> Split:
    """Bytes as float32 with about zero mean and unit variance in each channel, computed in place, once."""
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
    return x, torch.from_numpy(labels.astype(np.int64))


def _of_ten_classes(name: str, train: Split, test: Split) -> Dataset:
    (train_x, train_y), (test_x, test_y) = train, test
    return Dataset(
        name=name, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, num_classes=10
    )


DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": _read_digits,
    "mnist": partial(read_idx_source, MNIST),
    "fashion-mnist": partial(read_idx_source, FASHION_MNIST),
    "cifar10": _read_cifar10,
}
"""Every dataset that has a name: from the folder of data, and whether to fetch what is missing."""
