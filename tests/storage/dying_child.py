"""Destroys secrets in one commit, and is killed at a boundary of it: a statement, or the anchor."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from basecagg.protocol.effects import Forget, Persist
from basecagg.storage.anchor import Anchor
from basecagg.storage.participant_store import ParticipantStore

SECRETS = {kind: f"the secret {kind} ".encode() * 3000 for kind in ("locks", "mask", "share")}
"""A mask is written over, without its seed; the others are deleted."""


class Countdown:
    """Kills this process at the given boundary, once it is armed."""

    left = sys.maxsize

    @classmethod
    def pass_by(cls) -> None:
        if not cls.left:
            os.kill(os.getpid(), signal.SIGKILL)
        cls.left -= 1


def between(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step between two boundaries."""

    def taken(*given: Any, **named: Any) -> Any:
        Countdown.pass_by()
        result = step(*given, **named)
        Countdown.pass_by()
        return result

    return taken


class Dying(sqlite3.Connection):
    """Every statement is between two boundaries."""

    execute = between(sqlite3.Connection.execute)
    executemany = between(sqlite3.Connection.executemany)


def open_store(folder: Path) -> ParticipantStore:
    return ParticipantStore(folder / "store.db", "ann", anchor_folder=folder / "anchors")


def main(folder: str, boundary: str) -> None:
    """Write the secrets, and destroy them."""
    sqlite3.connect = partial(sqlite3.connect, factory=Dying)
    Anchor.write = between(Anchor.write)  # type: ignore[method-assign]
    store = open_store(Path(folder))
    store.commit([Persist(kind, "ann", secret) for kind, secret in SECRETS.items()])
    Countdown.left = int(boundary)
    gone = [Forget("locks", "ann"), Forget("share", "ann")]
    store.commit([Persist("mask", "ann", b"", irreversible=True), *gone])
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
