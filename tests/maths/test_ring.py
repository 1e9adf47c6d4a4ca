"""The transform is what its definition says, at the extremes too, and a ⊙ ŝ is a product of polynomials."""

import numpy as np
import oracle_keys as oracle
import pytest
from oracle_keys import BLOCKS, GROUP, NARROW, WIDE, N

from basecagg.errors import DataError, ParameterError
from basecagg.maths.kernels import ring as kernel
from basecagg.maths.ring import RingProduct

PRIMES = (NARROW, WIDE, 12289)


def grown(public, key, q, *more):
    out = np.empty(GROUP, np.uint32)
    RingProduct(np.array(key, np.uint32), q)(np.array(public, np.uint32), out, *more)
    return out


def test_the_oracles_recursion_is_the_definition():
    values = np.random.default_rng(1).integers(0, WIDE, N).tolist()
    coefficients = oracle.inverse(values, WIDE)
    for k in (0, 1, 2, 1023, 2047):
        assert coefficients[k] == oracle.by_definition(values, k, WIDE)
    assert oracle.forward(coefficients, WIDE) == values


@pytest.mark.parametrize("q", PRIMES)
def test_psi_is_a_root_of_minus_one(q):
    assert kernel.root(q) == oracle.psi(q)


def public_values(q):
    """A group of a in which each block is another case: constant, one value alone, random."""
    rng, half = np.random.default_rng(q), (q - 1) // 2
    public = rng.integers(0, q, GROUP).astype(np.uint32)
    cases = [0, 1, q - 1, half, half + 1]
    for block, value in enumerate(cases):
        public[block::BLOCKS] = value
    public[5::BLOCKS] = np.where(np.arange(N) % 2, half, half + 1)
    for block, place in enumerate((0, 1, 1023, 2047), start=6):
        public[block::BLOCKS] = 0
        public[place * BLOCKS + block] = q - 1
    return public


def keys(q):
    """Random, zero, the largest, and those whose table has the largest factors: ŝ/n near ±q/2."""
    half, odd = (q - 1) // 2, np.arange(N) % 2 == 1
    largest = N * half % q
    return {
        "random": np.random.default_rng(2).integers(0, q, N),
        "zero": np.zeros(N, int),
        "ones": np.ones(N, int),
        "q - 1": np.full(N, q - 1),
        "largest factors": np.full(N, largest),
        "of both signs": np.where(odd, largest, q - largest),
    }


@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize("name", keys(WIDE))
def test_what_grows_from_a_key_is_the_inverse_transform(name, q):
    public, key = public_values(q), keys(q)[name]
    assert grown(public, key, q).tolist() == oracle.product(public.tolist(), key.tolist(), q)


def test_words_may_grow_where_a_lies():
    public, key = public_values(WIDE), keys(WIDE)["random"].astype(np.uint32)
    expected = grown(public, key, WIDE)
    RingProduct(key, WIDE)(public, public)
    assert np.array_equal(public, expected)


def test_values_multiply_as_polynomials_do():
    rng = np.random.default_rng(3)
    a, s = rng.integers(0, NARROW, (2, N))
    whole = [0] * (2 * N)
    for i, x in enumerate(a.tolist()):
        for j, y in enumerate(s.tolist()):
            whole[i + j] += x * y
    public = np.zeros(GROUP, np.uint32)
    public[3::BLOCKS] = oracle.forward(a.tolist(), NARROW)
    out = grown(public, oracle.forward(s.tolist(), NARROW), NARROW)
    assert out[3::BLOCKS].tolist() == [(whole[k] - whole[k + N]) % NARROW for k in range(N)]
    assert not out[4::BLOCKS].any()


@pytest.mark.parametrize("q", PRIMES)
def test_an_error_is_the_number_of_ones_less_16(q):
    coins = np.random.default_rng(4).integers(0, 2**32, GROUP).astype(np.uint32)
    coins[:4] = 0, 2**32 - 1, 1, 2**31
    public, key = public_values(q), keys(q)["random"]
    bare = grown(public, key, q).astype(int)
    ones = np.array([word.bit_count() for word in coins.tolist()])
    assert grown(public, key, q, coins).tolist() == ((bare + ones - 16) % q).tolist()


def test_an_error_wraps_around_zero():
    nothing, q = np.zeros(GROUP, np.uint32), NARROW
    coins = np.arange(GROUP, dtype=np.uint32)
    signed = np.array([word.bit_count() - 16 for word in coins.tolist()])
    assert grown(nothing, np.zeros(N), q, coins).tolist() == (signed % q).tolist()


@pytest.mark.parametrize("q", [2**32 - 5, 16777213, 2**31 - 1])
def test_a_field_without_the_root_is_refused(q):
    with pytest.raises(ParameterError, match="2n = 4096"):
        RingProduct(np.zeros(N, np.uint32), q)


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="key has shape"):
        RingProduct(np.zeros(N - 1, np.uint32), WIDE)
    with pytest.raises(DataError, match="key holds a value"):
        RingProduct(np.full(N, WIDE, np.uint32), WIDE)
    product, whole = RingProduct(np.zeros(N, np.uint32), WIDE), np.zeros(GROUP, np.uint32)
    for public, out, errors, name in (
        (whole[1:], whole, whole, "public"),
        (whole, whole[1:], whole, "out"),
        (whole, whole, whole[1:], "errors"),
        (whole, np.zeros(2 * GROUP, np.uint32)[::2], whole, "out"),
    ):
        with pytest.raises(DataError, match=name):
            product(public, out, errors)


def test_a_product_does_not_print_its_key():
    assert repr(RingProduct(np.arange(N, dtype=np.uint32), WIDE)) == "RingProduct(…)"
