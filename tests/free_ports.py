"""Ports on which a test may start a server: nobody else takes them between the question and the start.

The system gives callers their ports from 32768 on; these are below, and each worker of pytest has its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

_FIRST, _COUNT = 12_000, 2_500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
# Two runs at one time begin at different ones.
_turns = itertools.count(os.getpid())


def free_port() -> int:
    """A port that nobody listens at, and another one each time."""
    while True:
        port = _FIRST + _worker * _COUNT + next(_turns) % _COUNT
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
