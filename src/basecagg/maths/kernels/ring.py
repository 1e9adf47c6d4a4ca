"""Masks from a key: the inverse negacyclic transform of a ⊙ ŝ, and the error, for 16 blocks at a time.

R_q = Z_q[X]/(Xⁿ + 1), n = 2048, 2n | q − 1. A polynomial is its n coefficients, or its values at the n odd
powers of ψ, where ψⁿ = −1. Products are taken of values, one by one; INTT leads back to coefficients.

**Normative**, for masks depend on it: ψ = g^((q − 1)/2n) for the smallest g ≥ 2 with ψⁿ = −1. Value j of a
block is the value at ψ^(2·rev(j) + 1), where rev reverses the eleven bits of j. Sixteen blocks are a group:
its word 16·k + l is coefficient (or value) k of block l. An error is the number of ones in a word, less 16.

So neighbours belong to the same coefficient of different blocks, and take the same factors: every loop below
runs over neighbours and fills whole vectors. Numbers are float64 around 0 (see balanced.py). A butterfly of
Gentleman and Sande gives a + b and (a − b)·w. Products are below 0.51·q and sums are not reduced: after
eleven levels they are below 2¹¹·0.51·q < 2⁴³, which both `times` and `reduce` allow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import Panel, reduce, times
from basecagg.maths.kernels.compiler import Pointer, inner, kernel, numbers_of, words_at

SIZE = 2048
"""n: coefficients of a block."""
BLOCKS = 16
"""Blocks of a group."""
GROUP = SIZE * BLOCKS
"""Words of a group."""
Table = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]


# --- tables -------------------------------------------------------------------------------------


def root(modulus: int) -> int:
    """ψ, of order 2n."""
    powers = (pow(g, (modulus - 1) // (2 * SIZE), modulus) for g in range(2, modulus))
    return next(psi for psi in powers if pow(psi, SIZE, modulus) == modulus - 1)


def factors(values: npt.NDArray[np.int64], modulus: int) -> Table:
    """Constants w around 0, each followed by w/q: what `times` multiplies by."""
    w = (values - np.where(values > modulus // 2, modulus, 0)).astype(np.float64)
    return np.stack([w, w / modulus], axis=1).reshape(-1)


def twiddle_factors(modulus: int) -> Table:
    """ψ^−rev(i) in the order in which the butterflies take them: first all of one pass, then of the next.

    The level that adds rows t apart takes ψ^−rev(h), ψ^−rev(h + 1), … with h = n/2t.
    """
    inverse = pow(root(modulus), -1, modulus)
    powers = [pow(inverse, _reversed(i), modulus) for i in range(SIZE)]
    order: list[int] = []
    for step, levels in ((1, 3), (8, 3), (64, 3), (512, 2)):
        for i in range(SIZE // (step << levels)):
            for level in range(levels):
                half, count = SIZE // (2 * step << level), 1 << (levels - 1 - level)
                order += range(half + i * count, half + (i + 1) * count)
    return factors(np.array([powers[i] for i in order], np.int64), modulus)


def _reversed(i: int) -> int:
    bits = SIZE.bit_length() - 1
    return int(f"{i:0{bits}b}"[::-1], 2)


# --- the transform ------------------------------------------------------------------------------

_EIGHT = 14
"""Numbers of the table that eight rows take: four factors, two and one, each with its quotient."""


@kernel
def grow(
    public: np.uint64,
    key: Table,
    twiddles: Table,
    errors: np.uint64,
    panel: Panel,
    out: np.uint64,
    q: float,
) -> None:
    """out = INTT(a ⊙ ŝ) + e for a group; it may be the memory of a. `key` holds the factors ŝ/n.

    Rows are taken eight at a time, three levels at once. The first six levels stay among 64 rows, and those in
    the first cache.
    """
    a, s, w, p = words_at(public), numbers_of(key), numbers_of(twiddles), numbers_of(panel)
    for k in range(32):
        for i in range(8 * k, 8 * k + 8):
            _multiply(a, s, i, p, q)
            _pass_1(p, i, w, _EIGHT * i, q)
        _pass_8(p, k, w, _EIGHT * (256 + k), q)
    for i in range(4):
        _pass_64(p, i, w, _EIGHT * (256 + 32 + i), q)
    _last_pass(p, w, _EIGHT * (256 + 32 + 4), words_at(errors), words_at(out), q)


@inner
def _multiply(a: Pointer, key: Pointer, i: int, p: Pointer, q: float) -> None:
    """Rows 8·i and following become those of a ⊙ ŝ. Eight at once: row by row, loops do not become vectors."""
    r, at, wrap = BLOCKS, 16 * i, 4294967296.0 - q
    s0, s0_q, s1, s1_q = key[at], key[at + 1], key[at + 2], key[at + 3]
    s2, s2_q, s3, s3_q = key[at + 4], key[at + 5], key[at + 6], key[at + 7]
    s4, s4_q, s5, s5_q = key[at + 8], key[at + 9], key[at + 10], key[at + 11]
    s6, s6_q, s7, s7_q = key[at + 12], key[at + 13], key[at + 14], key[at + 15]
    for j in range(8 * r * i, 8 * r * i + r):
        p[j] = times(_number(a[j], wrap), s0, s0_q, q)
        p[j + r] = times(_number(a[j + r], wrap), s1, s1_q, q)
        p[j + 2 * r] = times(_number(a[j + 2 * r], wrap), s2, s2_q, q)
        p[j + 3 * r] = times(_number(a[j + 3 * r], wrap), s3, s3_q, q)
        p[j + 4 * r] = times(_number(a[j + 4 * r], wrap), s4, s4_q, q)
        p[j + 5 * r] = times(_number(a[j + 5 * r], wrap), s5, s5_q, q)
        p[j + 6 * r] = times(_number(a[j + 6 * r], wrap), s6, s6_q, q)
        p[j + 7 * r] = times(_number(a[j + 7 * r], wrap), s7, s7_q, q)


@inner
def _number(word: np.uint32, wrap: float) -> float:
    # As in `load`: a word of 2³¹ or more reads as a number that is 2³² too small.
    signed = np.int32(word)
    number = np.float64(signed)
    return number + wrap if signed < 0 else number


def _pass_of_eight(step: int) -> Callable[[Pointer, int, Pointer, int, float], None]:
    """Three levels on rows that lie `step` apart: it is a constant, or loops do not become vectors."""
    r = step * BLOCKS

    @inner
    def butterflies(p: Pointer, i: int, w: Pointer, at: int, q: float) -> None:
        """Rows 8·step·i and following, with the factors of the table from `at` on."""
        a, a_q, b, b_q = w[at], w[at + 1], w[at + 2], w[at + 3]
        c, c_q, d, d_q = w[at + 4], w[at + 5], w[at + 6], w[at + 7]
        e, e_q, f, f_q = w[at + 8], w[at + 9], w[at + 10], w[at + 11]
        g, g_q = w[at + 12], w[at + 13]
        for j in range(8 * r * i, 8 * r * i + r):
            x0, x1 = _butterfly(p[j], p[j + r], a, a_q, q)
            x2, x3 = _butterfly(p[j + 2 * r], p[j + 3 * r], b, b_q, q)
            x4, x5 = _butterfly(p[j + 4 * r], p[j + 5 * r], c, c_q, q)
            x6, x7 = _butterfly(p[j + 6 * r], p[j + 7 * r], d, d_q, q)
            x0, x2 = _butterfly(x0, x2, e, e_q, q)
            x1, x3 = _butterfly(x1, x3, e, e_q, q)
            x4, x6 = _butterfly(x4, x6, f, f_q, q)
            x5, x7 = _butterfly(x5, x7, f, f_q, q)
            p[j], p[j + 4 * r] = _butterfly(x0, x4, g, g_q, q)
            p[j + r], p[j + 5 * r] = _butterfly(x1, x5, g, g_q, q)
            p[j + 2 * r], p[j + 6 * r] = _butterfly(x2, x6, g, g_q, q)
            p[j + 3 * r], p[j + 7 * r] = _butterfly(x3, x7, g, g_q, q)

    return butterflies


@inner
def _butterfly(x: float, y: float, w: float, w_over_q: float, q: float) -> tuple[float, float]:
    return x + y, times(x - y, w, w_over_q, q)


_pass_1, _pass_8, _pass_64 = _pass_of_eight(1), _pass_of_eight(8), _pass_of_eight(64)


@inner
def _last_pass(p: Pointer, w: Pointer, at: int, errors: Pointer, out: Pointer, q: float) -> None:
    """The last two levels, on four rows that lie 512 apart; add the errors, and store words."""
    r = 512 * BLOCKS
    a, a_q, b, b_q, c, c_q = w[at], w[at + 1], w[at + 2], w[at + 3], w[at + 4], w[at + 5]
    for j in range(r):
        x0, x1 = _butterfly(p[j], p[j + r], a, a_q, q)
        x2, x3 = _butterfly(p[j + 2 * r], p[j + 3 * r], b, b_q, q)
        x0, x2 = _butterfly(x0, x2, c, c_q, q)
        x1, x3 = _butterfly(x1, x3, c, c_q, q)
        out[j] = _word(x0 + _error(errors[j]), q)
        out[j + r] = _word(x1 + _error(errors[j + r]), q)
        out[j + 2 * r] = _word(x2 + _error(errors[j + 2 * r]), q)
        out[j + 3 * r] = _word(x3 + _error(errors[j + 3 * r]), q)


@inner
def _error(coins: np.uint32) -> float:
    """The number of ones among 32 coins, less 16: added up in pairs, fours and eights of bits."""
    x = np.uint32(coins - ((coins >> np.uint32(1)) & np.uint32(0x55555555)))
    x = np.uint32((x & np.uint32(0x33333333)) + ((x >> np.uint32(2)) & np.uint32(0x33333333)))
    x = np.uint32(np.uint32(x + (x >> np.uint32(4))) & np.uint32(0x0F0F0F0F))
    ones = np.uint32(np.uint32(x * np.uint32(0x01010101)) >> np.uint32(24))
    return np.float64(np.int32(ones)) - 16.0


@inner
def _word(x: float, q: float) -> np.uint32:
    # As in `store`: |residue| ≤ (q − 1)/2 < 2³¹, and adding q wraps a negative one around.
    signed = np.int32(reduce(x, q, 1.0 / q))
    word = np.uint32(signed)
    return np.uint32(word + np.uint32(q)) if signed < 0 else word
