"""How the server's process takes memory and gives it back: allocator, garbage collector, TLS buffers."""

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
"""What a socket last gave, for all connections: OpenSSL gets it before the event loop does anything else."""
_NEW_OBJECTS = 10_000
"""Objects that are made before the collector looks for circles among them; a few requests make 700."""


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

    Bodies, frames and TLS records are large blocks. glibc would map each of them anew, which costs page faults;
    kept in the heap, they leave holes that glibc never gives back by itself.
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
    """Give all TLS connections one buffer to receive into, instead of 256 KiB to each.

    asyncio has no setting for it, so two names of its class are replaced; `tests/service/test_tls_buffers.py`
    says whether a Python still has them. Measured with a thousand contributors (decision 43): a buffer of
    64 KiB for each took 60 MiB more, and one of 256 KiB for all took 0.25 GiB more, because OpenSSL keeps, for
    every connection and for good, as much as it ever got at once.
    """
    SSLProtocol.max_size = _TLS_RECORD
    SSLProtocol.get_buffer = _shared_buffer  # type: ignore[assignment,method-assign]


def _shared_buffer(connection: Any, size: int) -> memoryview:
    connection._ssl_buffer = connection._ssl_buffer_view = _RECEIVED
    return _RECEIVED


def _sweep(trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(_SWEEP_SECONDS)
        trim(0)
