"""Words of three bytes: a 32-bit word loses its highest byte, and gets it back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.compiler import kernel

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

_BYTE = np.uint32(8)
_LOW = np.uint32(0xFFFFFF)


@kernel
def pack_three(words: Words, out: Bytes) -> np.uint32:
    """out = the three low bytes of every word, the lowest first; the largest word."""
    largest = np.uint32(0)
    for i in range(words.size):
        word = words[i]
        largest = max(largest, word)
        out[3 * i] = np.uint8(word)
        out[3 * i + 1] = np.uint8(word >> _BYTE)
        out[3 * i + 2] = np.uint8(word >> np.uint32(16))
    return largest


@kernel
def unpack_fours(threes: Words, out: Words) -> None:
    """Three words of the wire are four of ours. Read byte by byte it would take four times as long."""
    for i in range(out.size // 4):
        x, y, z = threes[3 * i], threes[3 * i + 1], threes[3 * i + 2]
        out[4 * i] = x & _LOW
        out[4 * i + 1] = np.uint32((x >> np.uint32(24)) | (y << _BYTE)) & _LOW
        out[4 * i + 2] = np.uint32((y >> np.uint32(16)) | (z << np.uint32(16))) & _LOW
        out[4 * i + 3] = z >> _BYTE
