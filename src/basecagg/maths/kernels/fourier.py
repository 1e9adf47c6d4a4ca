"""Fourier transforms of length 10 and 19 on the rows of a panel, in F_q for q = 2³² − 5.

2, 5 and 19 are coprime: the powers of a root of order 190 are products of powers of roots of these
orders, so each length is transformed by itself, without twiddle factors (Good's prime-factor
algorithm). The sizes below begin with residues under 1.001·q, as `dot` leaves them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.maths.kernels.balanced import WIDTH, halves, times
from basecagg.maths.kernels.dot import unrolled
from basecagg.maths.kernels.machine import Pointer, inner
from basecagg.maths.kernels.roots import ETA, ZETA
from basecagg.maths.primes import PAPER_MODULUS

_Q = float(PAPER_MODULUS)
_STRIDE = 10 * WIDTH
"""From one row of a transform of length 19 to the next: ten of them lie side by side."""


def _even(root: int, power: int) -> int:
    """(root^power + root^−power)/2, the cosine of the field."""
    total = pow(root, power, PAPER_MODULUS) + pow(root, -power, PAPER_MODULUS)
    return total * pow(2, -1, PAPER_MODULUS) % PAPER_MODULUS


def _odd(root: int, power: int) -> int:
    """(root^power − root^−power)/2, the sine of the field, times √−1."""
    total = pow(root, power, PAPER_MODULUS) - pow(root, -power, PAPER_MODULUS)
    return total * pow(2, -1, PAPER_MODULUS) % PAPER_MODULUS


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


def table_19() -> npt.NDArray[np.float64]:
    """The coefficients of `transform_19`: for each k = 1…9 the halves of c_kb, then of s_kb."""
    matrix = [[[f(ZETA, k * b) for b in range(1, 10)] for f in (_even, _odd)] for k in range(1, 10)]
    split = halves(np.array(matrix, np.uint32), PAPER_MODULUS)
    return np.ascontiguousarray(split.transpose(1, 2, 0, 3)).reshape(-1)


FOLDED = 19
"""Rows of scratch that `transform_19` needs: x₀, nine sums, nine differences."""

_ENTRIES = 4 * 9
_pair_9 = unrolled(
    "pair_9",
    9,
    shared=False,
    begin="high1 = high2 = low2 = 0.0; low1 = data[j]",
    end="""
even = combine(high1, low1, q, inverse)
odd = combine(high2, low2, q, inverse)
out[first + j] = even + odd
out[second + j] = even - odd
""",
)


@inner
def transform_19(panel: Pointer, row: int, scratch: Pointer, table: Pointer, pairs: int) -> None:
    """Nineteen rows x_b, ten rows apart, become Σ_b ζ^(b·k)·x_b for k = 0, 1, −1, … ±pairs.

    ζ^(b·k)·x_b + ζ^(−b·k)·x_(19−b) = c_kb·(x_b + x_(19−b)) + s_kb·(x_b − x_(19−b)); for −k only the
    second sign changes. The sums here are below 2.002·q < 2³³·⁰¹, so nine products with halves of a
    coefficient stay below 9·2¹⁵·2³³·⁰¹ < 2⁵¹·². The results are below 19.1·q (k = 0) and 2.002·q.
    """
    _fold_19(panel, row, scratch)
    for k in range(1, pairs + 1):
        first = row + (2 * k - 1) * _STRIDE
        entry = (k - 1) * _ENTRIES
        _pair_9(scratch, WIDTH, table, entry, panel, first, first + _STRIDE, _Q, 1.0 / _Q)


@inner
def _fold_19(panel: Pointer, row: int, scratch: Pointer) -> None:
    """x₀, x_b + x_(19−b) and x_b − x_(19−b) go to scratch, the sum of all to row 0."""
    for j in range(WIDTH):
        x0 = total = panel[row + j]
        for b in range(1, 10):
            x, y = panel[row + b * _STRIDE + j], panel[row + (19 - b) * _STRIDE + j]
            scratch[b * WIDTH + j] = x + y
            scratch[(9 + b) * WIDTH + j] = x - y
            total += x + y
        scratch[j] = x0
        panel[row + j] = total
