"""An anchor keeps the last mark that was completely written, whatever is cut short."""

from __future__ import annotations

import os
import stat

import pytest
from store_kinds import open_participant

from basecagg.errors import StorageError
from basecagg.protocol.effects import Persist
from basecagg.storage import disk
from basecagg.storage.anchor import Anchor, Mark

MARKS = [Mark(bytes([life]) * 16, counter) for life, counter in [(1, 0), (1, 1), (1, 2), (2, 9)]]


def write_all(path, marks):
    anchor = Anchor(path)
    for mark in marks:
        anchor.write(mark)
    anchor.close()


def read(path):
    anchor = Anchor(path)
    anchor.close()
    return anchor.mark


@pytest.mark.parametrize("count", range(len(MARKS) + 1))
def test_the_last_mark_is_read_back(tmp_path, count):
    write_all(tmp_path / "a", MARKS[:count])
    assert read(tmp_path / "a") == (MARKS[count - 1] if count else None)


@pytest.mark.parametrize("count", range(1, len(MARKS) + 1))
@pytest.mark.parametrize("written", [0, 1, 20, 63])
def test_a_torn_write_leaves_the_mark_before_it(tmp_path, monkeypatch, count, written):
    path = tmp_path / "a"
    write_all(path, MARKS[: count - 1])
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda descriptor, data: whole(descriptor, data[:written]))
        write_all(path, [MARKS[count - 1]])
    assert read(path) == (MARKS[count - 2] if count > 1 else None)


def test_any_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "a"
    write_all(path, MARKS[:1])
    content = path.read_bytes()
    for position in range(len(content) - 64, len(content)):
        spoiled = bytearray(content)
        spoiled[position] ^= 1
        path.write_bytes(spoiled)
        assert read(path) is None, position
    path.write_bytes(content)
    assert read(path) == MARKS[0]


def test_a_store_outlives_one_spoiled_slot_but_not_both(tmp_path):
    with open_participant(tmp_path) as store:
        for _ in range(3):
            store.commit([Persist("held", "ann", b"spent", irreversible=True)])
    (path,) = (tmp_path / "anchors").iterdir()
    content = path.read_bytes()
    spoil(path, content, max((0, 4096), key=lambda slot: counter_at(content, slot)))
    with open_participant(tmp_path) as store:
        assert not store.rolled_back
    spoil(path, content, 0, 4096)
    with open_participant(tmp_path) as store:
        assert store.rolled_back


def counter_at(content, slot):
    return int.from_bytes(content[slot + 24 : slot + 32], "little")


def spoil(path, content, *slots):
    spoiled = bytearray(content)
    for slot in slots:
        spoiled[slot : slot + 8] = b"\xff" * 8
    path.write_bytes(spoiled)


def test_an_anchor_is_the_owners_alone(tmp_path):
    write_all(tmp_path / "new folder" / "a", MARKS)
    assert stat.S_IMODE((tmp_path / "new folder" / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new folder").stat().st_mode) == 0o700


def test_an_anchor_that_cannot_be_written_closes_the_store(tmp_path, monkeypatch):
    """A machine rebuilt from the open store would send again what the anchor knows nothing of."""

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    store = open_participant(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", fail)
        with pytest.raises(StorageError, match="nothing may be sent: the disk is full"):
            store.commit([Persist("held", "ann", b"spent", irreversible=True)])
    with pytest.raises(StorageError, match="closed"):
        store.scan("held")
    with open_participant(tmp_path) as store:
        assert store.read("held", "ann") == b"spent"
        assert not store.rolled_back


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="choose another folder for anchors"):
        Anchor(tmp_path / "file" / "a")


@pytest.mark.parametrize(
    ("commits", "fits"), [(-1, False), (0, True), (1, True), (2, False), (3, False)]
)
def test_an_anchor_is_one_commit_behind_at_most(commits, fits):
    """After a crash between the two. One that is further behind is an older copy."""
    anchor = Mark(bytes(16), 7)
    assert anchor.precedes(Mark(bytes(16), 7 + commits)) == fits
    assert not anchor.precedes(Mark(bytes([1]) * 16, 7 + commits))
