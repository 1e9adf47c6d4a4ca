"""The rings that masks may grow in, and how many words may grow from one key. Standard library only.

R_q = Z_q[X]/(Xⁿ + 1) with n = `KEY_SIZE` and a prime q for which 2n divides q − 1. How hard it is to tell
masks from uniform words depends on n, q and the error. So these are not settings: a ring that is not in the
table, with the bits that estimators find for it, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.errors import ParameterError

KEY_SIZE = 2048
"""n: words of a key."""
ERROR_REACH = 16
"""An error is the number of ones among 32 coins, less this: at most so large."""
ERROR_VARIANCE = 8
"""σ² of an error: 32 coins with ¼ each."""
MOST_WORDS = 2**30
"""Words that may grow from one key. With very many the errors could be solved for as polynomials (Arora–Ge)."""


@dataclass(frozen=True)
class ApprovedRing:
    """A row of the table."""

    size: int
    """n"""
    modulus: int
    """q"""
    error: str
    bits: int
    """log₂ of what the best known attack costs (classical core-SVP) on the least noisy of a key's 2³⁰ words."""
    source: str


_ERROR = "binomial: ones among 32 coins, less 16"
_SOURCE = "lattice-estimator 27a581b, dual hybrid; beside reproduction/lattice_estimate.py in keys-proof.md"

APPROVED = (
    ApprovedRing(KEY_SIZE, 16760833, _ERROR, 249, _SOURCE),
    ApprovedRing(KEY_SIZE, 2**32 - 12287, _ERROR, 180, _SOURCE),
)
"""By width: the primes q = 1 mod 4096 of 24 and of 32 bits that are the largest."""
KEY_MODULI = tuple(ring.modulus for ring in APPROVED)
"""q of each row, the narrowest first."""


def approved_ring(size: int, modulus: int, words: int) -> ApprovedRing:
    """The row of this ring, if it is approved for masks of so many words."""
    for ring in APPROVED:
        if (ring.size, ring.modulus) == (size, modulus):
            break
    else:
        offered = ", ".join(f"n = {ring.size} with q = {ring.modulus}" for ring in APPROVED)
        raise ParameterError(
            f"masks do not grow from keys of n = {size} words mod q = {modulus}: approved are {offered}",
            rule="keys: n and q are a row of approved rings",
        )
    if not 0 < words <= MOST_WORDS:
        raise ParameterError(
            f"{words} words of a mask are not within 1…2³⁰, and more must not grow from one key;"
            ' for a longer model take masks = "long"',
            rule="keys: at most 2³⁰ words a key",
        )
    return ring
