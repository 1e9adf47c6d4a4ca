"""A PostgreSQL server of our own, from the binaries found here, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def find_binaries() -> Path | None:
    """The folder with initdb and postgres."""
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(found).parent if found else installed[-1].parent if installed else None


class Postgres:
    """One server in a folder that may be somebody else's; it can be stopped, frozen and started again."""

    def __init__(self, folder: Path) -> None:
        self._psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
        binaries = find_binaries()
        if binaries is None:
            pytest.skip("no PostgreSQL binaries on this machine")
        self._binaries = binaries
        self.folder = folder
        self.url = f"postgresql+psycopg://test@/postgres?host={folder}"
        user = _unprivileged()
        as_user = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        if user is not None:
            os.chown(folder, user, user)
        self._quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder, **as_user}
        init = [binaries / "initdb", "-D", folder / "data", "-A", "trust", "-U", "test"]
        subprocess.run(init, check=True, **self._quiet)
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        data, sockets = self.folder / "data", self.folder
        self._server = subprocess.Popen(
            [self._binaries / "postgres", "-D", data, "-k", sockets, "-c", "listen_addresses="],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._quiet,
        )
        for _ in range(300):
            try:
                self.connect().close()
            except self._psycopg.OperationalError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError("the private PostgreSQL server does not answer")

    def connect(self) -> Any:
        return self._psycopg.connect(
            f"host={self.folder} user=test dbname=postgres", autocommit=True
        )

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM is polite; SIGQUIT is what a crash looks like."""
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait()
            self._server = None

    def signal_all(self, number: signal.Signals) -> None:
        """To the server and all that serve its callers."""
        assert self._server is not None
        parent = self._server.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in [parent, *map(int, children)]:
            os.kill(pid, number)

    def cut_connections(self) -> None:
        """Every caller but this one loses its connection, whatever it is doing."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A fresh server; skips where there is no PostgreSQL."""
    # Not in pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="postgres-of-a-test-") as name:
        server = Postgres(Path(name))
        try:
            yield server
        finally:
            server.stop(signal.SIGINT)  # it does not wait for its callers


@contextmanager
def private_postgres() -> Iterator[str]:
    """SQLAlchemy's URL of a fresh server."""
    with running_postgres() as server:
        yield server.url


def _unprivileged() -> int | None:
    """Somebody else's number if we are root, whom initdb refuses."""
    return pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
