"""An older copy of a participant's store gives itself away, and only an older copy does."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest
from store_kinds import copy_store, open_participant, restore_store

from basecagg.errors import StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage import anchor
from basecagg.storage.anchor import Anchor
from basecagg.storage.participant_store import ParticipantStore

HELD = [Persist("share", "ann", b"share"), Persist("held", "ann", b"held")]
SPENT = [Persist("held", "ann", b"spent", irreversible=True), Forget("share", "ann")]
BURNED = [Persist("progress", "", b"retired", irreversible=True), Forget("share", "ann")]


def is_rolled_back(folder):
    with open_participant(folder) as store:
        return store.rolled_back


@pytest.fixture
def spent(tmp_path):
    """A store in which a mask was spent, with a copy of it from before."""
    with open_participant(tmp_path) as store:
        store.commit(HELD)
        # While it is open: the newest records are in the -wal file.
        copy_store(tmp_path, tmp_path / "copy")
        shutil.copytree(tmp_path / "anchors", tmp_path / "copy" / "anchors")
        assert (tmp_path / "copy" / "store.db-wal").stat().st_size > 0
        store.commit(SPENT)
    return tmp_path


# --- noticing -------------------------------------------------------------------------------------


def test_a_store_that_was_not_touched_is_current(spent):
    assert not is_rolled_back(spent)


def test_an_older_copy_is_noticed(spent):
    restore_store(spent / "copy", spent)
    with open_participant(spent) as store:
        assert store.scan("held") == [("ann", b"held")]  # it really is the older one
        assert store.rolled_back


def test_an_older_copy_with_its_own_anchor_is_not_noticed(spent):
    """The control: it is the anchor that notices. So backups leave it out, and a whole host is not covered."""
    restore_store(spent / "copy", spent)
    shutil.rmtree(spent / "anchors")
    shutil.copytree(spent / "copy" / "anchors", spent / "anchors")
    assert not is_rolled_back(spent)


def test_a_copy_of_the_database_without_its_log_is_noticed(spent):
    (spent / "copy" / "store.db-wal").unlink()
    (spent / "copy" / "store.db-shm").unlink()
    restore_store(spent / "copy", spent)
    assert is_rolled_back(spent)


def test_a_deleted_store_is_noticed(spent):
    (spent / "store.db").unlink()
    assert is_rolled_back(spent)


def test_a_store_that_was_moved_away_from_its_anchor_is_noticed(spent):
    moved = spent / "elsewhere.db"
    (spent / "store.db").rename(moved)
    with ParticipantStore(moved, "epoch/holder", anchor_folder=spent / "anchors") as store:
        assert store.rolled_back


def test_a_lost_anchor_is_noticed(spent):
    shutil.rmtree(spent / "anchors")
    assert is_rolled_back(spent)


@pytest.mark.parametrize("trusting", [False, True], ids=["", "control"])
def test_an_anchor_and_a_store_of_different_days_are_noticed(tmp_path, monkeypatch, trusting):
    """Monday's anchor with Tuesday's store. The control: an anchor may be any number of commits behind."""
    if trusting:
        behind = lambda mark, store: mark.counter <= store.counter  # noqa: E731
        monkeypatch.setattr(anchor.Mark, "precedes", behind)
    for day in ("monday", "tuesday", "wednesday"):
        with open_participant(tmp_path) as store:
            for _ in range(3):
                store.commit(SPENT)
        copy_store(tmp_path, tmp_path / day)
        shutil.copytree(tmp_path / "anchors", tmp_path / day / "anchors")
    restore_store(tmp_path / "tuesday", tmp_path)
    shutil.rmtree(tmp_path / "anchors")
    shutil.copytree(tmp_path / "monday" / "anchors", tmp_path / "anchors")
    assert is_rolled_back(tmp_path) != trusting


def test_a_copy_from_before_anything_was_spent_is_noticed_without_its_anchor(tmp_path):
    with open_participant(tmp_path) as store:
        store.commit(HELD)
    shutil.rmtree(tmp_path / "anchors")
    assert is_rolled_back(tmp_path)


def test_a_copy_with_nothing_irreversible_since_is_current(tmp_path):
    with open_participant(tmp_path) as store:
        store.commit(SPENT)
    copy_store(tmp_path, tmp_path / "copy")
    with open_participant(tmp_path) as store:
        store.commit(HELD)
    restore_store(tmp_path / "copy", tmp_path)
    assert not is_rolled_back(tmp_path)


def test_a_symbolic_link_leads_to_the_same_anchor(spent):
    (spent / "link").symlink_to(spent)
    path = spent / "link" / "store.db"
    with ParticipantStore(path, "epoch/holder", anchor_folder=spent / "anchors") as store:
        assert not store.rolled_back


def test_namespaces_have_anchors_of_their_own(spent):
    """One that began after the copy was made is noticed too, although the copy knows nothing of it."""
    with open_participant(spent, "next/holder") as store:
        store.commit(SPENT)
    with open_participant(spent, "other/holder") as store:
        assert not store.rolled_back
    restore_store(spent / "copy", spent)
    for namespace, expected in [("next/holder", True), ("brand-new/holder", False)]:
        with open_participant(spent, namespace) as store:
            assert store.rolled_back is expected, namespace


# --- crashes --------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """Everything after this moment did not happen."""


@contextmanager
def no_anchor(monkeypatch):
    """The power goes when the anchor is about to be written."""

    def cut_power(*_):
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(Anchor, "write", cut_power)
        yield


def test_a_crash_between_commit_and_anchor_is_not_a_rollback(tmp_path, monkeypatch):
    store = open_participant(tmp_path)
    store.commit(HELD)
    copy_store(tmp_path, tmp_path / "copy")
    with no_anchor(monkeypatch), pytest.raises(PowerCutError):
        store.commit(SPENT)
    store.close()
    with open_participant(tmp_path) as store:
        assert store.read("held", "ann") == b"spent"
        assert not store.rolled_back
    # From here on the answer may be sent: the anchor has caught up, so an older copy is noticed.
    restore_store(tmp_path / "copy", tmp_path)
    assert is_rolled_back(tmp_path)


def test_the_anchor_is_written_after_the_commit(tmp_path, monkeypatch):
    """The other order would retire a machine that merely crashed."""
    with open_participant(tmp_path) as store:
        seen = []
        monkeypatch.setattr(Anchor, "write", lambda *_: seen.append(store.read("held", "ann")))
        store.commit(HELD)
        store.commit(SPENT)
    assert seen == [b"spent"]  # once, for the irreversible one, and when that was in the store


def test_a_crash_while_a_store_is_created_is_not_a_rollback(tmp_path, monkeypatch):
    with no_anchor(monkeypatch), pytest.raises(PowerCutError):
        open_participant(tmp_path)
    assert not is_rolled_back(tmp_path)


# --- the farewell ---------------------------------------------------------------------------------


def test_the_farewell_makes_the_store_current_again(spent):
    restore_store(spent / "copy", spent)
    with open_participant(spent) as store:
        store.commit([])
        assert store.rolled_back  # nothing was burned yet
        store.commit(BURNED)
        assert not store.rolled_back
        store.commit([Persist("held", "bob", b"held")])
    with open_participant(spent) as store:
        assert not store.rolled_back
        assert store.read("progress", "") == b"retired"
        assert store.read("held", "bob") == b"held"


def test_a_farewell_that_fails_leaves_the_store_old(spent, set_pragmas):
    restore_store(spent / "copy", spent)
    set_pragmas("max_page_count = 1")
    with open_participant(spent) as store:
        with pytest.raises(StorageError, match="the disk is full"):
            store.commit([Persist("progress", "", bytes(10**5))])
        assert store.rolled_back


def test_a_farewell_that_only_deletes_counts_too(spent):
    """A contributor's does."""
    restore_store(spent / "copy", spent)
    with open_participant(spent) as store:
        store.commit([Forget("held", "ann")])
    assert not is_rolled_back(spent)
    restore_store(spent / "copy", spent)
    assert is_rolled_back(spent)


def test_after_a_farewell_every_other_copy_is_old(spent):
    """Also one that counted further than the burned store: lives that parted are told apart by lineage."""
    restore_store(spent / "copy", spent)
    shutil.copytree(spent / "anchors", spent / "anchors before")
    with open_participant(spent) as store:
        store.commit(BURNED)
        for _ in range(5):
            store.commit(SPENT)
    copy_store(spent, spent / "newer")
    restore_store(spent / "copy", spent)
    shutil.rmtree(spent / "anchors")
    (spent / "anchors before").rename(spent / "anchors")
    with open_participant(spent) as store:
        store.commit(BURNED)
    assert not is_rolled_back(spent)
    restore_store(spent / "newer", spent)
    assert is_rolled_back(spent)


def test_a_crash_in_the_middle_of_a_farewell_repeats_it(spent, monkeypatch):
    restore_store(spent / "copy", spent)
    store = open_participant(spent)
    with no_anchor(monkeypatch), pytest.raises(PowerCutError):
        store.commit(BURNED)
    store.close()
    assert is_rolled_back(spent)


# --- one machine, one process ---------------------------------------------------------------------


def test_a_machine_runs_once(tmp_path):
    with open_participant(tmp_path):
        with pytest.raises(StorageError, match="in use by another process"):
            open_participant(tmp_path)
        open_participant(tmp_path, "another/holder").close()
    open_participant(tmp_path).close()


def test_whoever_opened_a_store_first_is_fenced_off(tmp_path, monkeypatch):
    """Where locks do not reach, as on a network drive, the second one's fence stops the first."""
    monkeypatch.setattr("basecagg.storage.disk.lock", lambda descriptor: None)
    with open_participant(tmp_path) as first:
        first.commit([Persist("share", "a", b"1", irreversible=True)])
        with open_participant(tmp_path) as second:
            with pytest.raises(StorageError, match="opened by another process since"):
                first.commit([Persist("share", "b", b"2")])
            assert second.scan("share") == [("a", b"1")]
            second.commit([Persist("share", "b", b"3")])


def test_the_anchor_remembers_the_highest_number(spent):
    with open_participant(spent) as store:
        store.commit([Persist("highest", "", b"7", irreversible=True)])
    (spent / "store.db").unlink()
    with open_participant(spent) as store:
        assert store.rolled_back
        assert store.number == 7
        store.commit(BURNED)
    with open_participant(spent) as store:
        assert (store.rolled_back, store.number) == (False, 7)


def test_all_machines_of_a_file_share_the_fingerprints(tmp_path):
    with open_participant(tmp_path, "one") as store:
        store.commit([Persist("sent", "abc", b""), Persist("share", "abc", b"1")])
    with open_participant(tmp_path, "two") as store:
        assert store.keys("sent") == ["abc"]
        assert store.keys("share") == []


def test_anchors_are_kept_outside_the_folder_of_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "data").mkdir()
    with ParticipantStore(tmp_path / "data" / "store.db", "epoch/holder"):
        assert len(list((tmp_path / "state" / "basecagg" / "anchors").iterdir())) == 1
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert anchor.default_folder() == tmp_path / ".local" / "state" / "basecagg" / "anchors"
