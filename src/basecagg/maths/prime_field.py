"""The field F_q on arrays of words: every element is a uint32 in 0…q−1.

Exact for every prime below 2³². For the paper's q = 2³² − 5 a remainder needs no division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.maths.elements import Elements, check_values, checked, checked_shape, destination
from basecagg.maths.kernels import modular_sums
from basecagg.maths.kernels.compiler import addresses_of
from basecagg.maths.kernels.cores import over_columns, thread_count
from basecagg.maths.primes import PAPER_MODULUS, require_modulus


class PrimeField:
    """F_q. Results go to `out` if given: fresh memory costs as much as the arithmetic."""

    def __init__(self, modulus: int = PAPER_MODULUS, *, threads: int | None = None) -> None:
        """F_q for q = modulus. Long vectors are shared by `threads` threads, or by all cores."""
        require_modulus(modulus)
        self.modulus = modulus
        self.threads = thread_count(threads)

    def __repr__(self) -> str:
        return f"PrimeField({self.modulus})"

    def sub(self, a: Elements, b: Elements, out: Elements | None = None) -> Elements:
        """a − b, element by element. `out` may be a or b."""
        a = checked(a, "a")
        b = checked_shape(b, "b", a.shape)
        out = destination(out, a.shape)
        at_a, at_b, at_out = addresses_of([a, b, out])
        q = np.uint64(self.modulus)

        def work(begin: int, end: int) -> int:
            return int(modular_sums.sub(at_a, at_b, at_out, begin, end, q))

        if over_columns(work, out.size, 3, self.threads) >= self.modulus:
            self._name_offender([("a", a), ("b", b)])
        return out

    def weighted_sum(
        self,
        rows: Sequence[Elements] | Elements,
        weights: Sequence[int] | npt.NDArray[np.integer],
        out: Elements | None = None,
    ) -> Elements:
        """Σ_i weights[i]·rows[i]: the server's sum of updates, a holder's answer (§4.2.3).

        One pass over memory, for any weights in 0…q−1. Rows are vectors, or those of a matrix.
        """
        vectors = _vectors(rows)
        factors = self._factors(weights, len(vectors))
        out = destination(out, vectors[0].shape, *vectors)
        arguments = addresses_of(vectors), np.array(factors, np.uint32), _groups(factors)
        address, q = np.uint64(out.ctypes.data), np.uint64(self.modulus)

        def work(begin: int, end: int) -> int:
            return int(modular_sums.weighted_sum(*arguments, address, begin, end, q))

        if over_columns(work, out.size, len(vectors) + 1, self.threads) >= self.modulus:
            self._name_offender((f"row {i}", row) for i, row in enumerate(vectors))
        return out

    def check(self, array: Elements, name: str) -> None:
        """Raise `DataError` unless the array is uint32 and all its values are below q."""
        check_values(checked(array, name), name, self.modulus)

    def _factors(self, weights: Iterable[int], number: int) -> list[int]:
        factors = list(weights)
        if len(factors) != number:
            raise DataError(f"{len(factors)} weights for {number} rows: give one for each")
        for weight in factors:
            if not isinstance(weight, int | np.integer) or not 0 <= weight < self.modulus:
                raise DataError(
                    f"weight {weight!r} is not a whole number in 0…q−1 = {self.modulus - 1}"
                )
        return [int(weight) for weight in factors]

    def _name_offender(self, arrays: Iterable[tuple[str, Elements]]) -> None:
        """A kernel has read a word ≥ q: say where."""
        for name, array in arrays:
            check_values(array, name, self.modulus)


def _vectors(rows: Sequence[Elements] | Elements) -> list[Elements]:
    vectors = [checked(row, f"row {i}") for i, row in enumerate(rows)]
    if not vectors:
        raise DataError("there are no rows: a sum needs at least one")
    for i, vector in enumerate(vectors):
        if vector.ndim != 1:
            raise DataError(f"row {i} has shape {vector.shape}: rows are vectors")
        checked_shape(vector, f"row {i}", vectors[0].shape)
    return vectors


def _groups(weights: list[int]) -> npt.NDArray[np.int64]:
    """Cut the rows into groups whose weights fit the kernel's accumulator; one, if weights are small."""
    ends, total = [], 0
    for i, weight in enumerate(weights):
        total += weight
        if total > modular_sums.MOST_WEIGHT:
            ends.append(i)
            total = weight
    return np.array([*ends, len(weights)], np.int64)
