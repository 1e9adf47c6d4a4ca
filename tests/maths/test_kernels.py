"""The kernels are exact up to the very bounds they state, and are compiled but once."""

import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basecagg.errors import DataError
from basecagg.maths.kernels import balanced, compiler, cosets, dot, fourier, modular_sums, roots
from basecagg.maths.kernels.compiler import addresses_of, numbers_of
from basecagg.maths.kernels.cosets import CosetEvaluation
from basecagg.maths.kernels.dot import Product
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField

Q = 2**32 - 5
PRIMES = (3, 5, 97, 2**31 - 1, 2**31 + 11, Q)


# ---- exact ----


def near(*edges):
    """Integers up to the last edge in size, and those close to an edge."""
    close = [st.integers(edge - 9, edge) for edge in edges]
    sizes = st.one_of(*close, st.integers(0, max(edges)))
    return st.builds(lambda size, sign: sign * size, sizes, st.sampled_from([1, -1]))


@given(near(2**31, 2**52 - 1), st.sampled_from(PRIMES))
def test_reduce_gives_the_residue_nearest_to_0(x, q):
    residue = balanced.reduce(float(x), float(q), 1.0 / q)
    assert (residue - x) % q == 0
    assert abs(residue) <= (q - 1) // 2


@given(st.integers(-(2**30), 2**30), st.sampled_from(PRIMES))
def test_reduce_rounds_the_right_way_on_both_sides_of_a_tie(k, q):
    for x in (k * q + q // 2, k * q + q // 2 + 1):
        if abs(x) < 2**52:
            assert abs(balanced.reduce(float(x), float(q), 1.0 / q)) <= (q - 1) // 2


@given(near(120 * 2**46), near(2**52, 2**53 - 2**33))
def test_combine_is_exact_up_to_its_bound(high, low):
    residue = balanced.combine(float(high << 16), float(low), float(Q), 1.0 / Q)
    assert (int(residue) - (high << 16) - low) % Q == 0
    assert abs(residue) <= 1.001 * Q


@given(near(2**31, 2**45 - 1), near(Q // 2))
def test_times_is_exact_up_to_its_bound(x, w):
    residue = balanced.times(float(x), float(w), w / Q, float(Q))
    assert (int(residue) - x * w) % Q == 0
    assert abs(residue) <= 0.51 * Q


@given(st.lists(st.integers(0, Q - 1), min_size=1), st.sampled_from(PRIMES))
def test_halves_make_the_whole(values, q):
    residues = np.array(values, np.uint32) % np.uint32(q)
    high, low = balanced.halves(residues, q)
    assert not ((high + low - residues) % q).any()
    assert np.abs(low).max() <= 2**15
    assert np.abs(high).max() <= 2**31
    assert not (high % 2**16).any()


def multiplied(matrix, rows, q):
    out = np.empty((len(matrix), rows.shape[1]), np.uint32)
    largest = Product(matrix, q)(addresses_of(rows), addresses_of(out), rows.shape[1], 1)
    assert largest == rows.max()
    return out


@pytest.mark.parametrize("terms", [1, 4, 5, 8, 9, 120, 121, 245, 1000])
@pytest.mark.parametrize(
    "coefficient", [Q // 2, Q // 2 + 1, 2**31 - 2**15 - 1, 2**31 + 2**15 - 5, 1]
)
@pytest.mark.parametrize("element", [Q // 2, Q // 2 + 1, 2**31, 2**31 - 1, Q - 1])
def test_sums_of_the_largest_products_are_exact(terms, coefficient, element):
    matrix = np.full((3, terms), coefficient, np.uint32)
    rows = np.full((terms, 2), element, np.uint32)
    assert (multiplied(matrix, rows, Q) == terms * coefficient * element % Q).all()


@numba.njit
def transform_19(panel, scratch, table, groups):
    fourier.transform_19(numbers_of(panel), 0, numbers_of(scratch), numbers_of(table), groups)


@pytest.mark.parametrize("groups", range(4))
def test_a_transform_of_19_is_exact_up_to_its_bound(groups):
    signs = np.random.default_rng(groups).choice([-1, 1], (19, balanced.WIDTH))
    signs[:, 0] = 1
    panel = balanced.new_panel(190)
    rows = panel.reshape(19, 10, -1)[:, 0]
    rows[:] = signs * int(1.001 * Q)
    before = rows.astype(int).astype(object)
    transform_19(panel, balanced.new_panel(fourier.FOLDED), fourier.table_19(), groups)
    for place in range(1 + 6 * groups):
        powers = [pow(roots.ZETA, b * roots.zeta_order(place), Q) for b in range(19)]
        assert not ((rows[place].astype(int) - powers @ before) % Q).any()
    assert np.abs(rows[0]).max() <= 19.1 * Q
    assert np.abs(rows[1 : 1 + 6 * groups]).max(initial=0) <= 6.01 * Q


@pytest.mark.parametrize("coset", [roots.SMALL_COSET, roots.LARGE_COSET])
@pytest.mark.parametrize("element", [Q // 2, Q // 2 + 1, 2**31, Q - 1, None])
@pytest.mark.parametrize("coefficients", [1, 40, 190, 191, 800])
def test_values_on_cosets_are_exact(coset, element, coefficients):
    rng = np.random.default_rng(coefficients)
    drawn = rng.choice([Q // 2, Q // 2 + 1], (coefficients, 1))
    rows = np.full_like(drawn, element) if element else drawn
    rows = rows.astype(np.uint32)
    for number in (1, 11, 71, 205):
        out = np.empty((number, 1), np.uint32)
        evaluate = CosetEvaluation(coset, number, coefficients)
        evaluate(addresses_of(rows), addresses_of(out), 1, 1)
        column = rows[:, 0].tolist()
        points = roots.points(coset, number)
        assert out[:, 0].tolist() == [oracle.horner(column, x, Q) for x in points]


@pytest.mark.parametrize("most", [9, Q - 1])  # one group of weights, and one for each or two
@pytest.mark.parametrize("size", [31, 32, 33, 2048, 2048 + 33])
@pytest.mark.parametrize("number", [*range(1, 18), 70])
def test_a_weighted_sum_adds_and_looks_at_every_word(number, size, most):
    rng = np.random.default_rng(number * size)
    rows = rng.integers(0, Q, (number, size), np.uint32)
    weights = rng.integers(0, most, number, np.uint64, endpoint=True)
    expected = (rows * weights[:, None] % Q).sum(axis=0) % Q
    assert (PrimeField(threads=1).weighted_sum(rows, weights) == expected).all()
    i, j = rng.integers(number), rng.integers(size)
    rows[i, j] = Q
    with pytest.raises(DataError, match=f"row {i}"):
        PrimeField(threads=1).weighted_sum(rows, weights)


@pytest.mark.parametrize("q", [*PRIMES, 8191, 8209, 16760833, 2**32 - 12287])
@given(st.integers(0, 2**64 - 1), st.integers(-1, 1))
def test_remainders_are_exact_for_all_64_bits(q, x, beside):
    """Also next to the largest multiples, where the quotient in floats is off by one."""
    largest = 2**64 - 1
    for number in (x, x // q * q + beside, largest // q * q + beside, largest):
        kept = min(max(number, 0), largest)
        assert modular_sums._remainder(np.uint64(kept), np.uint64(q)) == kept % q


@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize("size", [1, 2**15, 2**17 + 3])
def test_inner_products_do_not_overflow(q, size):
    row = np.full(size, q - 1, np.uint32)
    address = np.uint64(row.ctypes.data)
    assert modular_sums.inner_product(address, address, size, np.uint64(q)) == size % q


def test_the_roots_have_their_orders():
    assert [n for n in range(1, 6) if pow(roots.ETA, n, Q) == 1] == [5]
    assert [n for n in range(1, 11) if pow(roots.OMEGA, n, Q) == 1] == [10]
    assert [n for n in range(1, 20) if pow(roots.ZETA, n, Q) == 1] == [19]


# ---- compiled once ----


KERNELS = (
    cosets._evaluate,
    dot._multiply,
    modular_sums.sub,
    modular_sums.inner_product,
    modular_sums.weighted_sum,
)


def test_no_array_makes_a_kernel_compile_again():
    code, field = MaskCode(12, 5, 2), PrimeField(7)
    read_only = np.frombuffer(bytes(24), np.uint32)
    for mask in (np.zeros(6, np.uint32), read_only, np.zeros((6, 2), np.uint32)[:, 0]):
        shares = code.encode(mask, np.zeros((2, 2), np.uint32))
        code.correct(dict(enumerate(shares)))
        field.sub(mask, mask)
        field.weighted_sum([mask, read_only], np.array([1, 2], np.uint8))
    assert [len(kernel.signatures) for kernel in KERNELS] == [1] * len(KERNELS)


def plus_one(x):
    return x + 1


def test_machine_code_of_a_changed_room_is_not_used(monkeypatch, tmp_path):
    """Numba by itself looks only at the file of the kernel, and would compute with old parts."""

    def loaded_from_cache():
        compiled = compiler.kernel(plus_one)
        assert compiled(1) == 2
        return sum(compiled.stats.cache_hits.values()) == 1

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert not loaded_from_cache()
    assert loaded_from_cache()
    monkeypatch.setattr(compiler, "_ROOM", "changed")
    assert not loaded_from_cache()


def test_the_digest_of_a_room_changes_with_any_of_its_files(tmp_path):
    digests = set()
    for name, text in (("a.py", "1"), ("b.py", "1"), ("a.py", "2"), ("b.py", "3")):
        (tmp_path / name).write_text(text)
        digests.add(compiler.digest_of(tmp_path))
    assert len(digests) == 4


FORK = textwrap.dedent("""
    import os
    import numpy as np
    from basecagg.maths.prime_field import PrimeField

    field, ones = PrimeField(threads=2), np.ones(400_000, np.uint32)
    field.weighted_sum([ones, ones], [1, 1])
    child = os.fork()
    assert field.weighted_sum([ones, ones], [1, 1]).sum() == 800_000
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_threads_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


def test_wide_vectors_are_asked_for_where_the_cpu_has_them():
    assert compiler.use_wide_vectors("+avx2,+avx512f,-xop") == "+avx2,+avx512f,-xop,-prefer-256-bit"
    assert compiler.use_wide_vectors("+avx2,-avx512f") is None
