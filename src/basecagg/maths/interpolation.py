"""Polynomials through points of F_q: from values to coefficients and other values, and which values are wrong.

All in O(U²) operations, on vectors: a product of two *reduced* numbers fits 64 bits.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
Matrix = npt.NDArray[np.uint32]


def vandermonde(points: Numbers, columns: int, q: int) -> Matrix:
    """The powers x^0 … x^(columns−1) of each point: coefficients to values."""
    matrix = np.empty((len(points), columns), np.uint32)
    power = np.ones_like(points)
    for u in range(columns):
        matrix[:, u] = power
        power = power * points % q
    return matrix


def coefficient_rows(points: Numbers, count: int, q: int) -> Matrix:
    """The first `count` rows of the inverse Vandermonde matrix: values to the lowest coefficients.

    The Lagrange polynomial of x_j is w_j·P(x)/(x − x_j) with P(x) = Π (x − x_i) = Σ p_k·x^k. The
    coefficients c_k of P(x)/(x − x_j) follow from c_(k−1) − x_j·c_k = p_k, beginning with c_(−1) = 0.
    """
    weights, inverses = lagrange_weights(points, q), inverse(points, q)
    polynomial = _from_roots(points, count, q)
    matrix = np.empty((count, len(points)), np.uint32)
    quotient = np.zeros_like(points)
    for k in range(count):
        quotient = _minus(quotient, polynomial[k], q) * inverses % q
        matrix[k] = quotient * weights % q
    return matrix


def value_rows(points: Numbers, others: Numbers, q: int) -> Matrix:
    """Values at `points` to values at `others`, for polynomials of degree < len(points).

    The Lagrange polynomial of x_j at x is w_j·Π_(i<j) (x − x_i)·Π_(i>j) (x − x_i).
    """
    weights = lagrange_weights(points, q)
    differences = _minus(others, points[:, None], q)
    columns = np.empty_like(differences)
    before = after = np.ones_like(others)
    for j in range(len(points)):
        columns[j] = before * weights[j] % q
        before = before * differences[j] % q
    for j in reversed(range(len(points))):
        columns[j] = columns[j] * after % q
        after = after * differences[j] % q
    return np.ascontiguousarray(columns.T, np.uint32)


def lagrange_weights(points: Numbers, q: int) -> Numbers:
    """w_j = 1/Π_(i≠j) (x_j − x_i)."""
    factors = _minus(points, points[:, None], q)
    np.fill_diagonal(factors, 1)
    while len(factors) > 1:  # multiply the first half of the rows by the second
        half = (len(factors) + 1) // 2
        factors[: len(factors) - half] = factors[: len(factors) - half] * factors[half:] % q
        factors = factors[:half]
    return inverse(factors[0], q)


def inverse(values: Numbers, q: int) -> Numbers:
    """1/x of every x ≠ 0: x^(q−2)."""
    result = np.ones_like(values)
    for bit in bin(q - 2)[2:]:
        result = result * result % q
        if bit == "1":
            result = result * values % q
    return result


def _minus(a: Numbers, b: Numbers | np.uint64, q: int) -> Numbers:
    return (a + (q - b)) % q


def _from_roots(points: Numbers, count: int, q: int) -> Numbers:
    """The lowest `count` coefficients of Π (x − x_i), the lowest first."""
    polynomial = np.zeros(count, np.uint64)
    polynomial[0] = 1
    for point in points:
        shifted = polynomial[:-1].copy()
        polynomial = polynomial * (q - point) % q
        polynomial[1:] = (polynomial[1:] + shifted) % q
    return polynomial


# --- which values are wrong ----------------------------------------------------------------------


def locate_errors(points: Numbers, values: Numbers, dimension: int, q: int) -> list[int] | None:
    """The indices of the wrong values, if at most (n − U)/2 are wrong; None if it must be more.

    Points are distinct and nonzero. `dimension` is U.

    This is Reed–Solomon decoding of one column. The values of a polynomial of degree < U are orthogonal to
    (w_i·x_i^k)_i for k < n − U, where w_i are the Lagrange weights of all n points. So these n − U products,
    the syndromes, depend on the errors alone: S_k = Σ_i w_i·e_i·x_i^k. The shortest recurrence of that sequence
    has the x_i of the errors as its roots (Berlekamp and Massey).
    """
    syndromes = _syndromes(points, values, len(points) - dimension, q)
    recurrence = _shortest_recurrence(syndromes, q)
    order = len(recurrence) - 1
    found = np.flatnonzero(_evaluate(recurrence, points, q) == 0)
    if 2 * order > len(syndromes) or len(found) != order:
        return None
    return [int(index) for index in found]


def _syndromes(points: Numbers, values: Numbers, count: int, q: int) -> list[int]:
    terms = values * lagrange_weights(points, q) % q
    syndromes = []
    for _ in range(count):
        syndromes.append(int(terms.sum()) % q)  # n terms below 2³²: no overflow
        terms = terms * points % q
    return syndromes


def _shortest_recurrence(sequence: list[int], q: int) -> list[int]:
    """c with c₀ = 1, shortest so that Σ_i c_i·s_(k−i) = 0 for all k ≥ L = len(c) − 1 (Massey 1969)."""
    current, previous = [1], [1]
    length, gap, old_discrepancy = 0, 1, 1
    for k in range(len(sequence)):
        discrepancy = sum(c * sequence[k - i] for i, c in enumerate(current) if i <= k) % q
        if discrepancy:
            factor = discrepancy * pow(old_discrepancy, -1, q) % q
            shifted = [0] * gap + [factor * c for c in previous]
            updated = [(x - y) % q for x, y in zip_longest(current, shifted, fillvalue=0)]
            if 2 * length <= k:
                length, previous, old_discrepancy, gap = k + 1 - length, current, discrepancy, 0
            current = updated
        gap += 1
    return current + [0] * (length + 1 - len(current))


def _evaluate(coefficients: list[int], points: Numbers, q: int) -> Numbers:
    """c₀·x^L + … + c_L at every point."""
    value = np.zeros_like(points)
    for coefficient in coefficients:
        value = (value * points + coefficient) % q
    return value
