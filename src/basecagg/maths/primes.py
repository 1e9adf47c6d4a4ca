"""Is q prime, and how wide are its words? Standard library only: parameters ask before numpy is loaded."""

from __future__ import annotations

from functools import lru_cache

from basecagg.errors import ParameterError

PAPER_MODULUS = 2**32 - 5
"""q of the paper: the largest prime below 2³²."""

# These bases decide primality for every number below 3,215,031,751·… and, with 7, below 2³² and beyond
# (Jaeschke 1993: {2, 3, 5, 7} has no strong pseudoprime below 3,215,031,751; 11 covers the rest).
_WITNESSES = (2, 3, 5, 7, 11)


@lru_cache(maxsize=64)
def is_prime(n: int) -> bool:
    """Decide primality for n < 2³² (deterministic Miller–Rabin)."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(n, base, odd, twos) for base in _WITNESSES)


def require_modulus(modulus: int, *, least: int = 2) -> None:
    """Refuse a field size that is not a prime below 2³²."""
    if isinstance(modulus, int) and least <= modulus < 2**32 and is_prime(modulus):
        return
    raise ParameterError(
        f"modulus q = {modulus} is not {'an odd' if least > 2 else 'a'} prime below 2³²;"
        " the default is 2³² − 5",
        rule="q is a prime below 2³²",
    )


def word_bytes(modulus: int) -> int:
    """Bytes of a word 0…q−1 on the wire: three or four."""
    return 3 if modulus < 2**24 else 4


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    return any((x := x * x % n) == n - 1 for _ in range(twos - 1))
