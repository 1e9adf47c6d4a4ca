"""Which of n values do not lie on a polynomial of degree < U? Reed–Solomon decoding, one column.

The values of a polynomial of degree < U are orthogonal to (w_i·x_i^k)_i for k < n − U, where w_i are
the Lagrange weights of all n points. What these n − U products, the syndromes, do not forget is the
errors: S_k = Σ_i w_i·e_i·x_i^k. The shortest recurrence of that sequence has the x_i of the errors
as its roots (Berlekamp and Massey).
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from basecagg.maths.interpolation import Numbers, lagrange_weights


def locate_errors(points: Numbers, values: Numbers, dimension: int, q: int) -> list[int] | None:
    """The indices of the wrong values, if at most (n − U)/2 are wrong; None if it must be more.

    Points are distinct and nonzero. `dimension` is U.
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
