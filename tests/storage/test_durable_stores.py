"""What both durable stores promise: privacy, whole transactions, clear errors, and no cross-talk."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import traceback

import pytest
from store_kinds import open_participant, open_server

from basecagg.errors import PassingFault, StorageError
from basecagg.protocol.effects import Forget, Persist
from basecagg.storage import disk
from basecagg.storage.participant_store import PARTICIPANT_FILE

SECRET = b"a secret that no error may show " * 8
TABLE = {"participant": "records", "server": "basecagg_records"}


def database(folder):
    return folder / "store.db"


def files_of(folder):
    return [path for path in folder.iterdir() if path.name.startswith("store.db")]


def test_all_files_are_the_owners_alone(durable, tmp_path):
    database(tmp_path).touch(mode=0o666)
    database(tmp_path).chmod(0o666)
    store = durable.open(tmp_path)
    store.commit([Persist("share", "ann", SECRET)])
    assert {path.name for path in files_of(tmp_path)} >= {"store.db", "store.db-wal"}
    for path in files_of(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    durable.close(store)


SETTINGS = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL
    "page_size": 65536,
    "secure_delete": 1,
    "journal_size_limit": 4 << 20,
    "wal_autocheckpoint": 64,
}


def test_the_settings_that_durability_rests_on(tmp_path):
    connection = sqlite3.connect(database(tmp_path))
    disk.configure_sqlite(connection, *PARTICIPANT_FILE)
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS}
    connection.close()
    assert found == SETTINGS


def test_every_connection_has_these_settings(durable, tmp_path, monkeypatch):
    configured, configure = [], disk.configure_sqlite

    def noted(connection, *more):
        configured.append(connection)
        configure(connection, *more)

    monkeypatch.setattr(disk, "configure_sqlite", noted)
    durable.close(durable.open(tmp_path))
    assert len(configured) == 1


def test_a_deleted_share_is_not_left_in_the_file(durable, tmp_path):
    store = durable.open(tmp_path)
    store.commit([Persist("share", "ann", SECRET * 100), Persist("held", "ann", b"1")])
    store = durable.reopen(store, tmp_path)
    assert any(SECRET in path.read_bytes() for path in files_of(tmp_path))
    store.commit([Forget("share", "ann")])
    durable.close(store)
    assert not any(SECRET in path.read_bytes() for path in files_of(tmp_path))


def test_namespaces_do_not_see_each_other(durable, tmp_path):
    first, second = durable.open(tmp_path, "one"), durable.open(tmp_path, "two")
    first.commit([Persist("held", "ann", b"1")])
    second.commit([Persist("held", "ann", b"2"), Persist("held", "bob", b"2")])
    first.commit([Forget("held", "bob")])
    assert first.scan("held") == [("ann", b"1")]
    assert second.scan("held") == [("ann", b"2"), ("bob", b"2")]
    durable.close(first)
    durable.close(second)


LOOK = """
import sqlite3, sys
path, table = sys.argv[1:]
connection = sqlite3.connect(path)
print(connection.execute(f"SELECT count(*) FROM {table} WHERE kind = 'held'").fetchone()[0])
connection.close()
"""


def look_from_elsewhere(durable, folder):
    """How many records another process finds, such as a backup; SQLite tidies up when it closes."""
    look = [sys.executable, "-c", LOOK, str(database(folder)), TABLE[durable.name]]
    return int(subprocess.run(look, capture_output=True, check=True).stdout)


def test_who_looks_from_another_process_takes_nothing_away(durable, tmp_path):
    stores = [durable.open(tmp_path, name) for name in ("one", "two")]  # the second is the danger
    stores[0].commit([Persist("held", "ann", b"1")])
    assert look_from_elsewhere(durable, tmp_path) == 1
    stores[0].commit([Persist("held", "bob", b"2")])
    assert look_from_elsewhere(durable, tmp_path) == 2
    for store in stores:
        durable.close(store)


def test_an_old_epoch_is_erased_and_no_other(tmp_path):
    old, new = open_server(tmp_path, "old"), open_server(tmp_path, "new")
    for store in (old, new):
        store.commit([Persist("share", "ann", SECRET, irreversible=True)])
    old.erase()
    assert new.read("share", "ann") == SECRET
    again = open_server(tmp_path, "old")
    assert again.scan("share") == []
    again.close()
    new.erase()
    assert not any(SECRET in path.read_bytes() for path in files_of(tmp_path))


def test_a_write_that_fails_in_the_middle_leaves_nothing(durable, tmp_path):
    store = durable.open(tmp_path)
    store.commit([Persist("share", "old", b"1")])
    store = durable.reopen(store, tmp_path)
    poison(durable, tmp_path)
    keys = ["a", "b", "poison", "c"]
    with pytest.raises(StorageError, match=r"store\.db") as caught:
        store.commit([*(Persist("share", key, SECRET) for key in keys), Forget("share", "old")])
    require_silent(caught.value)
    assert store.scan("share") == [("old", b"1")]
    store.commit([Persist("share", "new", b"2")])
    store = durable.reopen(store, tmp_path)
    assert store.scan("share") == [("new", b"2"), ("old", b"1")]
    durable.close(store)


def poison(durable, folder):
    """Make the database itself refuse the key 'poison'."""
    connection = sqlite3.connect(database(folder))
    connection.execute(
        f"CREATE TRIGGER poison BEFORE INSERT ON {TABLE[durable.name]} WHEN NEW.key = 'poison'"
        " BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
    )
    connection.close()


def require_silent(error):
    """Neither what is printed nor what led to it, which some loggers print too."""
    assert "secret" not in "".join(traceback.format_exception(error))
    assert "secret" not in str(error.__context__)


def test_a_full_disk_is_an_error_and_loses_nothing(durable, tmp_path, set_pragmas):
    set_pragmas("max_page_count = 20")
    store = durable.open(tmp_path)
    store.commit([Persist("share", "small", b"1")])
    large = [Persist("share", f"large-{number}", SECRET * 400) for number in range(10)]
    with pytest.raises(StorageError, match="the disk is full: make room") as caught:
        store.commit([*large, Forget("share", "small")])
    require_silent(caught.value)
    assert store.scan("share") == [("small", b"1")]
    store.commit([Persist("share", "small", b"2")])
    store = durable.reopen(store, tmp_path)
    assert store.scan("share") == [("small", b"2")]
    durable.close(store)


def test_a_locked_database_is_an_error(durable, tmp_path, set_pragmas):
    set_pragmas("busy_timeout = 20")
    store = durable.open(tmp_path)
    other = sqlite3.connect(database(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="another process is writing to it") as caught:
        store.commit([Persist("share", "ann", SECRET)])
    require_silent(caught.value)
    other.execute("ROLLBACK")
    other.close()
    store.commit([Persist("share", "ann", b"1")])
    durable.close(store)


def test_what_is_not_a_database_is_refused(durable, tmp_path):
    database(tmp_path).write_bytes(b"these are not the bytes of a database" * 1000)
    with pytest.raises(StorageError, match=r"store\.db.*not a database"):
        durable.open(tmp_path)


def test_a_damaged_file_is_an_error(durable, tmp_path):
    store = durable.open(tmp_path)
    store.commit([Persist("held", str(number), SECRET * 10) for number in range(200)])
    durable.close(store)
    content = bytearray(database(tmp_path).read_bytes())
    content[3 * 16384 :] = b"\xff" * (len(content) - 3 * 16384)
    database(tmp_path).write_bytes(content)
    with (
        pytest.raises(StorageError, match=r"store\.db.*damaged"),
        durable.open(tmp_path) as store,
    ):
        store.scan("held")


def test_a_missing_folder_is_an_error(durable, tmp_path):
    with pytest.raises(StorageError, match="No such file or directory"):
        durable.open(tmp_path / "nowhere")


VERSION = {
    "participant": "PRAGMA user_version = 7",
    "server": "UPDATE basecagg_schema SET version = 7",
}


def test_a_newer_schema_is_refused_and_left_alone(durable, tmp_path):
    durable.close(durable.open(tmp_path))
    connection = sqlite3.connect(database(tmp_path))
    connection.execute(VERSION[durable.name])
    connection.commit()
    connection.close()
    before = database(tmp_path).read_bytes()
    with pytest.raises(StorageError, match=r"schema version 7, this program knows [45]: upgrade"):
        durable.open(tmp_path)
    assert database(tmp_path).read_bytes() == before


def test_a_destroyed_key_is_not_left_in_the_log(tmp_path):
    """While the store is open: an agent runs for months."""
    with open_participant(tmp_path) as store:
        store.commit([Persist("sealing", "key", SECRET, irreversible=True)])
        store.commit([Forget("sealing", "key")])
        assert not any(SECRET in path.read_bytes() for path in files_of(tmp_path))


@pytest.mark.parametrize("version", [0, 4])
def test_what_0_2_0_did_not_write_is_refused(tmp_path, version):
    open_participant(tmp_path).close()
    with sqlite3.connect(database(tmp_path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(StorageError, match=r"not a store of basecagg 0\.2 or later"):
        open_participant(tmp_path)


def test_a_log_that_another_process_reads_is_an_error_and_nothing_is_lost(tmp_path, set_pragmas):
    """It could not be emptied: the machine must not send, and the next start tries again."""
    set_pragmas("busy_timeout = 20")
    with open_participant(tmp_path) as store:
        store.commit([Persist("share", "ann", SECRET)])
        reader = sqlite3.connect(database(tmp_path), isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchone()
        with pytest.raises(PassingFault, match="another process is reading it") as caught:
            store.commit([Forget("share", "ann")])
        require_silent(caught.value)
    with pytest.raises(PassingFault, match="another process is reading it"):
        open_participant(tmp_path)
    reader.close()
    with open_participant(tmp_path) as store:
        assert store.read("share", "ann") is None
        assert not store.rolled_back
        assert not any(SECRET in path.read_bytes() for path in files_of(tmp_path))
