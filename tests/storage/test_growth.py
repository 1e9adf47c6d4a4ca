"""Disk use stays bounded: what a holder writes and deletes over 10⁴ versions fits where 10³ versions did."""

from __future__ import annotations

import pytest
from store_kinds import open_participant

from basecagg.protocol.effects import Forget, Persist
from basecagg.storage import disk

BUFFER = 10
SHARE, NOTE, ANSWER, PROGRESS = bytes(256), bytes(200), bytes(300), bytes(400)
LARGEST_LOG = 5 << 20


def masks(version):
    return [f"user-{member}/{version:032x}" for member in range(BUFFER)]


def live_through(store, version, lifetime):
    """A holder's records of one version: shares come in, are spent in one answer, and their names expire."""
    store.commit(
        [
            write
            for key in masks(version)
            for write in (Persist("share", key, SHARE), Persist("held", key, NOTE))
        ]
    )
    spent = [Persist("held", key, NOTE, irreversible=True) for key in masks(version)]
    gone = [Forget("share", key) for key in masks(version)]
    expired = [Forget("held", key) for key in masks(version - lifetime)]
    answers = [Persist("answer", f"{version}", ANSWER), Forget("answer", f"{version - 1}")]
    store.commit([*spent, *gone, *answers, *expired, Persist("progress", "", PROGRESS)])


@pytest.fixture
def hurried(set_pragmas, monkeypatch):
    """Do not wait for the disk: sizes do not depend on it, and it is most of the time."""
    set_pragmas("synchronous = OFF")
    monkeypatch.setattr(disk, "sync", lambda descriptor: None)


def sizes_after(folder, versions, lifetime):
    """The size of the database after each of these many versions; the log is checked on the way."""
    sizes = []
    with open_participant(folder) as store:
        for version in range(1, versions[-1] + 1):
            live_through(store, version, lifetime)
            if version in versions:
                sizes.append((folder / "store.db").stat().st_size)
                assert (folder / "store.db-wal").stat().st_size < LARGEST_LOG
        assert len(store.scan("held")) == BUFFER * min(lifetime, versions[-1])
        assert store.scan("share") == []
    assert not (folder / "store.db-wal").exists()
    return sizes


def test_ten_thousand_versions_take_no_more_disk_than_one_thousand(tmp_path, hurried):
    after_1000, after_10000 = sizes_after(tmp_path, [1_000, 10_000], lifetime=20)
    assert after_10000 <= 1.1 * after_1000


def test_names_that_never_expire_would_take_more_and_more(tmp_path, hurried):
    """The control: the measurement sees growth where there is some."""
    after_100, after_1000 = sizes_after(tmp_path, [100, 1_000], lifetime=10**6)
    assert after_1000 > 5 * after_100
