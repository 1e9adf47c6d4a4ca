"""What the machine can do at best: read memory, copy it, and run AES in counter mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numba import njit

STEP = 2**19
"""Bytes of AES at a time: the size at which it ran fastest, as it stays in the cache."""


def copier(size: int) -> Callable[[], object]:
    """Copy so many bytes to memory that has been touched before."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return lambda: np.copyto(target, source)


def reader(array: np.ndarray) -> Callable[[], object]:
    """Read the array once, in the order of memory."""
    words = array.reshape(-1).view(np.uint64)
    return lambda: _exclusive_or(words)


def aes(size: int) -> Callable[[], object]:
    """Make so many bytes of AES-256-CTR keystream, into memory that has been touched before."""
    target, zeros = memoryview(bytearray(size)), memoryview(bytes(STEP))
    cipher = Cipher(AES(bytes(32)), CTR(bytes(16))).encryptor()

    def run() -> None:
        for start in range(0, size, STEP):
            piece = target[start : start + STEP]
            cipher.update_into(zeros[: len(piece)], piece)

    return run


@njit(nogil=True)
def _exclusive_or(words: np.ndarray) -> np.uint64:
    total = np.uint64(0)
    for i in range(words.size):
        total ^= words[i]
    return total
