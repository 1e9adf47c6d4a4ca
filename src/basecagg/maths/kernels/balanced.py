"""Numbers mod q as float64 around 0: exact, because no integer here outgrows the 53 bits of a float.

A *panel* is scratch memory of rows, each WIDTH numbers wide: a piece of columns small enough for the
cache. A kernel loads words into a panel, computes there, and stores the results as words again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.compiler import (
    CACHE_LINE,
    Pointer,
    fetch_early,
    fma,
    inner,
    words_at,
)

Panel = npt.NDArray[np.float64]

WIDTH = 160
"""Columns in a panel. Loops of this constant length vectorise without a remainder."""

# Adding and subtracting 1.5·2⁵² rounds a number below 2⁵¹ to the nearest integer, as floats above
# 2⁵² hold no fractions. The addition is part of an fma, so rounding costs one subtraction.
_ROUND = 1.5 * 2.0**52


def new_panel(rows: int) -> Panel:
    """A panel of zeros. It begins with a cache line, so that no vector straddles two."""
    numbers = rows * WIDTH
    memory = np.zeros(numbers + CACHE_LINE // 8)
    start = -memory.ctypes.data % CACHE_LINE // 8
    return memory[start : start + numbers]


def halves(values: npt.NDArray[np.uint32], modulus: int) -> npt.NDArray[np.float64]:
    """Coefficients as a ≡ high + low: |low| ≤ 2¹⁵, and high a multiple of 2¹⁶ with |high| ≤ 2³¹.

    The first axis of the result holds the two. A product of either with a number |b| ≤ 2³¹ takes
    46 bits (beside the 2¹⁶ of high, which a float keeps in its exponent).
    """
    balanced = values.astype(np.int64)
    balanced -= np.where(balanced > modulus // 2, modulus, 0)
    high = (balanced + 2**15) >> 16 << 16
    return np.stack([high, balanced - high]).astype(np.float64)


@inner
def reduce(x: float, q: float, inverse: float) -> float:
    """The residue of x nearest to 0, for an integer |x| < 2⁵².

    q is odd, so x/q keeps a distance of 1/(2q) from every n + ½. `inverse` is 1/q up to a factor
    1 ± 2⁻⁵³, so x·inverse is off by less than (2⁵²/q)·2⁻⁵³ = 1/(2q), and rounds to the right k.
    """
    k = fma(x, inverse, _ROUND) - _ROUND
    return fma(-k, q, x)


@inner
def combine(high: float, low: float, q: float, inverse: float) -> float:
    """A residue of high + low, below 1.001·q, for sums of products: |low| ≤ 2⁵³ − 2³³.

    Two roundings make k wrong by 1 at most, and inverse adds next to nothing. high − k·q is an
    integer below |low| + 1.001·q ≤ 2⁵³, so fma gives it exactly, and adding low is exact too.
    """
    k = fma(high, inverse, fma(low, inverse, _ROUND)) - _ROUND
    return fma(-k, q, high) + low


@inner
def times(x: float, w: float, w_over_q: float, q: float) -> float:
    """A residue of x·w, below 0.51·q, for an integer |x| < 2⁴⁵ and a constant |w| ≤ 2³¹.

    The product rounds to h, and fma gives what was lost, an integer ≤ 2²³. w_over_q is off by a
    factor 1 ± 2⁻⁵³, so k is within ½ + 2⁻⁹ of x·w/q, and h − k·q is an integer far below 2⁵³.
    """
    h = x * w
    k = fma(x, w_over_q, _ROUND) - _ROUND
    return fma(-k, q, h) + fma(x, w, -h)


@inner
def fetch(address: np.uint64, begin: int) -> None:
    """Ask for a row's columns that will be loaded or stored soon, and do not wait for them.

    Runs as short as a panel is wide are over before the machine sees that they are runs.
    """
    first = address + np.uint64(4 * begin)
    for line in range(0, 4 * WIDTH, CACHE_LINE):
        fetch_early(first + np.uint64(line))


@inner
def load(
    address: np.uint64, begin: int, count: int, panel: Pointer, row: int, q: float
) -> np.int64:
    """Write words of a row to the panel, as numbers |b| ≤ 2³¹; return the largest word."""
    words = words_at(address)
    fetch(address, begin + WIDTH)
    wrap = 4294967296.0 - q
    largest = np.uint32(0)
    for j in range(count):
        word = words[begin + j]
        largest = max(largest, word)
        # Read as a signed number, a word of 2³¹ or more is 2³² too small; word − q is wanted.
        signed = np.int32(word)
        number = np.float64(signed)
        panel[row + j] = number + wrap if signed < 0 else number
    return np.int64(largest)


@inner
def store(
    panel: Pointer, row: int, address: np.uint64, begin: int, count: int, q: float, inverse: float
) -> None:
    """Write numbers |x| < 2⁵² of the panel to a row, as words 0…q−1."""
    words = words_at(address)
    modulus = np.uint32(q)
    for j in range(count):
        # |residue| ≤ (q − 1)/2 < 2³¹ fits a signed word; adding q wraps a negative one around.
        signed = np.int32(reduce(panel[row + j], q, inverse))
        word = np.uint32(signed)
        words[begin + j] = np.uint32(word + modulus) if signed < 0 else word
