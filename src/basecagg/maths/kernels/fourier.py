"""Fourier transforms of length 10 and 19 on the rows of a panel, in F_q for q = 2³² − 5.

2, 5 and 19 are coprime: the powers of a root of order 190 are products of powers of roots of these
orders, so each length is transformed by itself, without twiddle factors (Good's prime-factor
algorithm). The sizes below begin with residues under 1.001·q, as `dot` leaves them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import WIDTH, combine, halves, times
from basecagg.maths.kernels.compiler import Pointer, fma, inner
from basecagg.maths.kernels.roots import ETA, ZETA
from basecagg.maths.primes import PAPER_MODULUS

_Q = float(PAPER_MODULUS)
_STRIDE = 10 * WIDTH
"""From one row of a transform of length 19 to the next: ten of them lie side by side."""


def _even(root: int, power: int, sign: int = 1) -> int:
    """(root^power + root^−power)/2, the cosine of the field."""
    total = pow(root, power, PAPER_MODULUS) + sign * pow(root, -power, PAPER_MODULUS)
    return total * pow(2, -1, PAPER_MODULUS) % PAPER_MODULUS


def _odd(root: int, power: int) -> int:
    """(root^power − root^−power)/2, the sine of the field, times √−1."""
    return _even(root, power, -1)


def _constant(value: int) -> tuple[float, float]:
    """A constant w around 0, and w/q: what `times` multiplies by."""
    w = (value + PAPER_MODULUS // 2) % PAPER_MODULUS - PAPER_MODULUS // 2
    return float(w), w / PAPER_MODULUS


_C1, _C2, _S1, _S2 = _even(ETA, 1), _even(ETA, 2), _odd(ETA, 1), _odd(ETA, 2)
_COSINES, _COSINES_Q = _constant(2 * (_C1 - _C2))
_SINE, _SINE_Q = _constant(4 * _S1)
_DIFFERENCE, _DIFFERENCE_Q = _constant(4 * (_S2 - _S1))
_SUM, _SUM_Q = _constant(4 * (_S1 + _S2))


@inner
def _four_times_transform_5(
    x0: float, x1: float, x2: float, x3: float, x4: float
) -> tuple[float, float, float, float, float]:
    """4·Σ_b η^(b·c)·x_b for c = 0…4, with five multiplications (Winograd).

    c₁ + c₂ = −½, so c₁·t₁ + c₂·t₂ = −(t₁ + t₂)/4 + (c₁ − c₂)/2·(t₁ − t₂): the factor 4 saves the
    division. Numbers |x| ≤ 39·q keep `times` below 4·39·q < 2⁴⁵, and come out below 800·q < 2⁴².
    """
    t1, t2, d1, d2 = x1 + x4, x2 + x3, x1 - x4, x2 - x3
    total = t1 + t2
    base = 4.0 * x0 - total
    cosines = times(t1 - t2, _COSINES, _COSINES_Q, _Q)
    both = times(d1 + d2, _SINE, _SINE_Q, _Q)
    sines1 = both + times(d2, _DIFFERENCE, _DIFFERENCE_Q, _Q)  # 4·(s₁·d₁ + s₂·d₂)
    sines2 = times(d1, _SUM, _SUM_Q, _Q) - both  # 4·(s₂·d₁ − s₁·d₂)
    even1, even2 = base + cosines, base - cosines
    return 4.0 * (x0 + total), even1 + sines1, even2 + sines2, even2 - sines2, even1 - sines1


@inner
def transform_10(panel: Pointer, row: int) -> None:
    """Ten rows x_a become 4·Σ_a ω^(a·s)·x_a for s = 0…9, for |x| ≤ 19.5·q.

    ω = −η, so ω^(a·s) = (−1)^(a·s)·η^(a·s) depends on a and s mod 2, and on a and s mod 5. The even
    and odd number with a mod 5 = 0, 1, 2, 3, 4 are 0 and 5, 6 and 1, 2 and 7, 8 and 3, 4 and 9.
    """
    for j in range(row, row + WIDTH):
        a0, b0 = panel[j], panel[j + 5 * WIDTH]
        a1, b1 = panel[j + 6 * WIDTH], panel[j + WIDTH]
        a2, b2 = panel[j + 2 * WIDTH], panel[j + 7 * WIDTH]
        a3, b3 = panel[j + 8 * WIDTH], panel[j + 3 * WIDTH]
        a4, b4 = panel[j + 4 * WIDTH], panel[j + 9 * WIDTH]
        y0, y1, y2, y3, y4 = _four_times_transform_5(a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4)
        z0, z1, z2, z3, z4 = _four_times_transform_5(a0 - b0, a1 - b1, a2 - b2, a3 - b3, a4 - b4)
        panel[j], panel[j + 5 * WIDTH] = y0, z0
        panel[j + 6 * WIDTH], panel[j + WIDTH] = y1, z1
        panel[j + 2 * WIDTH], panel[j + 7 * WIDTH] = y2, z2
        panel[j + 8 * WIDTH], panel[j + 3 * WIDTH] = y3, z3
        panel[j + 4 * WIDTH], panel[j + 9 * WIDTH] = y4, z4


FOLDED = 19
"""Rows of scratch that `transform_19` needs: x₀, then nine for the even and nine for the odd part."""

_EVEN, _ODD = WIDTH, 10 * WIDTH
_ENTRIES = 4 * 6


def table_19() -> npt.NDArray[np.float64]:
    """The coefficients of `transform_19`: by group, by part, as `_three_sums` takes them."""
    parts = [_mean_and_rest(part, k) for k in (1, 2, 4) for part in (_even, _odd)]
    split = halves(np.array(parts).astype(np.uint32), PAPER_MODULUS)
    return np.ascontiguousarray(split.transpose(1, 2, 0, 3)).reshape(-1)


def _mean_and_rest(part: Callable[[int, int], int], k: int) -> npt.NDArray[np.object_]:
    """M, D₀ − M, D₁ − M, D₂ − M for a = 1, 2, 4: D_n is the coefficient at k·a·7ⁿ, M their mean."""
    d = np.array([[part(ZETA, k * a * 7**n) for a in (1, 2, 4)] for n in range(3)], object)
    mean = d.sum(axis=0) * pow(3, -1, PAPER_MODULUS)
    return np.vstack([mean, d - mean]) % PAPER_MODULUS


@inner
def transform_19(panel: Pointer, row: int, scratch: Pointer, table: Pointer, groups: int) -> None:
    """Nineteen rows x_b, ten rows apart, become Σ_b ζ^(b·k)·x_b for k = 0, then for groups of six k.

    ζ^(b·k)·x_b + ζ^(−b·k)·x_(−b) = c_bk·(x_b + x_(−b)) + s_bk·(x_b − x_(−b)); for −k only the second
    sign changes. 7³ = 1 mod 19, and b ≠ 0 is ±a·7^i for one a = 1, 2, 4 and one i = 0, 1, 2; the k of
    a group are ±a'·7^t for one a'. So the even part, with c, and the odd part, with s, have but three
    coefficients for each a: D_(i+t), at a·a'·7^(i+t). Results are below 19.1·q (k = 0) and 6.01·q.
    """
    _fold_19(panel, row, scratch)
    for group in range(groups):
        first = row + (6 * group + 1) * _STRIDE
        entry = 2 * group * _ENTRIES
        _even_part(scratch, table, entry, panel, first, _Q, 1.0 / _Q)
        _odd_part(scratch, table, entry + _ENTRIES, panel, first, _Q, 1.0 / _Q)


@inner
def _fold_19(panel: Pointer, row: int, scratch: Pointer) -> None:
    """x₀ and what `_three_sums` multiplies go to scratch, the sum of all to row 0."""
    for j in range(WIDTH):
        scratch[j] = total = panel[row + j]
        for i in range(3):
            a = 1 << i
            even0, odd0 = _both(panel, row + j, a)
            even1, odd1 = _both(panel, row + j, a * 7 % 19)
            even2, odd2 = _both(panel, row + j, a * 7**2 % 19)
            total += _fold_3(even0, even1, even2, scratch, _EVEN + i * WIDTH + j)
            _fold_3(odd0, odd1, odd2, scratch, _ODD + i * WIDTH + j)
        panel[row + j] = total


@inner
def _both(panel: Pointer, place: int, b: int) -> tuple[float, float]:
    """x_b + x_(−b) and x_b − x_(−b)."""
    x, y = panel[place + b * _STRIDE], panel[place + (19 - b) * _STRIDE]
    return x + y, x - y


@inner
def _fold_3(x0: float, x1: float, x2: float, scratch: Pointer, place: int) -> float:
    """x₀ + x₁ + x₂, x₀ − x₁ and x₀ − x₂ go to scratch, three rows apart; return the first."""
    total = x0 + x1 + x2
    scratch[place] = total
    scratch[place + 3 * WIDTH] = x0 - x1
    scratch[place + 6 * WIDTH] = x0 - x2
    return total


@inner
def _even_part(
    data: Pointer, table: Pointer, entry: int, out: Pointer, first: int, q: float, inverse: float
) -> None:
    """Write x₀ plus the even part to the rows of a group's k, and leave those of the −k."""
    for j in range(WIDTH):
        y0, y1, y2 = _three_sums(data, _EVEN + j, data[j], table, entry, q, inverse)
        out[first + j] = y0
        out[first + 2 * _STRIDE + j] = y1
        out[first + 4 * _STRIDE + j] = y2


@inner
def _odd_part(
    data: Pointer, table: Pointer, entry: int, out: Pointer, first: int, q: float, inverse: float
) -> None:
    """Add the odd part in the rows of a group's k, and subtract it in those of the −k.

    One loop for both parts would need twice as many coefficients, more than there are registers.
    """
    for j in range(WIDTH):
        y0, y1, y2 = _three_sums(data, _ODD + j, 0.0, table, entry, q, inverse)
        _plus_and_minus(out, first + j, y0)
        _plus_and_minus(out, first + 2 * _STRIDE + j, y1)
        _plus_and_minus(out, first + 4 * _STRIDE + j, y2)


@inner
def _plus_and_minus(out: Pointer, place: int, y: float) -> None:
    x = out[place]
    out[place] = x + y
    out[place + _STRIDE] = x - y


@inner
def _three_sums(
    data: Pointer, place: int, start: float, table: Pointer, entry: int, q: float, inverse: float
) -> tuple[float, float, float]:
    """start + Σ_a Σ_i D_(i+t)·x_i for t = 0, 1, 2: for each a four products instead of nine.

    D_n = M + B_n, where M is the mean and so B₀ + B₁ + B₂ = 0. Beside M·(x₀ + x₁ + x₂) this takes
    Σ B_i·x_i = B₀·(x₀ − x₁) + B₂·(x₂ − x₁) and Σ B_(i+2)·x_i = −B₀·(x₀ − x₁) − B₁·(x₀ − x₂); the
    three Σ B_(i+t)·x_i add up to 0. As |x_i| ≤ 2.002·q, three products of a sum with halves of
    coefficients, and six of differences, are below 24.1·q·2¹⁵ < 2⁵¹·⁶.
    """
    s0, s1, s2 = _three_rows(data, place)
    u0, u1, u2 = _three_rows(data, place + 3 * WIDTH)
    v0, v1, v2 = _three_rows(data, place + 6 * WIDTH)
    high, low = _plus_products(0.0, start, s0, s1, s2, table, entry)
    middle = combine(high, low, q, inverse)
    high, low = _plus_products(0.0, 0.0, u0, u1, u2, table, entry + 6)
    high2, low2 = _plus_products(high, low, v0, v1, v2, table, entry + 12)
    high0, low0 = _plus_products(high, low, u0 - v0, u1 - v1, u2 - v2, table, entry + 18)
    y0, y2 = combine(high0, low0, q, inverse), combine(high2, low2, q, inverse)
    return middle + y0, middle - y0 + y2, middle - y2


@inner
def _three_rows(data: Pointer, place: int) -> tuple[float, float, float]:
    return data[place], data[place + WIDTH], data[place + 2 * WIDTH]


@inner
def _plus_products(
    high: float, low: float, x0: float, x1: float, x2: float, table: Pointer, entry: int
) -> tuple[float, float]:
    """Two sums, with three products added to each: x times halves of coefficients."""
    high = fma(table[entry], x0, fma(table[entry + 1], x1, fma(table[entry + 2], x2, high)))
    low = fma(table[entry + 3], x0, fma(table[entry + 4], x1, fma(table[entry + 5], x2, low)))
    return high, low
