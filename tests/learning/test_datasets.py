from __future__ import annotations

import dataclasses
import gzip
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from basecagg.errors import DataError
from basecagg.learning import DATASETS, Dataset, load_dataset

WriteMnist = Callable[..., Path]
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "training-run.md"
CIFAR_NAMES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]


def cifar_record(label: int, value: int) -> bytes:
    return bytes([label]) + bytes([value]) * 3072


@pytest.fixture
def cifar_files() -> dict[str, bytes]:
    return {
        name: cifar_record(n, 40 * n) + cifar_record(9, 255) for n, name in enumerate(CIFAR_NAMES)
    }


def write_cifar(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def pack_cifar(archive: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_digits_need_no_file(tmp_path: Path) -> None:
    digits = load_dataset("digits", data_dir=tmp_path)
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.input_shape == (1, 8, 8)
    everything = torch.cat([digits.train_x, digits.test_x])
    assert abs(float(everything.mean())) < 1e-3
    assert abs(float(everything.std()) - 1) < 1e-3
    assert torch.bincount(digits.test_y, minlength=10).min() >= 20


def test_digits_are_split_alike_every_time() -> None:
    assert torch.equal(load_dataset("digits").test_x, load_dataset("digits").test_x)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder", "mean", "std"),
    [
        ("mnist", "mnist", 0.1307, 0.3081),
        ("mnist", "MNIST/raw", 0.1307, 0.3081),
        ("fashion-mnist", "fashion-mnist", 0.2860, 0.3530),
    ],
)
def test_idx_files_are_read_and_normalised(
    tmp_path: Path,
    write_mnist: WriteMnist,
    mnist_arrays: dict[str, np.ndarray],
    name: str,
    folder: str,
    mean: float,
    std: float,
    packed: bool,
) -> None:
    write_mnist(tmp_path / folder, packed=packed)
    data = load_dataset(name, data_dir=tmp_path)
    pixels = mnist_arrays["train-images-idx3-ubyte"]
    np.testing.assert_allclose(data.train_x[:, 0].numpy(), (pixels / 255 - mean) / std, atol=1e-5)
    np.testing.assert_array_equal(data.test_y.numpy(), mnist_arrays["t10k-labels-idx1-ubyte"])
    assert (data.train_x.dtype, data.train_y.dtype) == (torch.float32, torch.int64)
    assert data.input_shape == (1, 28, 28)


def test_missing_files_are_named_with_their_place(tmp_path: Path, write_mnist: WriteMnist) -> None:
    folder = write_mnist(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", data_dir=tmp_path)
    text = str(caught.value)
    assert "mnist needs t10k-labels-idx1-ubyte.gz in <data_dir>/mnist/" in text
    assert f"data_dir is {tmp_path}" in text
    assert "train-images" not in text


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_where_a_dataset_must_lie_is_said_and_documented(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error and the tutorial name the same places, and no option that there is not."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_dataset(name)
    text, page = str(caught.value), TUTORIAL.read_text("utf-8")
    places = re.findall(r"<data_dir>/([^), ]+)", text)
    assert len(places) == 2
    assert f"data_dir is {tmp_path / 'data'}" in text
    assert "download=True" in text
    assert "--" not in text
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` "))
    assert all(f"`{place}`" in row for place in places)


def cut_header(data: bytes) -> bytes:
    return data[:5]


def wrong_magic(data: bytes) -> bytes:
    return b"\x00\x00\x0d" + data[3:]


def too_short(data: bytes) -> bytes:
    return data[:-1]


def too_long(data: bytes) -> bytes:
    return data + b"\x00"


def huge_header(data: bytes) -> bytes:
    return data[:4] + b"\xff" * (4 * data[3]) + data[4 + 4 * data[3] :]


@pytest.mark.parametrize("damage", [cut_header, wrong_magic, too_short, too_long, huge_header])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_damaged_idx_files_are_refused(
    tmp_path: Path, write_mnist: WriteMnist, name: str, damage: Callable[[bytes], bytes]
) -> None:
    path = write_mnist(tmp_path / "mnist", packed=False) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{name} cannot be used"):
        load_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],  # cut short
        lambda data: b"not gzip" + data,
        lambda data: data[:40] + bytes([data[40] ^ 255]) + data[41:],  # one byte flipped
        lambda data: data[:10] + b"\xff" * 50,  # a good header, then no deflate stream
        lambda data: b"",
    ],
)
def test_damaged_gz_files_are_refused(
    tmp_path: Path, write_mnist: WriteMnist, damage: Callable[[bytes], bytes]
) -> None:
    path = write_mnist(tmp_path / "mnist") / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be used"):
        load_dataset("mnist", data_dir=tmp_path)


def test_images_of_another_size_and_labels_that_do_not_match_are_refused(
    tmp_path: Path, write_mnist: WriteMnist, mnist_arrays: dict[str, np.ndarray]
) -> None:
    original = dict(mnist_arrays)
    mnist_arrays["train-images-idx3-ubyte"] = np.zeros((12, 27, 28), np.uint8)
    write_mnist(tmp_path / "a/mnist")
    with pytest.raises(DataError, match=r"\(27, 28\) pixels"):
        load_dataset("mnist", data_dir=tmp_path / "a")
    mnist_arrays["train-images-idx3-ubyte"] = original["train-images-idx3-ubyte"][:11]
    write_mnist(tmp_path / "b/mnist")
    with pytest.raises(DataError, match="11 inputs with 12 targets"):
        load_dataset("mnist", data_dir=tmp_path / "b")
    mnist_arrays["train-images-idx3-ubyte"] = original["train-images-idx3-ubyte"]
    mnist_arrays["train-labels-idx1-ubyte"] = np.full(12, 10, np.uint8)
    write_mnist(tmp_path / "c/mnist")
    with pytest.raises(DataError, match=r"labels 10…10 are not all in 0…9"):
        load_dataset("mnist", data_dir=tmp_path / "c")


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_is_read_from_its_folder_or_its_archive(
    tmp_path: Path, cifar_files: dict[str, bytes], packed: bool
) -> None:
    if packed:
        pack_cifar(tmp_path / "cifar-10-binary.tar.gz", cifar_files)
    else:
        write_cifar(tmp_path / "cifar-10-batches-bin", cifar_files)
    data = load_dataset("cifar10", data_dir=tmp_path)
    assert data.train_y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert data.test_y.tolist() == [5, 9]
    assert data.input_shape == (3, 32, 32)
    red = (torch.tensor([0, 255, 40, 255]) / 255 - 0.4914) / 0.2470
    torch.testing.assert_close(data.train_x[:4, 0, 5, 6], red)


def test_cifar_planes_are_red_green_blue_and_rows_come_first(tmp_path: Path) -> None:
    pixels = np.arange(3072) % 251
    record = bytes([3]) + pixels.astype(np.uint8).tobytes()
    write_cifar(tmp_path / "cifar-10-batches-bin", dict.fromkeys(CIFAR_NAMES, record))
    blue_at_2_7 = load_dataset("cifar10", data_dir=tmp_path).train_x[0, 2, 2, 7]
    assert float(blue_at_2_7) == pytest.approx(
        (pixels[2 * 1024 + 2 * 32 + 7] / 255 - 0.4465) / 0.2616, abs=1e-5
    )


def test_missing_cifar_files_are_named(tmp_path: Path, cifar_files: dict[str, bytes]) -> None:
    del cifar_files["data_batch_4.bin"]
    write_cifar(tmp_path / "cifar-10-batches-bin", cifar_files)
    with pytest.raises(
        DataError, match=r"cifar10 needs data_batch_4\.bin in .*cifar-10-batches-bin"
    ):
        load_dataset("cifar10", data_dir=tmp_path)


def test_damaged_cifar_files_are_refused(tmp_path: Path, cifar_files: dict[str, bytes]) -> None:
    cifar_files["data_batch_2.bin"] += b"\x00"
    write_cifar(tmp_path / "cifar-10-batches-bin", cifar_files)
    with pytest.raises(DataError, match=r"data_batch_2\.bin cannot be used: 6147 bytes"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_damaged_cifar_archives_are_refused(tmp_path: Path, cifar_files: dict[str, bytes]) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    del cifar_files["test_batch.bin"]
    pack_cifar(archive, cifar_files)
    with pytest.raises(DataError, match=r"tar\.gz cannot be used.*test_batch"):
        load_dataset("cifar10", data_dir=tmp_path)
    for data in (b"", b"nonsense", archive.read_bytes()[:60], gzip.compress(b"no tar")):
        archive.write_bytes(data)
        with pytest.raises(DataError, match=r"tar\.gz cannot be used"):
            load_dataset("cifar10", data_dir=tmp_path)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"'imagenet'.*digits, mnist, fashion-mnist, cifar10"):
        load_dataset("imagenet")


def test_a_users_own_dataset_is_checked_when_made() -> None:
    good = Dataset(
        name="own",
        train_x=torch.zeros(3, 2),
        train_y=torch.tensor([0, 1, 1]),
        test_x=torch.zeros(1, 2),
        test_y=torch.tensor([1]),
        num_classes=2,
    )
    with pytest.raises(DataError, match="own, to train on: some inputs are NaN"):
        dataclasses.replace(good, train_x=torch.full((3, 2), torch.nan))
    with pytest.raises(DataError, match="own, to test with: 0 inputs with 0 targets"):
        dataclasses.replace(good, test_x=torch.zeros(0, 2), test_y=torch.zeros(0, dtype=torch.long))
    with pytest.raises(DataError, match=r"labels -1…1"):
        dataclasses.replace(good, train_y=torch.tensor([0, 1, -1]))
    real_targets = dataclasses.replace(good, train_y=torch.tensor([-0.5, 1.5, 9.0]))
    assert real_targets.train_y.is_floating_point()
