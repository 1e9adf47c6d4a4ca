"""Commits without end, and says so after each commit; for the test that kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from store_kinds import DURABLE

from basecagg.protocol.effects import Forget, Persist

RECORDS = 10


def value_of(number: int) -> bytes:
    """Long enough that a commit takes many pages."""
    return number.to_bytes(8, "big") * 4096


def writes_of(number: int) -> list[Persist | Forget]:
    """Ten shares of this number replace those of the last one."""
    stored = [Persist("share", f"{number}/{i}", value_of(number), True) for i in range(RECORDS)]
    return [*stored, *(Forget("share", f"{number - 1}/{i}") for i in range(RECORDS))]


def main(name: str, folder: str) -> None:
    """Commit 1, 2, 3, …"""
    (kind,) = [kind for kind in DURABLE if kind.name == name]
    store, number = kind.open(Path(folder)), 0
    while True:
        number += 1
        store.commit(writes_of(number))
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
