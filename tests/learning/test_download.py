"""Downloads, from file:// addresses: the same code path as https, no network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from basecagg.errors import DataError
from basecagg.learning import datasets
from basecagg.learning.data_files import RemoteFile, fetch
from basecagg.learning.datasets import read_idx_source

CONTENT = bytes(range(256)) * 3000


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFile:
    source = tmp_path / "there.bin"
    source.write_bytes(CONTENT)
    return RemoteFile("here.bin", hashlib.sha256(CONTENT).hexdigest(), (source.as_uri(),))


def test_a_file_arrives_whole(tmp_path: Path, remote: RemoteFile) -> None:
    target = tmp_path / "new" / "folder"
    assert fetch(remote, target).read_bytes() == CONTENT
    assert [path.name for path in target.iterdir()] == ["here.bin"]


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, remote: RemoteFile) -> None:
    with pytest.raises(DataError, match=r"here\.bin could not be downloaded.*SHA-256"):
        fetch(replace(remote, sha256="0" * 64), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_the_next_address_is_tried(tmp_path: Path, remote: RemoteFile) -> None:
    absent, wrong = tmp_path / "absent", tmp_path / "wrong"
    wrong.write_bytes(b"something else")
    urls = (absent.as_uri(), wrong.as_uri(), *remote.urls)
    assert fetch(replace(remote, urls=urls), tmp_path / "new").read_bytes() == CONTENT


def test_no_network_is_said_in_one_line_with_the_place_to_put_the_file(tmp_path: Path) -> None:
    nowhere = RemoteFile("x.gz", "0" * 64, ("http://127.0.0.1:9/x.gz",))
    with pytest.raises(DataError, match=r"x\.gz could not be downloaded.*put it into") as caught:
        fetch(nowhere, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(
    tmp_path: Path, remote: RemoteFile
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(remote, tmp_path / "file" / "below")


def test_only_missing_files_of_a_dataset_are_fetched(
    tmp_path: Path, write_mnist: Callable[..., Path]
) -> None:
    there = write_mnist(tmp_path / "there")
    hashes = {
        path.name.removesuffix(".gz"): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(there.iterdir())
    }
    source = replace(datasets.MNIST, urls=(there.as_uri() + "/",), sha256=hashes)
    kept = tmp_path / "data/mnist/t10k-labels-idx1-ubyte.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((there / kept.name).read_bytes())
    (there / kept.name).unlink()
    data = read_idx_source(source, tmp_path / "data", download=True)
    assert (len(data.train_x), len(data.test_y)) == (12, 5)
    assert len(list(kept.parent.iterdir())) == 4


@pytest.mark.parametrize("source", [datasets.MNIST, datasets.FASHION_MNIST])
def test_every_published_file_has_a_checksum(source: datasets.IdxSource) -> None:
    assert len(source.sha256) == 4
    assert all(len(bytes.fromhex(value)) == 32 for value in source.sha256.values())
