"""Packed words are what Python's integers say, for every size; what was packed comes back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors_rounding import VECTORS

from basecagg.errors import DataError
from basecagg.maths.packing import pack, unpack
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
