"""R_q = Z_q[X]/(Xⁿ + 1): what grows from a key, INTT(a ⊙ ŝ) + e, a group of 16 blocks at a time.

Keys and the public a are given by their values, so nobody needs the forward transform: uniform values are
uniform coefficients. `kernels/ring.py` says which value and which coefficient a word is; that is normative.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.elements import Elements, check_values, checked_shape, destination
from basecagg.maths.kernels.balanced import WIDTH, new_panel
from basecagg.maths.kernels.compiler import addresses_of
from basecagg.maths.kernels.ring import GROUP, SIZE, Table, factors, grow, twiddle_factors
from basecagg.maths.primes import require_modulus
from basecagg.maths.randomness import Words

_NO_ERRORS = np.full(GROUP, 0xFFFF, np.uint32)
"""Sixteen ones in every word: all errors are 0."""


class RingProduct:
    """INTT(a ⊙ ŝ) for one key ŝ. For one thread only."""

    def __init__(self, key: Elements, modulus: int) -> None:
        """`key` has n values; 1/n of the transform goes into its table."""
        require_ring(modulus)
        key = checked_shape(key, "key", (SIZE,))
        check_values(key, "key", modulus)
        self._q, self._twiddles = modulus, _twiddles(modulus)
        # Products of words are below 2⁶⁴.
        scaled = key.astype(np.uint64) * np.uint64(pow(SIZE, -1, modulus)) % np.uint64(modulus)
        self._key = factors(scaled.astype(np.int64), modulus)
        self._panel = new_panel(-(-GROUP // WIDTH))

    def __repr__(self) -> str:
        return "RingProduct(…)"

    def __call__(self, public: Elements, out: Elements, errors: Words = _NO_ERRORS) -> None:
        """out = INTT(a ⊙ ŝ) + e for a group: e is the number of ones in each word of `errors`, less 16.

        `out` may be the memory of `public`.
        """
        public = checked_shape(public, "public", (GROUP,))
        errors = checked_shape(errors, "errors", (GROUP,))
        at_public, at_errors, at_out = addresses_of([public, errors, destination(out, (GROUP,))])
        q = float(self._q)
        grow(at_public, self._key, self._twiddles, at_errors, self._panel, at_out, q)


def require_ring(modulus: int) -> None:
    """Refuse a prime for which ψ, of order 2n, does not exist."""
    require_modulus(modulus, least=3)
    if modulus % (2 * SIZE) != 1:
        raise ParameterError(
            f"q = {modulus} is not 1 mod 2n = {2 * SIZE}, so polynomials mod Xⁿ + 1 have no values in F_q",
            rule="keys: 2n divides q − 1",
        )


@lru_cache(maxsize=4)
def _twiddles(modulus: int) -> Table:
    return twiddle_factors(modulus)
