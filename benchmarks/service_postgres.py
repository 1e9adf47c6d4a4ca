"""A PostgreSQL server of our own for one measurement, from the binaries found here."""

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


@contextmanager
def private_postgres() -> Iterator[tuple[str, int]]:
    """SQLAlchemy's URL of an empty database, and the number of its server's process."""
    initdb = shutil.which("initdb")
    if initdb is None:
        raise SystemExit("there is no initdb on the path: install PostgreSQL")
    with tempfile.TemporaryDirectory(prefix="basecagg-postgres-") as name:
        folder, user = Path(name), _unprivileged()
        as_user: dict[str, Any] = {}
        if user is not None:
            os.chown(folder, user, user)
            as_user = {"user": user, "group": user, "extra_groups": []}
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        where = ["-D", str(folder / "data")]
        subprocess.run(
            [initdb, *where, "-A", "trust", "-U", "load"],
            check=True,
            cwd=folder,
            **quiet,
            **as_user,
        )
        program = Path(initdb).with_name("postgres")
        options = ["-k", name, "-c", "listen_addresses=", "-c", "max_wal_size=4GB"]
        server = subprocess.Popen([program, *where, *options], cwd=folder, **quiet, **as_user)
        try:
            _wait(folder)
            yield f"postgresql+psycopg://load@/postgres?host={folder}", server.pid
        finally:
            server.terminate()
            server.wait()


def _wait(folder: Path) -> None:
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(f"host={folder} user=load dbname=postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the private PostgreSQL server does not answer")


def _unprivileged() -> int | None:
    """Somebody else's number if we are root, whom initdb refuses."""
    return pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
