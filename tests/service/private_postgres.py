"""A PostgreSQL server of our own, from the binaries found here, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
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


@contextmanager
def private_postgres() -> Iterator[str]:
    """SQLAlchemy's URL of a fresh server; skips where there is no PostgreSQL."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL binaries on this machine")
    # Not in pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="basecagg-postgres-") as name:
        folder, user = Path(name), _unprivileged()
        as_user = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        if user is not None:
            os.chown(folder, user, user)
        quiet = {"stdout": subprocess.DEVNULL, "cwd": folder, **as_user}
        init = [binaries / "initdb", "-D", folder / "data", "-A", "trust", "-U", "test"]
        subprocess.run(init, check=True, **quiet)
        server = subprocess.Popen(
            [binaries / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses="],
            stderr=subprocess.DEVNULL,
            **quiet,
        )
        try:
            _wait_until_ready(psycopg, folder)
            yield f"postgresql+psycopg://test@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait()


def _wait_until_ready(psycopg: Any, folder: Path) -> None:
    for _ in range(300):
        try:
            psycopg.connect(f"host={folder} user=test dbname=postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the private PostgreSQL server does not answer")


def _unprivileged() -> int | None:
    """Somebody else's number if we are root, whom initdb refuses."""
    return pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
