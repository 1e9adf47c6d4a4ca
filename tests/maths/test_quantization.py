"""Rounding is what the oracle says, unbiased, bounded in variance, and refuses what it cannot keep."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle_rounding import phi, rounded
from vectors_rounding import VECTORS

import basecagg.errors
from basecagg.errors import DataError, ParameterError
from basecagg.maths import quantization
from basecagg.maths.quantization import (
    clip_update,
    dequantize,
    quantize,
    quantize_and_mask,
    signed,
    squared_norm,
)
from basecagg.maths.randomness import FieldStream, WordStream

Q = 2**32 - 5
DRAWS = 10**7
GOOD = json.loads((VECTORS / "quantization.json").read_text(encoding="utf-8"))


def arguments(vector):
    """x, levels, modulus and random_words of a vector."""
    x = np.array([float.fromhex(number) for number in vector["x"]]).astype(vector["dtype"])
    return x, vector["levels"], vector["modulus"], np.array(vector["words"], np.uint32)


def words(n, label=0):
    return WordStream(bytes([label] * 32)).draw(n)


# ---- against the oracle ----


@pytest.mark.parametrize("vector", GOOD["quantized"], ids=lambda v: v["name"])
def test_quantized_and_masked_match_the_vectors(vector):
    call = arguments(vector)
    mask = np.array(vector["mask"], np.uint32)
    assert quantize(*call).dtype == np.uint32
    assert quantize(*call).tolist() == vector["quantized"]
    assert quantize(*call, wrap=True).tolist() == vector["quantized"]
    assert quantize_and_mask(*call, mask).tolist() == vector["masked"]


@pytest.mark.parametrize("vector", GOOD["wrapped"], ids=lambda v: v["name"])
def test_wrapped_match_the_vectors(vector):
    assert quantize(*arguments(vector), wrap=True).tolist() == vector["quantized"]
    with pytest.raises(DataError, match=r"\(q − 3\)/2"):
        quantize(*arguments(vector))


@pytest.mark.parametrize("vector", GOOD["signed"], ids=lambda v: f"q={v['modulus']}")
def test_signed_matches_the_vectors(vector):
    values = np.array(vector["values"], np.uint32)
    assert signed(values, vector["modulus"]).dtype == np.int64
    assert signed(values, vector["modulus"]).tolist() == vector["signed"]
    quarters = [integer / 4 for integer in vector["signed"]]
    assert dequantize(values, 4, vector["modulus"]).tolist() == quarters


@pytest.mark.parametrize("vector", GOOD["bad"], ids=lambda v: v["name"])
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # NaN as an int64
def test_bad_calls_are_refused(vector):
    call = arguments(vector["call"])
    mask = np.array(vector["call"]["mask"], np.uint32)
    with pytest.raises(getattr(basecagg.errors, vector["error"])) as caught:
        quantize_and_mask(*call, mask)
    assert vector["says"] in str(caught.value)


@settings(derandomize=True, deadline=None)
@given(
    x=st.floats(-1, 1),
    levels=st.integers(1, 2**30),
    modulus=st.sampled_from([2**31 - 1, 2**31 + 11, Q]),
    word=st.integers(0, 2**32 - 1),
    mask=st.integers(0, 2**31 - 2),
)
@example(x=-5e-324, levels=1, modulus=Q, word=2**32 - 1, mask=0)
@example(x=5e-324, levels=1, modulus=Q, word=0, mask=0)
def test_any_number_is_rounded_as_the_oracle_does(x, levels, modulus, word, mask):
    scale = (modulus - 3) // 2 // 2**30  # so that c·x comes near both ends of the range
    call = np.array([x * scale]), levels, modulus, np.array([word], np.uint32)
    expected = phi(rounded(x * scale, levels, word), modulus)
    assert quantize(*call).tolist() == [expected]
    assert quantize(*call, wrap=True).tolist() == [expected]
    masked = quantize_and_mask(*call, np.array([mask], np.uint32))
    assert masked.tolist() == [(expected + mask) % modulus]


@settings(derandomize=True, deadline=None)
@given(x=st.floats(allow_nan=False, allow_infinity=False, width=32), q=st.sampled_from([7, 251, Q]))
def test_any_number_wraps_as_the_oracle_does(x, q):
    call = np.array([x], np.float32), 2**16, q, np.array([12345], np.uint32)
    assert quantize(*call, wrap=True).tolist() == [phi(rounded(x, 2**16, 12345), q)]


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17, 33, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_length_is_rounded_to_its_end(n, dtype):
    """The compiled loop handles blocks and a remainder: no element may be left out."""
    x = np.linspace(-3, 3, n).astype(dtype)
    expected = [phi(rounded(v, 1000, w), Q) for v, w in zip(x, words(n).tolist(), strict=True)]
    assert quantize(x, 1000, Q, words(n)).tolist() == expected


@pytest.mark.parametrize("position", [0, 1, 16, 499, 998, 999])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e6, -1e6])
def test_a_bad_element_is_found_wherever_it_is(position, bad):
    x = np.zeros(1000, np.float32)
    x[position] = bad
    with pytest.raises(DataError, match=f"at 1 of 1000 indices, first at {position}:"):
        quantize(x, 2**16, Q, words(1000))


def test_a_refusal_does_not_tell_the_value():
    with pytest.raises(DataError) as caught:
        quantize(np.array([0.0, 123456.789]), 2**16, Q, words(2))
    assert "123456" not in str(caught.value)


# ---- there and back ----


@pytest.mark.parametrize("q", [2**31 - 1, Q])
def test_unmasked_and_dequantized_is_within_one_level(q):
    x = np.linspace(-7, 7, 10_001)
    mask = FieldStream(bytes(32), q).draw(x.size)
    masked = quantize_and_mask(x, 2**16, q, words(x.size), mask)
    opened = ((masked.astype(np.int64) - mask) % q).astype(np.uint32)
    assert np.abs(dequantize(opened, 2**16, q) - x).max() < 2**-16


def test_out_is_filled_and_returned():
    x, mask, out = np.ones(5), np.full(5, 3, np.uint32), np.empty(5, np.uint32)
    assert quantize_and_mask(x, 2, 7, words(5), mask, out=out) is out
    assert out.tolist() == [5] * 5


def test_arrays_need_not_be_contiguous():
    x, coins, mask = np.linspace(-1, 1, 100), words(100), words(100, 1) >> 1
    strided = quantize_and_mask(x[::3], 2**16, Q, coins[::3], mask[::3])
    copies = x[::3].copy(), 2**16, Q, coins[::3].copy(), mask[::3].copy()
    assert np.array_equal(strided, quantize_and_mask(*copies))


def test_the_mask_may_be_overwritten_by_the_upload():
    x, mask = np.linspace(-1, 1, 1000), words(1000, 1) >> 1
    expected = quantize_and_mask(x, 2**16, Q, words(1000), mask)
    assert np.array_equal(quantize_and_mask(x, 2**16, Q, words(1000), mask, out=mask), expected)


def test_the_inputs_are_not_changed():
    x, coins, mask = np.linspace(-1, 1, 100), words(100), words(100, 1) >> 1
    before = x.copy(), coins.copy(), mask.copy()
    quantize_and_mask(x, 2**16, Q, coins, mask)
    clip_update(x, 0.5)
    assert all(map(np.array_equal, before, (x, coins, mask)))


@pytest.mark.parametrize(
    "bad",
    [
        [1.0],
        np.ones((2, 2)),
        np.ones(2, np.int64),
        np.ones(2, ">f8"),
        np.float64(1),
    ],
    ids=["list", "matrix", "integers", "foreign byte order", "scalar"],
)
def test_x_is_a_vector_of_floats(bad):
    for call in (
        lambda: quantize(bad, 1, Q, words(2)),
        lambda: quantize(bad, 1, Q, words(2), wrap=True),
        lambda: clip_update(bad, 1.0),
    ):
        with pytest.raises(DataError, match=r"x is .*astype\(np.float32\)|x must be a numpy array"):
            call()


@pytest.mark.parametrize("name", ["random_words", "mask", "out"])
@pytest.mark.parametrize("bad", [np.zeros(3, np.int64), np.zeros(4, np.uint32), [0, 0, 0]])
def test_words_masks_and_out_fit_x(name, bad):
    given_arrays = {key: np.zeros(3, np.uint32) for key in ("random_words", "mask", "out")}
    given_arrays[name] = bad
    with pytest.raises(DataError, match=f"^{name} "):
        quantize_and_mask(x=np.ones(3), levels=1, modulus=Q, **given_arrays)


def test_values_to_bring_back_are_elements():
    with pytest.raises(DataError, match="below q = 7"):
        signed(np.array([7], np.uint32), 7)
    with pytest.raises(DataError, match="int64"):
        dequantize(np.array([1]), 1, 7)
    with pytest.raises(ParameterError, match="levels c = 0"):
        dequantize(np.array([1], np.uint32), 0, 7)
    with pytest.raises(ParameterError, match="prime"):
        signed(np.array([1], np.uint32), 9)


def test_wrap_refuses_what_is_no_number_but_nothing_else():
    for bad in (math.nan, math.inf, 1e308):
        with pytest.raises(DataError, match="NaN or infinite"):
            quantize(np.array([bad]), 2**16, Q, words(1), wrap=True)


# ---- clipping ----


def test_clipping_counts_what_it_changes():
    x = np.array([-3.0, -2.0, -1.9, 0.0, 2.0, 2.1])
    clipped, count = clip_update(x, 2.0)
    assert clipped.tolist() == [-2.0, -2.0, -1.9, 0.0, 2.0, 2.0]
    assert count == 2


@pytest.mark.parametrize("clip", [51.2, 0.1, 1e-40, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_left_beyond_the_clip_even_by_rounding(clip, dtype):
    largest = np.finfo(dtype).max
    clipped, _ = clip_update(np.array([largest, -largest], dtype), clip)
    assert clipped.dtype == dtype
    assert all(abs(float(number)) <= clip for number in clipped)


def test_what_is_clipped_to_the_rule_cannot_be_refused():
    """K·c_g·(c_l·B + 1) ≤ (q − 3)/2 with K·c_g = 2, the smallest buffer, met with equality."""
    clip = ((Q - 3) // 4 - 1) / 2**16
    clipped, _ = clip_update(np.array([1e9, -1e9], np.float32), clip)
    largest = np.abs(signed(quantize(clipped, 2**16, Q, words(2)), Q)).max()
    assert 2 * largest <= (Q - 3) // 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_clipping_does_not_hide_a_diverged_update(bad):
    with pytest.raises(DataError, match="training diverged"):
        clip_update(np.array([0.0, bad]), 1.0)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_is_positive_and_finite(clip):
    with pytest.raises(ParameterError, match="clip B"):
        clip_update(np.ones(1), clip)


# ---- statistics ----


def bias_in_sigmas(x, levels, coins):
    """How many standard deviations the mean of Q_c(x) over all coins lies from x."""
    sample = signed(quantize(np.full(coins.size, x), levels, Q, coins), Q)
    fraction = x * levels - math.floor(x * levels)
    sigma = math.sqrt(fraction * (1 - fraction) / coins.size)
    return abs(sample.mean() - x * levels) / sigma


def mean_square_error(x, levels, coins):
    """The mean of (Q_c(x) − x)² over all coins."""
    sample = dequantize(quantize(np.full(coins.size, x), levels, Q, coins), levels, Q)
    return np.mean((sample - x) ** 2)


CASES = [(0.3, 1), (-0.3, 1), (0.5, 1), (1 / 3, 2**16), (-2.7182, 1000), (1e-3, 1), (-1e-3, 1)]


@pytest.mark.parametrize(("x", "levels"), CASES)
def test_rounding_is_unbiased(x, levels):
    assert bias_in_sigmas(x, levels, words(DRAWS)) < 4


@pytest.mark.parametrize(("x", "levels"), CASES)
def test_variance_is_at_most_a_quarter_of_a_squared_level(x, levels):
    """Lemma (q_prop): E(Q_c(x) − x)² ≤ 1/(4c²)."""
    assert mean_square_error(x, levels, words(DRAWS, 1)) <= 1 / (4 * levels**2)


def test_rounding_of_many_numbers_is_unbiased_and_bounded():
    levels = 2**16
    x = np.random.default_rng(0).uniform(-4, 4, DRAWS)
    error = dequantize(quantize(x, levels, Q, words(DRAWS, 2)), levels, Q) - x
    assert abs(error.mean()) < 4 * math.sqrt(1 / 6 / DRAWS) / levels
    assert (error**2).mean() <= 1 / (4 * levels**2)
    assert abs(np.corrcoef(error, x)[0, 1]) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("word", [2**32 - 1, 0, 2**31], ids=["floor", "ceiling", "nearest"])
def test_control_a_rounding_without_coins_is_noticed(word):
    assert bias_in_sigmas(0.3, 1, np.full(DRAWS, word, np.uint32)) > 1000


def test_control_a_variance_beyond_the_bound_is_noticed():
    always_down = np.full(DRAWS, 2**32 - 1, np.uint32)
    assert mean_square_error(0.7, 1, always_down) > 1 / 4


def test_control_coins_of_too_few_bits_are_noticed():
    """8 bits cannot make a probability of 0.001."""
    assert bias_in_sigmas(1e-3, 1, words(DRAWS) & np.uint32(0xFF000000)) > 100


def test_segments_change_nothing(monkeypatch):
    values = np.random.default_rng(5).integers(0, Q, 100).astype(np.uint32)
    whole = dequantize(values, 7, Q), quantization.magnitude(values, Q)
    monkeypatch.setattr(quantization, "_SEGMENT", 9)
    np.testing.assert_array_equal(dequantize(values, 7, Q), whole[0])
    np.testing.assert_array_equal(whole[0], signed(values, Q) / 7)
    assert quantization.magnitude(values, Q) == whole[1] == np.abs(signed(values, Q)).max()


@pytest.mark.parametrize("size", [1, 5, 3 * 10**5])
def test_the_squared_norm_is_exact(size):
    values = FieldStream(bytes(32), Q).draw(size)
    values[0] = (Q - 1) // 2 - 1
    exact = sum(int(k) ** 2 for k in signed(values, Q))
    assert squared_norm(values, Q) == exact
