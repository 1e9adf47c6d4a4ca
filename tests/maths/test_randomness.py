"""Seeds hide, streams are what the oracle says however they are cut, and elements are uniform."""

import copy
import hashlib
import json
import logging
import pickle
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from vectors_rounding import ALL, VECTORS, as_text

import basecagg.errors
from basecagg.errors import DataError, LocalProtocolError, ParameterError
from basecagg.maths.randomness import FieldStream, Seed, WordStream, derive_seed, new_seed

Q = 2**32 - 5
DRAWS = 10**7
GOOD = json.loads((VECTORS / "randomness.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", ALL)
def test_the_committed_vectors_are_the_oracles(file):
    assert (VECTORS / file).read_text(encoding="utf-8") == as_text(ALL[file]())


# ---- seeds ----


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format, lambda seed: f"{[seed]}"])
def test_a_seed_does_not_print(show):
    seed = new_seed()
    shown = show(seed)
    assert "Seed(…)" in shown
    assert bytes(seed).hex() not in shown
    assert repr(bytes(seed)) not in shown


def test_a_seed_has_no_attributes_to_log(caplog):
    seed = new_seed()
    with caplog.at_level(logging.INFO):
        logging.getLogger("any").info("%s %r", seed, seed)
    assert caplog.messages == ["Seed(…) Seed(…)"]
    with pytest.raises(TypeError):
        vars(seed)


@pytest.mark.parametrize("leak", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_seed_is_not_pickled_or_copied(leak):
    with pytest.raises(LocalProtocolError, match=r"bytes\(seed\)"):
        leak(new_seed())


@pytest.mark.parametrize("stream", [WordStream(bytes(32)), FieldStream(bytes(32), 7)])
def test_a_stream_neither_prints_nor_pickles_its_seed(stream):
    assert repr(stream) == f"{type(stream).__name__}(…)"
    with pytest.raises(TypeError):
        pickle.dumps(stream)


def test_seeds_compare_by_value_and_do_not_hash():
    assert Seed(bytes(32)) == Seed(bytes(32))
    assert Seed(bytes(32)) != Seed(bytes(31) + b"\x01")
    assert Seed(bytes(32)) != bytes(32)
    with pytest.raises(TypeError):
        {Seed(bytes(32))}


def test_new_seeds_differ():
    assert len({bytes(new_seed()) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), bytearray(32), "0" * 32, None])
def test_a_seed_is_32_bytes(secret):
    with pytest.raises(DataError, match="a seed is 32 bytes, not") as caught:
        Seed(secret)
    assert "new_seed()" in str(caught.value)


@pytest.mark.parametrize("vector", GOOD["derived"], ids=lambda v: v["purpose"])
def test_children_match_the_vectors(vector):
    seed = bytes.fromhex(vector["seed"])
    child = derive_seed(Seed(seed), vector["purpose"])
    assert bytes(child).hex() == vector["child"]
    assert child == derive_seed(seed, vector["purpose"])


def test_children_and_grandchildren_all_differ():
    purposes = ["mask", "noise", "mask/noise", "masknoise", "rounding"]
    root = Seed(bytes(32))
    family = [root, *(derive_seed(root, p) for p in purposes)]
    family += [derive_seed(derive_seed(root, p), r) for p in purposes for r in purposes]
    assert len({bytes(seed) for seed in family}) == len(family)


def test_a_purpose_has_a_name():
    with pytest.raises(ParameterError, match="purpose is empty"):
        derive_seed(new_seed(), "")


# ---- streams ----


@pytest.mark.parametrize("vector", GOOD["words"])
def test_words_match_the_vectors(vector):
    words = WordStream(bytes.fromhex(vector["seed"])).draw(len(vector["words"]))
    assert words.dtype == np.uint32
    assert words.tolist() == vector["words"]


@pytest.mark.parametrize("vector", GOOD["elements"], ids=lambda v: f"q={v['modulus']}")
def test_elements_match_the_vectors(vector):
    stream = FieldStream(Seed(bytes.fromhex(vector["seed"])), vector["modulus"])
    elements = stream.draw(len(vector["elements"]))
    assert elements.dtype == np.uint32
    assert elements.tolist() == vector["elements"]


@pytest.mark.parametrize("vector", GOOD["long"])
def test_a_long_draw_matches_the_vectors(vector):
    stream = FieldStream(bytes.fromhex(vector["seed"]), vector["modulus"])
    elements = stream.draw(vector["count"])
    assert hashlib.sha256(elements.astype("<u4").tobytes()).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("vector", GOOD["bad"], ids=lambda v: v["name"])
def test_bad_streams_are_refused(vector):
    call = vector["call"]
    with pytest.raises(getattr(basecagg.errors, vector["error"])) as caught:
        FieldStream(bytes.fromhex(call["seed"]), call["modulus"])
    assert vector["says"] in str(caught.value)


def test_nist_vector_of_aes_256_ctr():
    """The first block of a zero key is the known answer of AES-256 for a zero block (CAVP)."""
    assert WordStream(bytes(32)).draw(4).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("modulus", [2, 5, 7, 257, 2**31 - 1, 2**31 + 11, Q])
@settings(derandomize=True, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_how_a_stream_is_cut_changes_nothing(modulus, cuts):
    stream = FieldStream(bytes(32), modulus)
    pieces = chain.from_iterable(stream.draw(n).tolist() for n in cuts)
    assert [*pieces] == FieldStream(bytes(32), modulus).draw(sum(cuts)).tolist()


@pytest.mark.parametrize("modulus", [7, Q])
def test_cuts_across_chunks_change_nothing(modulus):
    cuts = [1, 2**17 - 1, 2**17, 3, 2**17 + 1, 0, 100_000]
    stream = FieldStream(bytes(32), modulus)
    pieces = np.concatenate([stream.draw(n) for n in cuts])
    assert np.array_equal(pieces, FieldStream(bytes(32), modulus).draw(sum(cuts)))


def test_out_is_filled_and_returned():
    out = np.full(1000, 2**32 - 1, np.uint32)
    assert FieldStream(bytes(32), 251).draw(1000, out) is out
    assert np.array_equal(out, FieldStream(bytes(32), 251).draw(1000))


@pytest.mark.parametrize(
    "out",
    [
        np.empty(9, np.uint32),
        np.empty((2, 5), np.uint32),
        np.empty(10, np.int32),
        np.empty(10, np.uint64),
        np.empty(20, np.uint32)[::2],
    ],
    ids=["length", "shape", "signed", "width", "strided"],
)
def test_a_wrong_out_is_refused_and_takes_nothing_from_the_stream(out):
    stream = FieldStream(bytes(32), Q)
    with pytest.raises(DataError, match="out "):
        stream.draw(10, out)
    assert np.array_equal(stream.draw(10), FieldStream(bytes(32), Q).draw(10))


def test_a_negative_count_is_refused():
    with pytest.raises(DataError, match="n = -1"):
        WordStream(bytes(32)).draw(-1)


# ---- statistics ----


def uniformity(elements, q, cells):
    """χ² p-value of the elements against uniform on 0…q−1, in `cells` ranges of nearly equal size."""
    observed = np.bincount(elements.astype(np.int64) * cells // q, minlength=cells)
    edges = np.array([-(-cell * q // cells) for cell in range(cells + 1)])
    return stats.chisquare(observed, np.diff(edges) * (elements.size / q)).pvalue


def pair_uniformity(elements, q):
    """χ² p-value of neighbouring elements, taken as one element of q²."""
    pairs = elements[::2].astype(np.int64) * q + elements[1::2]
    return uniformity(pairs, q * q, q * q)


def draws(q, label="uniformity"):
    return FieldStream(derive_seed(bytes(32), label), q).draw(DRAWS)


@pytest.mark.parametrize("q", [5, 7, 251, 2**15 - 19, 2**31 - 1, 2**31 + 11, Q])
def test_elements_are_uniform(q):
    assert 1e-3 < uniformity(draws(q), q, min(q, 1021)) < 1 - 1e-3


@pytest.mark.parametrize("q", [5, 7, 251])
def test_neighbours_are_independent(q):
    assert 1e-3 < pair_uniformity(draws(q), q) < 1 - 1e-3


def test_low_bits_of_the_default_field_are_uniform():
    assert 1e-3 < uniformity(draws(Q) & 255, 256, 256) < 1 - 1e-3


@pytest.mark.parametrize("q", [5, 7, 251])
def test_control_reduction_instead_of_rejection_is_noticed(q):
    words = WordStream(bytes(32)).draw(DRAWS)
    bits = 2 ** (q - 1).bit_length()
    assert uniformity(words % bits % q, q, q) < 1e-12


def test_control_31_bit_words_are_noticed():
    assert uniformity(WordStream(bytes(32)).draw(DRAWS) >> 1, Q, 1021) < 1e-12


def test_control_repeated_elements_are_noticed():
    assert pair_uniformity(np.repeat(draws(7), 2), 7) < 1e-12
