"""Packed words are what Python's integers say, for every size; what was packed comes back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors_rounding import VECTORS

from basecagg.errors import DataError
from basecagg.maths.kernels import packed_sums
from basecagg.maths.packing import pack, sum_packed, unpack
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import word_bytes

NARROW, WIDE = 16760833, 2**32 - 12287
FIELDS = (NARROW, 2**24 - 3, WIDE, 2**32 - 5)
GOOD = json.loads((VECTORS / "key_masks.json").read_text(encoding="utf-8"))


def by_hand(words, q):
    return b"".join(int(word).to_bytes(word_bytes(q), "little") for word in words)


@pytest.mark.parametrize("vector", GOOD["packed"], ids=lambda v: str(v["q"]))
def test_packed_words_match_the_vectors(vector):
    packed = pack(np.array(vector["words"], np.uint32), vector["q"])
    assert packed.tobytes().hex() == vector["bytes"]
    assert unpack(packed, vector["q"]).tolist() == vector["words"]


def test_a_word_takes_three_bytes_if_q_is_below_two_to_the_24():
    assert [word_bytes(q) for q in (7, 2**24 - 3, 2**24 + 43, 2**32 - 5)] == [3, 3, 4, 4]


@pytest.mark.parametrize("q", FIELDS)
@given(st.lists(st.integers(0, 2**24 - 4), max_size=50))
def test_any_words_come_back(q, values):
    words = np.array(values, np.uint32) % np.uint32(q)
    packed = pack(words, q)
    assert packed.tobytes() == by_hand(words, q)
    again = unpack(packed.tobytes(), q)
    assert again.dtype == np.uint32
    assert np.array_equal(again, words)


@pytest.mark.parametrize("q", FIELDS)
@pytest.mark.parametrize("size", [*range(20), 1023, 100_003])
def test_the_largest_words_come_back_at_every_size(q, size):
    words = np.full(size, q - 1, np.uint32)
    words[::3] = np.random.default_rng(size).integers(0, q, words[::3].size)
    packed = pack(words, q)
    assert packed.tobytes() == by_hand(words, q)
    assert np.array_equal(unpack(packed, q), words)


@pytest.mark.parametrize("q", FIELDS)
@pytest.mark.parametrize("offset", range(1, 5))
def test_bytes_may_lie_anywhere(q, offset):
    words = np.random.default_rng(offset).integers(0, q, 1001).astype(np.uint32)
    letter = bytes(offset) + pack(words, q).tobytes()
    assert np.array_equal(unpack(memoryview(letter)[offset:], q), words)


def test_four_bytes_a_word_are_not_copied():
    words = np.arange(10, dtype=np.uint32)
    assert np.shares_memory(pack(words, WIDE), words)
    assert np.shares_memory(unpack(pack(words, WIDE), WIDE), words)


@pytest.mark.parametrize("q", FIELDS)
def test_what_is_not_below_q_is_left_to_be_seen(q):
    """Unpacking reduces nothing: a reader that is given more than q − 1 finds it."""
    data = b"\xff" * (5 * word_bytes(q))
    assert unpack(data, q).tolist() == [2 ** (8 * word_bytes(q)) - 1] * 5


@pytest.mark.parametrize("at", [0, 4, 6])
@pytest.mark.parametrize("value", [NARROW, 2**24, 2**32 - 1])
def test_a_word_that_three_bytes_do_not_hold_is_refused(at, value):
    words = np.zeros(7, np.uint32)
    words[at] = value
    with pytest.raises(DataError, match="not below q"):
        pack(words, NARROW)


@pytest.mark.parametrize(("q", "size"), [(NARROW, 1), (NARROW, 14), (WIDE, 3), (WIDE, 6)])
def test_a_part_of_a_word_is_refused(q, size):
    with pytest.raises(DataError, match=f"{size} bytes"):
        unpack(bytes(size), q)


# --- sums of packed words ---------------------------------------------------------------------------


def summed(rows, weights, q):
    """Σ w·row mod q by Python's integers."""
    return [
        sum(w * int(x) for w, x in zip(weights, column, strict=True)) % q
        for column in zip(*rows, strict=True)
    ]


@pytest.mark.parametrize("q", [2, 13, *FIELDS])
@pytest.mark.parametrize("size", [*range(14), 4099])
@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_packed_rows_add_up_to_the_sum_of_their_words(q, size, number):
    rng = np.random.default_rng(size)
    rows = [rng.integers(0, q, size).astype(np.uint32) for _ in range(number)]
    for weights in ([1] * number, [w % q for w in range(number)]):
        total = sum_packed(PrimeField(q), [pack(row, q).tobytes() for row in rows], weights)
        assert total.tolist() == summed(rows, weights, q)


@pytest.mark.parametrize("number", [1, 3, 255, 256, 257])
@pytest.mark.parametrize("value", [0, 0x0000FF, 0x00FF00, 0xFF0000, NARROW - 1])
def test_the_largest_words_of_the_most_rows_are_added_exactly(number, value):
    """256·255 is the most that 16 bits hold; one row more is added another way."""
    words = np.full(9, min(value, NARROW - 1), np.uint32)
    total = sum_packed(PrimeField(NARROW), [pack(words, NARROW).tobytes()] * number, [1] * number)
    assert total.tolist() == [int(words[0]) * number % NARROW] * 9


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [10**6, 10**6 + 5, 3072 * 4 // 3 + 1])
def test_threads_share_a_long_sum(threads, size):
    rng = np.random.default_rng(threads)
    rows = [rng.integers(0, NARROW, size).astype(np.uint32) for _ in range(3)]
    packed = [pack(row, NARROW).tobytes() for row in rows]
    total = sum_packed(PrimeField(NARROW, threads=threads), packed, [1, 1, 1])
    assert np.array_equal(total, np.sum(rows, axis=0, dtype=np.uint64) % NARROW)


def test_packed_rows_may_lie_anywhere():
    words = np.arange(1001, dtype=np.uint32)
    letter = b"." + pack(words, NARROW).tobytes()
    total = sum_packed(PrimeField(NARROW), [memoryview(letter)[1:]] * 2, [1, 1])
    assert np.array_equal(total, 2 * words)


@pytest.mark.parametrize("rows", [[bytes(12), bytes(15)], [bytes(13), bytes(13)]])
def test_rows_of_different_lengths_and_parts_of_words_are_refused(rows):
    with pytest.raises(DataError, match=r"different lengths|whole"):
        sum_packed(PrimeField(NARROW), rows, [1, 1])


def test_four_bytes_a_word_are_still_looked_at():
    with pytest.raises(DataError, match="not below q"):
        sum_packed(PrimeField(WIDE), [b"\xff" * 8], [1])


def test_no_sum_of_bytes_grows_into_the_next():
    assert packed_sums.MOST_ROWS * 255 < 2**16
