"""Killed in the middle of commits, a store has every commit that it confirmed, and no part of another.

This ends the process, not the power: that SQLite waits for the disk is a setting, tested as one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from committing_child import RECORDS, value_of

CHILD = Path(__file__).with_name("committing_child.py")


@pytest.mark.parametrize("confirmed", [1, 2, 7, 40])
def test_every_confirmed_commit_survives_a_kill_and_no_partial_one(durable, tmp_path, confirmed):
    last = kill_after(durable.name, tmp_path, confirmed)
    with durable.open(tmp_path) as store:
        shares = store.scan("share")
        assert not getattr(store, "rolled_back", False)
    number = int(shares[0][0].split("/")[0])
    assert number in (last, last + 1)
    assert shares == [(f"{number}/{i}", value_of(number)) for i in range(RECORDS)]


def kill_after(name, folder, confirmed):
    """Let the child confirm some commits, kill it in the middle of another, return the last confirmed."""
    command = [sys.executable, str(CHILD), name, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        lines = [child.stdout.readline() for _ in range(confirmed)]
        child.kill()
        lines += child.stdout.readlines()
    return int([line for line in lines if line.endswith("\n")][-1])
