"""Roots of unity in the paper's field, q = 2³² − 5, and the evaluation points made of them.

q − 1 = 2 · 5 · 19 · 22605091, so F_q holds η of order 5 and ζ of order 19, and ω = −η of order 10.
The points are cosets g·⟨ω⟩ (10 points) or g·⟨ζ⟩⟨ω⟩ (190 points): distinct and nonzero, hence a
Vandermonde matrix as good as any other, but one that `cosets` multiplies with much faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from basecagg.maths.primes import PAPER_MODULUS as Q


def _root(order: int) -> int:
    """An element of prime order: the power (q − 1)/order of the smallest number for which it is not 1."""
    powers = (pow(base, (Q - 1) // order, Q) for base in count(2))
    return next(power for power in powers if power != 1)


ETA = _root(5)
"""η, of order 5."""
OMEGA = Q - ETA
"""ω = −η, of order 10."""
ZETA = _root(19)
"""ζ, of order 19."""

SMALL_COSET, LARGE_COSET = 10, 190


def shifts(coset: int, number: int) -> list[int]:
    """g for each coset: the smallest numbers whose cosets are distinct, that is, whose g^coset is."""

    def fresh() -> Iterator[int]:
        seen = set()
        for g in count(1):
            if (power := pow(g, coset, Q)) not in seen:
                seen.add(power)
                yield g

    return list(islice(fresh(), number))


def zeta_order(place: int) -> int:
    """The power of ζ at a place 0…18 of a large coset: 0, 1, −1, 7, −7, 11, −11, 2, −2, …

    After 0 these are ±a·7^t mod 19 for a = 1, 2, 4 and t = 0, 1, 2. The six with the same a stand
    together because `cosets` computes them together: of a coset that is used in part, the other
    sixes are not computed.
    """
    if place == 0:
        return 0
    pair, inverse = divmod(place - 1, 2)
    power = (1, 2, 4)[pair // 3] * (1, 7, 11)[pair % 3] % 19
    return -power if inverse else power


def points(coset: int, number: int) -> list[int]:
    """The evaluation points: g·ζ^k·ω^s, by g, then k, then s."""
    places = coset // SMALL_COSET
    inside = [
        pow(ZETA, zeta_order(place), Q) * pow(OMEGA, s, Q) % Q
        for place in range(places)
        for s in range(SMALL_COSET)
    ]
    gs = shifts(coset, -(-number // coset))
    return [g * root % Q for g in gs for root in inside][:number]
