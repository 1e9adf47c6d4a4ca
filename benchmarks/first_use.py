"""How long the first use takes: to import the package, to compile all kernels, to load them compiled.

Limits in seconds, unlike the bars: they say what a person waits for on this machine, and are shown for
that. No test asserts them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import NamedTuple

IMPORT = """
from time import perf_counter
start = perf_counter()
import basecagg
print(perf_counter() - start)
"""
KERNELS = "from basecagg.maths.kernels import warm_up; print(warm_up())"
REPEATS = 5


class FirstUse(NamedTuple):
    """Something to wait for, the most seconds it may take, and those it took."""

    what: str
    limit: float
    seconds: float
    ok: bool


def measure() -> Iterator[FirstUse]:
    """Each in processes of its own, with a cache of numba that is empty at first."""
    with TemporaryDirectory() as cache:
        yield _judged("import basecagg", 0.5, _best(IMPORT, cache))
        yield _judged("compile all kernels", 15, _seconds(KERNELS, cache))
        yield _judged("load all kernels, compiled", 1, _best(KERNELS, cache))


def _judged(what: str, limit: float, seconds: float) -> FirstUse:
    return FirstUse(what, limit, seconds, seconds <= limit)


def _best(program: str, cache: str) -> float:
    return min(_seconds(program, cache) for _ in range(REPEATS))


def _seconds(program: str, cache: str) -> float:
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.PIPE
    )
    return float(done.stdout)
