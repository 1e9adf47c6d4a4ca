"""How the server's process takes memory and gives it back: allocator, collector, TLS buffers."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_KEPT = 32 * 2**20
"""Bytes of the largest block that stays in the heap: the most that glibc allows."""
_SWEEP_SECONDS = 5.0
_TLS_RECORD = 2**14
"""Bytes of the largest TLS record, so no more come out of one call of OpenSSL's read."""
_RECEIVED = memoryview(bytearray(64 * 2**10))
"""What a socket last gave, for all lines: OpenSSL gets it before the event loop does anything else.

A quarter of asyncio's own: OpenSSL keeps as much for every line, for good."""
_NEW_OBJECTS = 10_000
"""Before the collector looks for circles among them; 700 are made by a few requests."""


def prepare() -> None:
    """To be called once, before the event loop begins."""
    _keep_blocks()
    _share_buffer()
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


def _share_buffer() -> None:
    """asyncio has a buffer of 256 KiB for each TLS line, which is much for a thousand of them."""
    SSLProtocol.max_size = _TLS_RECORD
    SSLProtocol.get_buffer = _shared_buffer  # type: ignore[assignment,method-assign]


def _shared_buffer(line: Any, size: int) -> memoryview:
    line._ssl_buffer = line._ssl_buffer_view = _RECEIVED
    return _RECEIVED


def _sweep(trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(_SWEEP_SECONDS)
        trim(0)
