"""How the server's process takes memory and gives it back: allocator, collector, TLS buffers."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_KEPT = 32 * 2**20
"""Bytes of the largest block that stays in the heap: the most that glibc allows."""
_SWEEP_SECONDS = 5.0
TLS_BUFFER = 64 * 2**10
"""Bytes that a TLS line reads at once, a quarter of asyncio's own: it keeps them several times over, and so
does each of a thousand lines."""
_NEW_OBJECTS = 10_000
"""Before the collector looks for circles among them; 700 are made by a few requests."""


def prepare() -> None:
    """To be called once, before the event loop begins."""
    _keep_blocks()
    SSLProtocol.max_size = TLS_BUFFER
    # What the imports made stays for ever: the collector need not walk through it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def _keep_blocks() -> None:
    """Keep blocks for the next body, and give free pages back to the system now and then.

    Bodies, frames and TLS records are large blocks. As mappings of their own each would be page faults to write
    to; left alone, glibc never gives back the holes that they leave in the heap.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, TypeError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_M_TRIM_THRESHOLD, 8 * _LARGEST_KEPT)
    mallopt(_M_ARENA_MAX, 2)
    threading.Thread(target=_sweep, args=[trim], name="memory", daemon=True).start()


def _sweep(trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(_SWEEP_SECONDS)
        trim(0)
