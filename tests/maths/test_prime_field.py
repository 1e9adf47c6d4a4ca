"""F_q is exact for every prime below 2³², whatever the memory looks like, and refuses what is no element."""

import json
import runpy
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import basecagg.errors
from basecagg.errors import DataError
from basecagg.maths.prime_field import PrimeField

Q = 2**32 - 5
PRIMES = (2, 3, 5, 7, 97, 2**31 - 1, 2**31 + 11, 2**32 - 17, Q)
VECTORS = Path(__file__).parents[1] / "vectors"
GOOD = json.loads((VECTORS / "prime_field.json").read_text(encoding="utf-8"))


def words(values, dtype="uint32"):
    return values if dtype is None else np.array(values, dtype)


def random_words(q, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, q, shape, dtype=np.uint32)


# ---- against the oracle ----


def test_the_committed_vectors_are_the_oracles():
    generator = runpy.run_path(str(VECTORS / "generate.py"))
    for file, make in generator["ALL"].items():
        assert (VECTORS / file).read_text(encoding="utf-8") == generator["as_text"](make()), file


@pytest.mark.parametrize("vector", GOOD["sub"], ids=lambda v: str(v["modulus"]))
def test_differences_match_the_vectors(vector):
    found = PrimeField(vector["modulus"]).sub(words(vector["a"]), words(vector["b"]))
    assert found.tolist() == vector["difference"]


@pytest.mark.parametrize("vector", GOOD["weighted_sum"], ids=lambda v: v["name"])
def test_weighted_sums_match_the_vectors(vector):
    field = PrimeField(vector["modulus"])
    rows = [words(row) for row in vector["rows"]]
    assert field.weighted_sum(rows, vector["weights"]).tolist() == vector["sum"]
    assert field.weighted_sum(np.array(rows), vector["weights"]).tolist() == vector["sum"]


@pytest.mark.parametrize("vector", GOOD["bad"], ids=lambda v: v["name"])
def test_bad_input_is_refused(vector):
    arguments = {k: v for k, v in vector.items() if k not in ("name", "call", "error", "text")}
    with pytest.raises(getattr(basecagg.errors, vector["error"])) as refusal:
        call(vector["call"], **arguments)
    assert vector["text"] in str(refusal.value)


def call(operation, modulus, threads=None, dtype="uint32", **arguments):
    field = PrimeField(modulus, threads=threads)
    if operation == "weighted_sum":
        rows = [words(row, dtype) for row in arguments["rows"]]
        field.weighted_sum(rows, arguments["weights"])
    elif operation == "sub":
        field.sub(words(arguments["a"], dtype), words(arguments["b"], dtype))


@st.composite
def sums(draw):
    q = draw(st.sampled_from(PRIMES))
    elements = st.one_of(st.integers(0, q - 1), st.just(q - 1))
    number, size = draw(st.integers(1, 19)), draw(st.integers(0, 9))
    rows = draw(
        st.lists(st.lists(elements, min_size=size, max_size=size), min_size=number, max_size=number)
    )
    return q, rows, draw(st.lists(elements, min_size=number, max_size=number))


@given(sums())
def test_weighted_sums_equal_the_oracles(case):
    q, rows, weights = case
    total = PrimeField(q).weighted_sum([words(row) for row in rows], weights)
    assert total.tolist() == oracle.weighted_sum(rows, weights, q)


@pytest.mark.parametrize("q", PRIMES)
def test_a_long_sum_of_largest_elements_with_largest_weights_does_not_overflow(q):
    rows = np.full((70, 5000), q - 1, np.uint32)
    total = PrimeField(q).weighted_sum(rows, [q - 1] * 70)
    assert (total == 70 * (q - 1) ** 2 % q).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads):
    field, (a, b) = PrimeField(threads=threads), random_words(Q, 2, 600_003)
    wide = a.astype(np.uint64), b.astype(np.uint64)
    assert (field.sub(a, b) == (wide[0] + (Q - wide[1])) % Q).all()
    assert (field.weighted_sum([a, b], [3, 64]) == (3 * wide[0] + 64 * wide[1]) % Q).all()


# ---- memory ----


def test_rows_may_lie_anywhere():
    field, rows = PrimeField(), random_words(Q, 3, 8)
    expected = field.weighted_sum(rows, [1, 2, 3]).tolist()
    transposed = np.ascontiguousarray(rows.T).T
    unaligned = [np.frombuffer(b"x" + row.tobytes(), np.uint32, offset=1) for row in rows]
    every_second = np.repeat(rows, 2, axis=1)[:, ::2]
    for same in (
        transposed,
        unaligned,
        every_second,
        [np.frombuffer(row.tobytes(), np.uint32) for row in rows],
    ):
        assert field.weighted_sum(same, [1, 2, 3]).tolist() == expected


def test_arrays_of_any_shape_are_subtracted():
    a, b = random_words(Q, 2, 3, 4)
    assert PrimeField().sub(a, b).shape == (3, 4)


def test_results_go_where_they_are_wanted():
    field, (a, b) = PrimeField(), random_words(Q, 2, 50)
    expected, out = field.sub(a, b), np.empty(50, np.uint32)
    assert field.sub(a, b, out=out) is out
    assert (out == expected).all()
    assert field.sub(a, b, out=a) is a  # in place
    assert (a == expected).all()
    total = field.weighted_sum([a, b], [1, 1])
    assert field.weighted_sum([a, b], [1, 1], out=out) is out
    assert (out == total).all()


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.empty(5, np.uint32), "shape"),
        (np.empty(4, np.int32), "int32"),
        (np.empty(8, np.uint32)[::2], "contiguous"),
        (read_only(np.empty(4, np.uint32)), "writeable"),
    ],
)
def test_an_unfit_destination_is_refused(out, text):
    rows = random_words(Q, 2, 4)
    with pytest.raises(DataError, match=text):
        PrimeField().weighted_sum(rows, [1, 1], out=out)
    with pytest.raises(DataError, match=text):
        PrimeField().sub(*rows, out=out)


def test_a_sum_is_not_written_over_its_rows():
    rows = random_words(Q, 2, 4)
    with pytest.raises(DataError, match="its own memory"):
        PrimeField().weighted_sum(rows, [1, 1], out=rows[1])


# ---- check ----


def test_elements_pass_the_check_and_others_do_not():
    field = PrimeField(7)
    field.check(words([0, 6]), "x")
    field.check(words([]), "x")
    for bad, text in (
        (words([0, 7]), "x holds a value"),
        (words([0], "int64"), "x is int64"),
        ([0], "list"),
    ):
        with pytest.raises(DataError, match=text):
            field.check(bad, "x")


def test_a_field_says_which_it_is():
    assert repr(PrimeField(7)) == "PrimeField(7)"
