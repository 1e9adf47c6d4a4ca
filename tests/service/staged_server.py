"""The real server, with a stage to stop at: inside the transaction of a chosen moment, until the test says go.

Some faults cannot be made from outside on any machine; for those there are switches: files in a folder.
`at` names the moment to stop at; `reached` is made there, and the file `go` lets the server on.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from basecagg.commands.serve import command
from basecagg.protocol.messages import Answer, Endorsement, Shipment, Upload
from basecagg.service.server.buffer_log import BufferLog
from basecagg.service.server.epoch_sequence import Epochs
from basecagg.service.server.host import EpochHost
from basecagg.storage.lease import Lease

STAGES = {Shipment: "dealing", Upload: "uploading", Endorsement: "certifying", Answer: "answering"}
FAILURES = {"failing-disk": sqlite3.SQLITE_IOERR, "disk-full": sqlite3.SQLITE_FULL}
IDLE, OPENING = "idle", "opening"


class Stage:
    """Which moment the present transaction belongs to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moments: set[str] = set()

    def is_on(self, switch: str) -> bool:
        return (self._folder / switch).exists()

    def install(self) -> None:
        self._before(EpochHost, "receive", lambda _, __, message: STAGES.get(type(message)))
        self._before(BufferLog, "record", lambda *_: OPENING)
        self._before(Epochs, "renew", lambda *_: IDLE)
        check, flush = Lease.check, EpochHost.flush

        def checked(lease: Lease, execute: Any) -> None:
            check(lease, execute)
            self._stop_if_wanted()

        def flushed(host: EpochHost) -> None:
            try:
                flush(host)
            finally:
                self._moments.clear()

        Lease.check, EpochHost.flush = checked, flushed  # type: ignore[method-assign]
        self._install_switches()

    def _before(self, owner: type, name: str, moment: Any) -> None:
        original = getattr(owner, name)

        def noted(*arguments: Any) -> Any:
            found = moment(*arguments)
            if found == IDLE:
                self._moments = {IDLE}
            elif found:
                self._moments = (self._moments - {IDLE}) | {found}
            return original(*arguments)

        setattr(owner, name, noted)

    def _stop_if_wanted(self) -> None:
        wanted = self._folder / "at"
        if not wanted.exists() or wanted.read_text() not in self._moments:
            return
        wanted.unlink()
        (self._folder / "reached").touch()
        while not (self._folder / "go").exists():
            time.sleep(0.01)
        (self._folder / "go").unlink()

    def _install_switches(self) -> None:
        """What the disk or the clock does while a switch is on."""
        real, real_ns = time.time, time.time_ns

        def shift() -> float:
            switch = self._folder / "clock"
            try:
                return float(switch.read_text() or 0)
            except (OSError, ValueError):
                return 0.0

        time.time = lambda: real() + shift()
        time.time_ns = lambda: real_ns() + int(shift() * 1e9)

        install_disk(self.is_on)


def install_disk(is_on: Callable[[str], bool]) -> None:
    """Every statement to SQLite meets the disk that the switches make."""

    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            self._meet()
            return super().execute(*arguments)

        def executemany(self, *arguments: Any) -> sqlite3.Cursor:
            self._meet()
            return super().executemany(*arguments)

        def _meet(self) -> None:
            for switch, code in FAILURES.items():
                if is_on(switch):
                    error = sqlite3.OperationalError(switch)
                    error.sqlite_errorcode = code
                    raise error
            if is_on("slow-disk"):
                time.sleep(0.4)
            super().execute(f"PRAGMA query_only = {int(is_on('read-only-disk'))}")

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> sqlite3.Cursor:
            return super().cursor(factory)

    connect = partial(sqlite3.connect, factory=Connection)
    sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[attr-defined]


if __name__ == "__main__":
    Stage(Path(sys.argv.pop(1))).install()
    command()
