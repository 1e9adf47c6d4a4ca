"""Work on columns, by all cores: kernels release the interpreter's lock, so threads suffice."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from basecagg.errors import ParameterError
from basecagg.maths.kernels.balanced import WIDTH

# Words read and written for which one more thread is worth waking up.
_WORTH_A_THREAD = 2**18
# More pieces than threads: one that is held up leaves its pieces to the others.
_PIECES_PER_THREAD = 4


def thread_count(threads: int | None) -> int:
    """The threads to use: as many as asked for, or as this process may use cores."""
    if threads is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if threads < 1:
        raise ParameterError(f"threads = {threads} must be at least 1", rule="threads ≥ 1")
    return threads


def over_columns(work: Callable[[int, int], int], columns: int, rows: int, threads: int) -> int:
    """Do work(begin, end) for pieces that make up 0…columns; return the largest result.

    `rows` are read and written. Short ones are worked on by fewer threads, or by the caller's own.
    """
    threads = min(threads, columns * rows // _WORTH_A_THREAD)
    if threads <= 1:
        return work(0, columns)
    pieces = threads * _PIECES_PER_THREAD
    blocks = -(-columns // WIDTH)
    cuts = [blocks * i // pieces * WIDTH for i in range(pieces)] + [columns]
    return max(_pool(threads).map(work, cuts[:-1], cuts[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="basecagg-kernel")


if hasattr(os, "register_at_fork"):
    # A forked child inherits the pool without its threads, and would wait for them forever.
    os.register_at_fork(after_in_child=_pool.cache_clear)
