"""A real process that uploads, killed or doubled: its ledger never counts less than what left the device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spending_child import PARAMETERS, open_store, started

from basecagg.errors import BudgetSpent, StorageError
from basecagg.protocol.ledger import PrivacyLedger

CHILD = Path(__file__).with_name("spending_child.py")


@contextmanager
def child_in(folder: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), str(folder), mode]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[2])}  # for the bench
    with subprocess.Popen(command, env=environment, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def killed_after(folder: Path, uploads: int, mode: str = "free") -> int:
    """Let a process upload, kill it while it goes on, and count what has left it."""
    with child_in(folder, mode) as child:
        left = [child.stdout.readline() for _ in range(uploads)]
        child.kill()
        left += [line for line in child.stdout if line.endswith("\n")]
    assert len(set(left)) == len(left)
    return len(left)


def test_a_killed_contributor_has_counted_all_that_left_and_an_old_copy_everything(tmp_path):
    left = killed_after(tmp_path, 3)
    copy = {path: path.read_bytes() for path in tmp_path.glob("ann.db*")}
    left += killed_after(tmp_path, 10)  # it goes on where it was
    with open_store(tmp_path) as store:
        assert not store.rolled_back
        assert left <= PrivacyLedger(store).uses <= left + 2
    for path in tmp_path.glob("ann.db*"):
        path.unlink()
    for path, data in copy.items():
        path.write_bytes(data)
    with open_store(tmp_path) as store:
        ann = started(store).contributor("ann")
        assert not ann.may_spend
        with pytest.raises(BudgetSpent, match="older copy"):
            ann.ledger.charge(PARAMETERS.mechanism, 0)


def test_one_that_sends_before_it_writes_would_be_caught(tmp_path):
    """Negative control."""
    left = killed_after(tmp_path, 1, "hasty")
    with open_store(tmp_path) as store:
        assert PrivacyLedger(store).uses < left


def ask(child: subprocess.Popen[str]) -> str:
    child.stdin.write("go\n")
    child.stdin.flush()
    return child.stdout.readline()


def test_two_processes_cannot_spend_from_one_store(tmp_path):
    with child_in(tmp_path, "asked") as child:
        assert ask(child)
        with pytest.raises(StorageError, match=r"one at a time|running already"):
            open_store(tmp_path)
        assert ask(child)
    with open_store(tmp_path) as store:
        assert PrivacyLedger(store).uses == 2


def test_without_locks_two_processes_would_spend_twice(tmp_path):
    """Negative control: each goes on from what it knew, and the later one overwrites what the other spent."""
    with child_in(tmp_path, "unlocked") as one, child_in(tmp_path, "unlocked") as two:
        left = [ask(child) for child in (one, two, one, two)]
    assert len(set(left)) == 4
    with open_store(tmp_path) as store:
        assert PrivacyLedger(store).uses == 2
