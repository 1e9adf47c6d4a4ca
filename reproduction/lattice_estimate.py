"""How many bits a lattice attack on masks from keys takes. Run as a module, it prints the table.

The core-SVP method of Alkim, Ducas, Pöppelmann and Schwabe (ADPS16, "NewHope"): an attack costs as much as
one call of the sieve that BKZ uses in blocks of b, 2^(0.292·b) classically, 2^(0.265·b) on a quantum
computer. Two attacks: the primal finds the errors as an unusually short vector, the dual tells samples from
uniform words by short vectors of the dual lattice. Hybrid attacks are not here:
docs/explanation/keys-proof.md has them from lattice-estimator.

A uniform secret is exchanged for one as small as the errors first: n samples are solved for it (Applebaum,
Cash, Peikert and Sahai, 2009), and the errors of these n samples are the secret of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, e, log, log2, pi, sqrt

import numpy as np

from basecagg.maths.approved_rings import APPROVED, MOST_WORDS, ApprovedRing

CLASSICAL, QUANTUM = 0.292, 0.265
"""log₂ of a sieve's cost, for each dimension of a block."""
VECTORS = 0.2075
"""log₂ of the short vectors that a sieve gives, for each dimension: the dual attack takes as many."""
COINS = 32
"""Ones and zeros of an error."""


@dataclass(frozen=True)
class Lwe:
    """Samples a·s + e mod q, with small secrets."""

    size: int
    """n"""
    modulus: float
    """q"""
    error: float
    """σ of e"""
    secret: float
    """σ of s"""
    samples: int
    """At most so many are given."""


@dataclass(frozen=True)
class Estimate:
    """Both attacks, each at its best."""

    block: int
    """b of the primal attack."""
    dimension: int
    """d of the primal attack's lattice."""
    primal: float
    """log₂ of its cost, classical core-SVP."""
    dual: float
    """log₂ of the dual attack's."""

    @property
    def classical(self) -> float:
        """log₂ of what the better attack costs."""
        return min(self.primal, self.dual)

    @property
    def quantum(self) -> float:
        """The same for the primal attack with a quantum sieve."""
        return QUANTUM * self.block

    @property
    def sieving(self) -> float:
        """The primal attack with the constants of the Homomorphic Encryption Standard, for its table."""
        return self.primal + 16.4 + log2(8 * self.dimension)


def estimate(problem: Lwe) -> Estimate:
    """What the best attacks on these samples cost."""
    block, dimension = _primal(problem)
    return Estimate(block, dimension, CLASSICAL * block, dual_attack(problem))


def _log_delta(block: int) -> float:
    """ln δ: BKZ with blocks of b finds vectors of length δ^d·vol^(1/d) (Chen, 2013)."""
    return log((pi * block) ** (1 / block) * block / (2 * pi * e)) / (2 * (block - 1))


def _primal(p: Lwe) -> tuple[int, int]:
    """The smallest b, and the dimension of its lattice, for which the projected error is found:

    σ·√b ≤ δ^(2b−d−1)·vol^(1/d), where vol = q^m·ν^n scales secrets to the size of errors by ν.
    """
    m = np.arange(1, p.samples + 1)
    d = m + p.size + 1
    volume = (m * log(p.modulus) + p.size * log(p.error / p.secret)) / d

    def found(block: int) -> int:
        """A dimension in which a block of this size suffices, or 0."""
        reached = (2 * block - d - 1) * _log_delta(block) + volume
        enough = reached >= 0.5 * log(block) + log(p.error)
        return int(d[enough][0]) if enough.any() else 0

    low, high = 50, p.size + p.samples
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle + 1, high)
    return low, found(low)


def dual_attack(p: Lwe, rarely: float = 0) -> float:
    """log₂ of the cost of the cheapest b: sieves until enough short vectors add up to a bias that is seen.

    A vector of length ℓ tells samples from uniform words with a bias of exp(−2π²·(ℓ·σ/q)²), and takes
    the inverse square of that in vectors; for an advantage of 2^−`rarely` its square times as many.
    """
    d = np.arange(1, p.samples + 1) + p.size
    volume = p.size * log(p.modulus * p.secret / p.error) / d
    best = float("inf")
    for block in range(50, 2 * p.size, 2):
        length = np.exp((d - 1) * _log_delta(block) + volume)
        vectors = 4 * (pi * length * p.error / p.modulus) ** 2 / log(2)
        repeats = max(0.0, float(vectors.min()) - VECTORS * block - 2 * rarely)
        best = min(best, CLASSICAL * block + repeats)
    return best


# --- our rings ----------------------------------------------------------------------------------


def expected_words(coins: int, words: int = MOST_WORDS) -> float:
    """Of so many words, those of which at most so many coins stay open when a pair's sums are told."""
    return words * sum(comb(COINS, k) for k in range(coins + 1)) / 2.0**COINS


def deviation(coins: int) -> float:
    """σ of an error with so many open coins: Bin(M, ½)."""
    return sqrt(coins) / 2


SECRET_COINS, ERROR_COINS = 2, 4
"""M of every secret and of every error, for the least noisy of 2³⁰ words: see `pessimistic`."""


def pessimistic(ring: ApprovedRing) -> Lwe:
    """The least noisy samples that 2³⁰ words of a key have, and less noisy than that.

    An attacker chooses its samples. Of 2³⁰ words about 1,372 have M ≤ 3. So if the n = 2048 least noisy ones
    are solved for the secret, the others have M ≥ 4. And about 132 words have M ≤ 2: there are not n = 2048
    of them.
    """
    errors, secrets = deviation(ERROR_COINS), deviation(SECRET_COINS)
    return Lwe(ring.size, ring.modulus, errors, secrets, 4 * ring.size)


def typical(ring: ApprovedRing, coins: int) -> Lwe:
    """All words with so many open coins: 32 for an upload that is in no sum, 16 for the mean of a pair."""
    return Lwe(ring.size, ring.modulus, deviation(coins), deviation(coins), 4 * ring.size)


def main() -> None:
    """Print a row for each ring and each error."""
    print("| n | q | error | b | core-SVP classical / quantum, primal | dual |")
    print("|---|---|---|---|---|---|")
    for ring in APPROVED:
        cases = [(f"M = {m}, σ = {deviation(m):.2f}", typical(ring, m)) for m in (32, 16, 4)]
        cases.append(("least noisy of 2³⁰ words", pessimistic(ring)))
        for name, problem in cases:
            found = estimate(problem)
            print(
                f"| {ring.size} | {ring.modulus} | {name} | {found.block} |"
                f" {found.primal:.1f} / {found.quantum:.1f} | {found.dual:.1f} |"
            )


if __name__ == "__main__":
    main()
