"""MNIST, Fashion-MNIST and CIFAR-10: where their official files lie or come from, and pixels as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from basecagg.errors import DataError
from basecagg.learning.download import RemoteFile, fetch
from basecagg.learning.image_files import Bytes, read_cifar, read_idx

Split = tuple[Tensor, Tensor]
"""Inputs float32[n, channels, height, width] and labels int64[n]."""


@dataclass(frozen=True)
class IdxSource:
    """Four IDX files with 28×28 images. `sha256` is of the .gz as published; the first folder is ours."""

    name: str
    folders: tuple[str, ...]
    urls: tuple[str, ...]
    sha256: dict[str, str]
    mean: float
    std: float


MNIST = IdxSource(
    name="mnist",
    folders=("mnist", "MNIST/raw"),  # the second is torchvision's
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
    folders=("fashion-mnist", "FashionMNIST/raw"),
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

CIFAR_ARCHIVE = RemoteFile(
    name="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR_TEST = "test_batch.bin"
_CIFAR_SCALE = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read_idx_source(source: IdxSource, data_dir: Path, download: bool) -> tuple[Split, Split]:
    """The examples to train on and to test with."""
    folder = _folder_with_all(source, data_dir, download)
    return _read_split(source, folder, "train"), _read_split(source, folder, "t10k")


def read_cifar10(data_dir: Path, download: bool) -> tuple[Split, Split]:
    """The examples to train on and to test with."""
    read = _cifar_reader(data_dir, download)
    pixels, labels = zip(*(read(name) for name in _CIFAR_TRAIN), strict=True)
    train = np.concatenate(pixels), np.concatenate(labels)
    return _as_split(*train, *_CIFAR_SCALE), _as_split(*read(_CIFAR_TEST), *_CIFAR_SCALE)


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
    folders = [data_dir / folder for folder in source.folders]
    for folder in folders:
        if all(_find(folder, name).is_file() for name in source.sha256):
            return folder
    ours = folders[0]
    missing = [name for name in source.sha256 if not _find(ours, name).is_file()]
    if not download:
        names = [f"{name}.gz" for name in missing]
        raise _missing(source.name, names, data_dir, source.folders[0], f"{source.folders[1]}/")
    for name in missing:
        urls = tuple(f"{base}{name}.gz" for base in source.urls)
        fetch(RemoteFile(f"{name}.gz", source.sha256[name], urls), ours)
    return ours


def _find(folder: Path, name: str) -> Path:
    """The plain file if it is there, else the .gz, which may not be."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def _cifar_reader(data_dir: Path, download: bool) -> Callable[[str], tuple[Bytes, Bytes]]:
    """How to read one batch: from the unpacked folder, or else out of the archive."""
    folder, archive = data_dir / _CIFAR_FOLDER, data_dir / CIFAR_ARCHIVE.name
    missing = [name for name in (*_CIFAR_TRAIN, _CIFAR_TEST) if not (folder / name).is_file()]
    if not missing:
        return lambda name: read_cifar(folder / name)
    if not archive.is_file() and not download:
        raise _missing("cifar10", missing, data_dir, _CIFAR_FOLDER, archive.name)
    if not archive.is_file():
        fetch(CIFAR_ARCHIVE, data_dir)
    return lambda name: read_cifar(archive, member=f"{_CIFAR_FOLDER}/{name}")


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
