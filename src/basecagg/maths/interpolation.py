"""Polynomials through points of F_q: the matrices that take values to coefficients or other values.

All in O(U²) with vectors of numpy: a product of two *reduced* numbers fits 64 bits.
"""

from __future__ import annotations

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
        power = mod(power * points, q)
    return matrix


def coefficient_rows(points: Numbers, count: int, q: int) -> Matrix:
    """The first `count` rows of the inverse Vandermonde matrix: values to low coefficients.

    The Lagrange polynomial of x_j is w_j·P(x)/(x − x_j), with P(x) = Π (x − x_i), w_j = 1/P'(x_j).
    Its coefficients c_k follow from the lowest up: c_(k−1) − x_j·c_k = p_k·w_j, c_(−1) = 0.
    """
    weights = lagrange_weights(points, q)
    inverses = inverse(points, q)
    polynomial = _from_roots(points, q)
    matrix = np.empty((count, len(points)), np.uint32)
    quotient = np.zeros_like(points)
    for k in range(count):
        quotient = mod(_minus(quotient, polynomial[k], q) * inverses, q)
        matrix[k] = mod(quotient * weights, q)
    return matrix


def value_rows(points: Numbers, others: Numbers, q: int) -> Matrix:
    """Values at `points` to values at `others`, of a polynomial of degree < len(points).

    The Lagrange polynomial of x_j at x is w_j·Π_(i<j) (x − x_i)·Π_(i>j) (x − x_i).
    """
    weights = lagrange_weights(points, q)
    rows = np.empty((len(points), len(others)), np.uint64)
    before = np.ones_like(others)
    for j, point in enumerate(points):
        rows[j] = mod(before * weights[j], q)
        before = mod(before * _minus(others, point, q), q)
    after = np.ones_like(others)
    for j, point in reversed(list(enumerate(points))):
        rows[j] = mod(rows[j] * after, q)
        after = mod(after * _minus(others, point, q), q)
    return np.ascontiguousarray(rows.T.astype(np.uint32))


def lagrange_weights(points: Numbers, q: int) -> Numbers:
    """w_j = 1/Π_(i≠j) (x_j − x_i)."""
    product = np.ones_like(points)
    for j, point in enumerate(points):
        difference = _minus(points, point, q)
        difference[j] = 1
        product = mod(product * difference, q)
    return inverse(product, q)


def inverse(values: Numbers, q: int) -> Numbers:
    """1/x of every x ≠ 0: x^(q−2)."""
    result = np.ones_like(values)
    for bit in bin(q - 2)[2:]:
        result = mod(result * result, q)
        if bit == "1":
            result = mod(result * values, q)
    return result


def mod(values: Numbers, q: int) -> Numbers:
    """values mod q. (`%` divides one by one; numpy's `//` by a constant is vectorised.)"""
    return values - values // q * q


def _minus(values: Numbers, subtrahend: np.uint64, q: int) -> Numbers:
    return mod(values + (q - subtrahend), q)


def _from_roots(points: Numbers, q: int) -> Numbers:
    """The coefficients of Π (x − x_i), lowest first."""
    polynomial = np.zeros(len(points) + 1, np.uint64)
    polynomial[0] = 1
    for i, point in enumerate(points):
        known = polynomial[: i + 1].copy()
        polynomial[: i + 1] = mod(known * (q - point), q)
        polynomial[1 : i + 2] += known
        polynomial[1 : i + 2] = mod(polynomial[1 : i + 2], q)
    return polynomial
