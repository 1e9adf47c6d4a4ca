"""Of known parameters the estimator says what is known; of every approved ring, at least 128 bits."""

import re
from math import sqrt
from pathlib import Path

import pytest

from basecagg.maths.approved_rings import APPROVED, ERROR_VARIANCE, KEY_SIZE, MOST_WORDS
from reproduction import lattice_estimate
from reproduction.lattice_estimate import (
    COINS,
    Lwe,
    deviation,
    dual_attack,
    estimate,
    expected_words,
    pessimistic,
    typical,
)

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "explanation" / "keys-proof.md").read_text("utf-8")

# Classical and quantum core-SVP of the primal attack: round 3 of Kyber, table 4.
KYBER = {
    512: (Lwe(512, 3329, sqrt(1.5), sqrt(1.5), 512), 118, 107),
    768: (Lwe(768, 3329, 1.0, 1.0, 768), 182, 165),
    1024: (Lwe(1024, 3329, 1.0, 1.0, 1024), 256, 232),
}


@pytest.mark.parametrize("size", KYBER)
def test_kyber_has_its_known_strength(size):
    problem, classical, quantum = KYBER[size]
    found = estimate(problem)
    assert found.primal == pytest.approx(classical, abs=1)
    assert found.quantum == pytest.approx(quantum, abs=1)


@pytest.mark.parametrize(("size", "classical"), [(512, 112), (1024, 257)])
def test_newhope_has_its_known_strength(size, classical):
    """Version 1.02 of its specification, table 3: the better of both attacks."""
    found = estimate(Lwe(size, 12289, 2.0, 2.0, 2 * size))
    assert found.classical == pytest.approx(classical, abs=1)


# Homomorphic Encryption Standard (2018), tables 1 and 2, σ = 3.19: n, log₂ q, bits.
UNIFORM = [(1024, 29, 128), (1024, 21, 192), (1024, 16, 256), (2048, 56, 128), (2048, 39, 192)]
UNIFORM += [(2048, 31, 256), (4096, 111, 128), (4096, 77, 192), (4096, 60, 256)]
TERNARY = [(1024, 27, 128), (1024, 19, 192), (1024, 14, 256), (2048, 54, 128), (2048, 37, 192)]
TERNARY += [(2048, 29, 256), (4096, 109, 128), (4096, 75, 192), (4096, 58, 256)]
STANDARD = [(*row, 3.19) for row in UNIFORM] + [(*row, sqrt(2 / 3)) for row in TERNARY]


@pytest.mark.parametrize(("size", "width", "bits", "secret"), STANDARD)
def test_the_standard_for_homomorphic_encryption_is_met(size, width, bits, secret):
    """Its q is the widest with so many bits; of one bit more we too say that it has fewer."""
    at_most, wider = (Lwe(size, 2.0**w, 3.19, secret, 4 * size) for w in (width, width + 1))
    assert estimate(at_most).sieving >= bits - 0.2
    assert estimate(wider).sieving < bits


@pytest.mark.parametrize("ring", APPROVED, ids=lambda ring: str(ring.modulus))
def test_every_approved_ring_has_128_bits_for_the_least_noisy_words(ring):
    worst = estimate(pessimistic(ring))
    assert min(worst.classical, worst.quantum) >= 128
    assert 128 <= ring.bits <= worst.classical
    assert ring.size == KEY_SIZE


@pytest.mark.parametrize("size", [1024, 512])
@pytest.mark.parametrize("ring", APPROVED, ids=lambda ring: str(ring.modulus))
def test_a_shorter_key_would_not_be_approved(ring, size):
    """Negative control: the same field with fewer words of a key has less than 128 bits."""
    short = lattice_estimate.pessimistic(type(ring)(size, ring.modulus, ring.error, 0, ""))
    assert estimate(short).classical < 128


def test_less_error_is_less_strength():
    ring = APPROVED[-1]
    found = [estimate(typical(ring, coins)).classical for coins in (32, 16, 4, 1)]
    assert found == sorted(found, reverse=True)
    assert found[0] - found[-1] > 30


def test_the_least_noisy_words_are_not_as_quiet_as_assumed():
    """Of 2³⁰ words fewer than n have M ≤ 3, so other samples have M ≥ 4; and few have the secret's M ≤ 2."""
    assert expected_words(3) + 10 * sqrt(expected_words(3)) < KEY_SIZE
    assert expected_words(2) + 10 * sqrt(expected_words(2)) < KEY_SIZE / 4
    assert expected_words(COINS) == MOST_WORDS


def test_the_errors_of_a_pair_are_told_apart_from_their_sum():
    """Half of the coins of an error stay open when the sums of a pair's coins are told, in the mean."""
    assert deviation(COINS) ** 2 == pytest.approx(ERROR_VARIANCE)
    assert deviation(COINS // 2) ** 2 == pytest.approx(ERROR_VARIANCE / 2)


# --- the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", APPROVED, ids=lambda ring: str(ring.modulus))
def test_the_proofs_page_has_the_approved_rings_and_their_estimates(ring):
    width = ring.modulus.bit_length()
    assert re.search(
        rf"\| {ring.size} \| {ring.modulus} \({width} bits\) \|.*\| {ring.bits} \|", PAGE
    )
    for problem in (*(typical(ring, coins) for coins in (32, 16, 4)), pessimistic(ring)):
        found = estimate(problem)
        row = f"{found.block} | {found.primal:.1f} / {found.quantum:.1f} | {found.dual:.1f}"
        assert f"| {row} |" in PAGE


@pytest.mark.parametrize("ring", APPROVED, ids=lambda ring: str(ring.modulus))
def test_a_dual_attack_that_seldom_succeeds_costs_more_than_its_share(ring):
    """So a proof that loses a factor may take its bits off those of a whole attack."""
    problem = pessimistic(ring)
    whole = dual_attack(problem)
    for rarely in (8, 21, 44, 88):
        assert whole - rarely < dual_attack(problem, rarely) < whole
    words = " ".join(PAGE.split())
    exponents = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    costs = dual_attack(problem, 88), whole
    seldom, often = ("2" + f"{cost:.0f}".translate(exponents) for cost in costs)
    assert f"{seldom} instead of {often}" in words


def test_every_test_that_the_proofs_page_names_is_there():
    names = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(names) >= 6
    there = "".join(path.read_text("utf-8") for path in TESTS.glob("claims/test_keys_*.py"))
    assert all(f"def {name}(" in there for name in names)
