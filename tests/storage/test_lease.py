"""One process at a time writes to a store, and one that was thought dead writes nothing when it comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_kinds import sql

from basecagg.errors import PassingFault, StorageError, StoreInUse
from basecagg.protocol.effects import Persist
from basecagg.storage import lease
from basecagg.storage.database import Database
from basecagg.storage.server_store import ServerStore

HERE = Path(__file__).parent
WAITS_FOR_US = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
MINE, OTHERS = [Persist("k", "mine", b"1")], [Persist("k", "others", b"2")]


def let_time_pass(url: str) -> None:
    """Nobody was heard of for a long time."""
    sql(url, "UPDATE basecagg_lease SET heartbeat = heartbeat - 1000")


def move_away(url: str) -> None:
    """As if the owner were on another machine, whose processes we cannot see."""
    sql(url, "UPDATE basecagg_lease SET owner = 'far|7|1|elsewhere|00'")


class Child:
    """A process that opens the store, and writes when it is told to."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, HERE / "leasing_child.py", url]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.heard() == "opened"

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("write\n")
        self.process.stdin.flush()
        return self.heard()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def child(url: str) -> Iterator[Child]:
    child = Child(url)
    yield child
    child.end()


def test_a_second_server_on_a_database_is_refused(url: str) -> None:
    with ServerStore(url) as store:
        with pytest.raises(StorageError, match=rf"in use by process {os.getpid()} on .*stop that"):
            ServerStore(url)
        store.commit(MINE)
        with ServerStore(url, "another federation"):  # the control: another namespace is free
            pass
    with ServerStore(url) as store:  # let go of, it is free at once
        assert store.keys("k") == ["mine"]


def test_a_server_of_another_process_is_refused(url: str, child: Child) -> None:
    assert child.write() == "written"
    with pytest.raises(StorageError, match=f"in use by process {child.process.pid} "):
        ServerStore(url)
    assert child.write() == "written"


def test_a_killed_server_is_followed_at_once(url: str, child: Child) -> None:
    """On this machine its death is known; a fence that was raised says that nobody let go."""
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()
    with ServerStore(url) as store:
        store.commit(MINE)
        assert store._lease.fence == 2


def test_of_a_server_elsewhere_only_time_tells(url: str) -> None:
    with ServerStore(url):
        move_away(url)
        with pytest.raises(StorageError, match="in use by process 7 on far"):
            ServerStore(url)
        let_time_pass(url)
        ServerStore(url).close()


def asleep(url: str, child: Child) -> Callable[[], str]:
    """Stop the process, take its store over, and give a function that wakes it and lets it write."""
    os.kill(child.process.pid, signal.SIGSTOP)
    let_time_pass(url)
    with ServerStore(url) as store:
        store.commit(MINE)

    def wake() -> str:
        os.kill(child.process.pid, signal.SIGCONT)
        return child.write()

    return wake


def test_a_server_that_slept_writes_nothing_any_more(url: str, child: Child) -> None:
    wake = asleep(url, child)
    assert wake().startswith("LeaseLost: 'server' belongs to another process")
    assert child.write().startswith("LeaseLost")  # nor the next time
    with ServerStore(url) as store:
        assert store.keys("k") == ["mine"]


def test_without_the_check_it_would(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the check is worth."""
    monkeypatch.setenv("LEASE_UNCHECKED", "1")
    child = Child(url)
    try:
        assert asleep(url, child)() == "written"
    finally:
        child.end()
    with ServerStore(url) as store:
        assert store.keys("k") == ["mine", "others"]


def test_who_lost_its_store_learns_it_without_writing(url: str) -> None:
    with ServerStore(url) as old:
        old.renew()
        let_time_pass(url)
        with ServerStore(url) as new:
            old._renewed -= 100
            with pytest.raises(StorageError, match="belongs to another process"):
                old.renew()
            with pytest.raises(StorageError, match="belongs to another process"):
                old.erase()
            old.close()  # it is not ours to give away
            with pytest.raises(StorageError, match="in use"):
                ServerStore(url)
            new.commit(MINE)


def test_a_sign_of_life_counts(url: str) -> None:
    with ServerStore(url) as store:
        for renew in (store.renew, lambda: store.commit(MINE)):
            let_time_pass(url)
            store._renewed -= 100
            renew()
            with pytest.raises(StorageError, match="in use"):
                ServerStore(url)


def test_one_may_wait_for_the_other_to_end(url: str) -> None:
    first = ServerStore(url)
    timer = threading.Timer(0.5, first.close)
    timer.start()
    with ServerStore(url, wait=60.0) as store:
        store.commit(MINE)
    timer.join()


def test_of_many_who_wait_one_has_it_at_a_time(url: str) -> None:
    first, present, seen = ServerStore(url), list[str](), list[int]()

    def contend(name: str) -> None:
        with ServerStore(url, wait=60.0):
            present.append(name)
            time.sleep(0.05)
            seen.append(len(present))
            present.remove(name)

    threads = [threading.Thread(target=contend, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert not seen
    first.close()
    for thread in threads:
        thread.join()
    assert seen == [1, 1, 1, 1]


# --- one that freezes while it writes ------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent for half a second is given up."""
    monkeypatch.setattr(lease, "EXPIRES", 0.5)


@contextmanager
def frozen(store: ServerStore, allowed: str) -> Iterator[None]:
    """Stopped between two statements: the row is locked, for as long as PostgreSQL allows."""
    with store._writing():
        store._database.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{allowed}'")
        yield


@contextmanager
def frozen_in_half_a_batch(
    store: ServerStore, allowed: str = "5s"
) -> Iterator[Callable[[str], None]]:
    """Then PostgreSQL does not count the time. What is given says one word more."""
    with store._writing():
        driver: Any = store._database._connection

        def say(statement: str) -> None:
            driver.execute(statement)
            driver.pgconn.send_flush_request()
            driver.pgconn.flush()

        with driver.pipeline():
            say(f"SET LOCAL idle_in_transaction_session_timeout = '{allowed}'")
            yield say
            say("SET LOCAL idle_in_transaction_session_timeout = 0")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("freeze", [frozen, frozen_in_half_a_batch])
def test_one_that_freezes_while_it_writes_keeps_nobody_out(postgres: str, freeze: Any) -> None:
    asleep = ServerStore(postgres)
    with pytest.raises(PassingFault), freeze(asleep, "1h"):
        awake = ServerStore(postgres, wait=60.0)
    with awake:
        awake.commit(MINE)
        with pytest.raises(StorageError, match="belongs to another process"):
            asleep.commit(OTHERS)
        assert awake.keys("k") == ["mine"]
    asleep.close()


@pytest.mark.usefixtures("hasty")
def test_if_its_session_were_not_ended_it_would(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: PostgreSQL ends one that stands still, but in half a batch does not see that it does."""
    monkeypatch.setattr(lease, "_END_FROZEN", "SELECT :namespace, :expires")
    asleep = ServerStore(postgres)
    with pytest.raises(PassingFault), frozen(asleep, "300ms"):
        ServerStore(postgres, wait=60.0).close()
    asleep = ServerStore(postgres)
    refused = pytest.raises(StoreInUse, match=f"{os.getpid()} on ")
    with frozen_in_half_a_batch(asleep, "300ms"), refused:
        ServerStore(postgres, wait=2.0)
    asleep.close()


def test_one_that_still_sends_is_let_finish(postgres: str) -> None:
    """The lease has run out, and the database waits for its next word, but not for long."""
    with ServerStore(postgres) as slow:
        let_time_pass(postgres)
        with frozen_in_half_a_batch(slow), pytest.raises(StoreInUse):
            ServerStore(postgres)
        slow.commit(MINE)


def test_one_that_waits_for_the_database_is_let_finish(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: its write is confirmed, and it goes on as the owner."""
    slow, other = ServerStore(postgres), Database(postgres)

    def write() -> None:
        with slow._writing():
            slow._database.execute("SELECT pg_advisory_xact_lock(1)")

    with other.transaction("lock"), monkeypatch.context() as patch:
        other.execute("SELECT pg_advisory_xact_lock(1)")
        thread = threading.Thread(target=write)
        thread.start()
        while not other.execute(WAITS_FOR_US).fetchone()[0]:
            assert thread.is_alive()
        patch.setattr(lease, "EXPIRES", 0.0)
        with pytest.raises(StoreInUse):
            ServerStore(postgres)
    thread.join()
    other.close()
    with pytest.raises(StoreInUse):  # it has given a sign of life
        ServerStore(postgres)
    slow.commit(MINE)
    slow.close()


def test_nobody_need_ask_for_the_time_that_a_transaction_may_stand_still(postgres: str) -> None:
    with ServerStore(postgres) as store, store._writing():
        asked = store._database.execute("SHOW idle_in_transaction_session_timeout")
        assert asked.fetchone()[0] == "5s"
