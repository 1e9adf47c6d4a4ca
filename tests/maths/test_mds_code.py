"""Any U shares give back the mask, bit for bit as the oracle has it; wrong shares are found, or refused."""

import json
import pickle
from itertools import combinations
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import basecagg.errors
import basecagg.maths.mds_code
from basecagg.errors import DataError, DecodingError
from basecagg.maths.mds_code import MaskCode

Q = 2**32 - 5
PRIMES = (5, 7, 97, 2**31 - 1, Q)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "mask_code.json").read_text(encoding="utf-8")
)
RNG = np.random.default_rng(2022)


def new_code(vector):
    keys = ("num_holders", "recovery_threshold", "max_colluders", "modulus")
    return MaskCode(**{key: vector[key] for key in keys})


def words(values, dtype="uint32"):
    return values if dtype is None else np.array(values, dtype)


def shares_of(vector, dtype="uint32"):
    return {int(holder): words(share, dtype) for holder, share in vector["shares"].items()}


def drawn(code, columns, rng=RNG):
    """A mask and noise for the code."""
    q = code.field.modulus
    mask = rng.integers(0, q, columns * code.submasks, dtype=np.uint32)
    return mask, rng.integers(0, q, (code.max_colluders, columns), dtype=np.uint32)


def some(shares, number, rng=RNG):
    """The shares of so many holders, in any order."""
    return {int(holder): shares[holder] for holder in rng.permutation(len(shares))[:number]}


def spoil(answers, holders, q, rng=RNG, columns=None):
    """Answers in which these holders err: in one column each, or in the columns given."""
    spoiled = {holder: answer.copy() for holder, answer in answers.items()}
    for holder in holders:
        size = answers[holder].size
        for column in columns or [rng.integers(size)]:
            error = int(rng.integers(1, q))
            spoiled[holder][column] = (int(answers[holder][column]) + error) % q
    return spoiled


# ---- against the vectors ----


@pytest.mark.parametrize("vector", VECTORS["points"], ids=lambda v: f"{v['num_holders']}")
def test_points_match_the_vectors(vector):
    points = MaskCode(vector["num_holders"], 2, 1, vector["modulus"]).points
    assert points.dtype == np.uint32
    assert points.tolist() == vector["points"]


@pytest.mark.parametrize("vector", VECTORS["code"], ids=lambda v: v["name"])
def test_encode_and_decode_match_the_vectors(vector):
    code = new_code(vector)
    shares = code.encode(words(vector["mask"]), words(vector["noise"]))
    assert shares.tolist() == vector["shares"]
    assert code.decode({h: shares[h] for h in vector["holders"]}).tolist() == vector["mask"]


@pytest.mark.parametrize("vector", VECTORS["corrected"], ids=lambda v: v["name"])
def test_wrong_shares_are_found_as_in_the_vectors(vector):
    code = new_code(vector)
    mask, wrong = code.correct(shares_of(vector), code.recovery_threshold)
    assert mask.tolist() == vector["mask"]
    assert wrong == tuple(vector["wrong"])


@pytest.mark.parametrize("vector", VECTORS["uncorrectable"], ids=lambda v: v["name"])
def test_too_many_wrong_shares_are_refused_as_in_the_vectors(vector):
    with pytest.raises(DecodingError, match="ask more holders"):
        new_code(vector).correct(shares_of(vector), vector["recovery_threshold"])


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda v: v["name"])
def test_bad_input_is_refused(vector):
    with pytest.raises(getattr(basecagg.errors, vector["error"])) as refusal:
        call(vector)
    assert vector["text"] in str(refusal.value)


def call(vector):
    code, dtype = new_code(vector), vector.get("dtype", "uint32")
    if vector["call"] == "encode":
        code.encode(words(vector["mask"], dtype), words(vector["noise"], dtype))
    elif vector["call"] != "new":
        getattr(code, vector["call"])(shares_of(vector, dtype))


@pytest.mark.parametrize("shares", [[np.zeros(1, np.uint32)] * 3, {"0": 1, "1": 1, "2": 1}, None])
def test_only_a_dict_from_holders_is_decoded(shares):
    with pytest.raises(DataError):
        MaskCode(4, 3, 1, 7).decode(shares)


# ---- exact ----


@st.composite
def codes(draw):
    q = draw(st.sampled_from(PRIMES))
    num_holders = draw(st.integers(2, min(q - 1, 45)))
    threshold = draw(st.integers(2, num_holders))
    return MaskCode(num_holders, threshold, draw(st.integers(1, threshold - 1)), q)


@given(codes(), st.integers(1, 3), st.integers(0, 2**32))
def test_any_u_shares_decode_as_the_oracle_says(code, columns, seed):
    rng, q = np.random.default_rng(seed), code.field.modulus
    mask, noise = drawn(code, columns, rng)
    where = oracle.points(code.num_holders, q)
    shares = code.encode(mask, noise)
    assert code.points.tolist() == where
    assert shares.tolist() == oracle.encode(mask.tolist(), noise.tolist(), where, code.submasks, q)
    answers = some(shares, code.recovery_threshold, rng)
    assert code.decode(answers).tolist() == mask.tolist()
    lists = {holder: answer.tolist() for holder, answer in answers.items()}
    assert mask.tolist() == oracle.decode(lists, where, code.recovery_threshold, code.submasks, q)


@pytest.mark.parametrize("q", [7, Q])
def test_every_set_of_u_holders_will_do(q):
    code = MaskCode(6, 3, 1, q)
    mask, noise = drawn(code, 2)
    shares = code.encode(mask, noise)
    for holders in combinations(range(6), 3):
        assert (code.decode({h: shares[h] for h in holders}) == mask).all()


@pytest.mark.parametrize(
    ("num_holders", "threshold", "colluders", "q"),
    [
        (299, 200, 150, Q),  # small cosets
        (300, 200, 150, Q),  # large cosets
        (1000, 200, 100, Q),
        (1000, 700, 500, Q),
        (1000, 130, 100, 2**31 - 1),  # dense, with a sum longer than is kept unreduced
        (96, 90, 1, 97),
    ],
)
def test_large_codes_equal_the_oracle(num_holders, threshold, colluders, q):
    code = MaskCode(num_holders, threshold, colluders, q)
    mask, noise = drawn(code, 1)
    shares = code.encode(mask, noise)
    where = oracle.points(num_holders, q)
    expected = oracle.encode(mask.tolist(), noise.tolist(), where, code.submasks, q)
    assert shares.tolist() == expected
    answers = some(shares, threshold)
    assert (code.decode(answers) == mask).all()
    if threshold <= 200:
        lists = {holder: answer.tolist() for holder, answer in answers.items()}
        assert oracle.decode(lists, where, threshold, code.submasks, q) == mask.tolist()


@pytest.mark.parametrize("q", [2**31 - 1, 2**31 + 11, Q])
@pytest.mark.parametrize("value", ["q − 1", "(q − 1)/2", "(q + 1)/2", "2³¹"])
@pytest.mark.parametrize(("num_holders", "threshold"), [(9, 8), (45, 40), (310, 245)])
def test_no_sum_outgrows_its_room_at_extreme_values(q, value, num_holders, threshold):
    extreme = {"q − 1": q - 1, "(q − 1)/2": q // 2, "(q + 1)/2": q // 2 + 1, "2³¹": 2**31 % q}
    code = MaskCode(num_holders, threshold, 3, q)
    mask = np.full(code.submasks * 2, extreme[value], np.uint32)
    noise = np.full((3, 2), extreme[value], np.uint32)
    shares = code.encode(mask, noise)
    geometric = [
        sum(pow(x, u, q) for u in range(threshold)) * extreme[value] % q
        for x in code.points.tolist()
    ]
    assert shares[:, 0].tolist() == shares[:, 1].tolist() == geometric
    assert (code.decode(some(shares, threshold)) == mask).all()


@pytest.mark.parametrize("size", range(1, 15))
def test_a_model_of_any_size_comes_back_once_padded(size):
    code = MaskCode(23, 11, 4)  # U − T = 7: sizes with every remainder
    columns = size // code.submasks + 1
    mask, noise = drawn(code, columns)
    mask[size:] = 0
    decoded = code.decode(some(code.encode(mask, noise), 11))
    assert (decoded[:size] == mask[:size]).all()
    assert not decoded[size:].any()


@pytest.mark.parametrize("columns", [1, 127, 128, 129, 159, 160, 161, 20_005])
@pytest.mark.parametrize("num_holders", [9, 23, 301])
def test_columns_are_independent_however_they_are_cut(columns, num_holders):
    code = MaskCode(num_holders, 7, 3, threads=3)
    mask, noise = drawn(code, columns)
    shares = code.encode(mask, noise)
    alone = MaskCode(num_holders, 7, 3, threads=1)
    for c in {0, columns // 2, columns - 1}:
        column = np.ascontiguousarray(mask.reshape(4, columns)[:, c])
        assert (shares[:, [c]] == alone.encode(column, np.ascontiguousarray(noise[:, [c]]))).all()
    assert (code.decode(some(shares, 7)) == mask).all()


def test_a_weighted_sum_of_shares_is_the_share_of_the_weighted_sum():
    code, weights = MaskCode(12, 5, 2), [3, 64, 1]
    masks, noises = zip(*(drawn(code, 4) for _ in weights), strict=True)
    shares = [code.encode(mask, noise) for mask, noise in zip(masks, noises, strict=True)]
    answers = {
        holder: code.field.weighted_sum([share[holder] for share in shares], weights)
        for holder in (1, 3, 4, 8, 11)
    }
    assert (code.decode(answers) == code.field.weighted_sum(masks, weights)).all()


# ---- the points ----


@pytest.mark.parametrize(
    ("num_holders", "q"), [(4, 5), (6, 7), (96, 97), (299, Q), (1000, Q), (5000, Q)]
)
def test_points_are_distinct_and_nonzero(num_holders, q):
    points = MaskCode(num_holders, 2, 1, q).points
    assert np.unique(points).size == num_holders
    assert points.min() > 0
    assert points.max() < q


# ---- memory and reuse ----


def test_shares_go_where_they_are_wanted():
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    out = np.empty((12, 6), np.uint32)
    assert code.encode(mask, noise, out=out) is out
    assert (out == code.encode(mask, noise)).all()
    with pytest.raises(DataError, match="out has shape"):
        code.encode(mask, noise, out=np.empty((12, 5), np.uint32))
    with pytest.raises(DataError, match="its own memory"):
        code.encode(out.reshape(-1)[:18], noise, out=out)


def test_shares_may_be_read_only_or_strided():
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    shares = np.asfortranarray(code.encode(mask[::1], np.asfortranarray(noise)))
    shares.flags.writeable = False
    assert (code.decode(some(shares, 5)) == mask).all()


def test_holders_may_be_integers_of_numpy():
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    shares = code.encode(mask, noise)
    assert (code.decode({np.int64(h): shares[h] for h in range(5)}) == mask).all()


def test_of_more_shares_decode_looks_at_those_of_the_smallest_holders():
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    answers = spoil(dict(enumerate(code.encode(mask, noise))), [5, 11], Q)
    assert (code.decode(answers) == mask).all()
    assert (code.decode(spoil(answers, [4], Q)) != mask).any()


def test_the_matrices_of_the_last_holder_sets_are_kept(monkeypatch):
    made = []
    original = basecagg.maths.mds_code.coefficient_rows

    def counted(*arguments):
        made.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(basecagg.maths.mds_code, "coefficient_rows", counted)
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    shares = code.encode(mask, noise)
    for _ in range(3):
        for holders in (range(5), range(5, 10)):
            code.decode({h: shares[h] for h in holders})
    assert len(made) == 2


def test_a_code_survives_pickling():
    code = MaskCode(12, 5, 2, 97, threads=3)
    again = pickle.loads(pickle.dumps(code))
    assert repr(again) == repr(code)
    assert again.field.threads == 3
    assert "num_holders=12, recovery_threshold=5, max_colluders=2, modulus=97" in repr(code)


# ---- wrong shares ----


@pytest.mark.parametrize(("num_holders", "threshold", "q"), [(12, 4, Q), (6, 2, 7), (30, 11, 97)])
def test_every_number_of_wrong_shares_up_to_the_bound_is_corrected(num_holders, threshold, q):
    code = MaskCode(num_holders, threshold, 1, q)
    mask, noise = drawn(code, 5)
    shares = code.encode(mask, noise)
    for number in range(threshold, num_holders + 1):
        answers = some(shares, number)
        for errors in range((number - threshold) // 2 + 1):
            wrong = tuple(sorted(RNG.permutation(sorted(answers))[:errors].tolist()))
            for columns in (None, [2], range(5)):
                found, named = code.correct(spoil(answers, wrong, q, columns=columns), threshold)
                assert named == wrong
                assert (found == mask).all()


@pytest.mark.parametrize("spare", range(1, 9))
def test_one_wrong_share_more_is_refused(spare):
    code = MaskCode(12, 4, 1)
    mask, noise = drawn(code, 5)
    answers = some(code.encode(mask, noise), 4 + spare)
    for errors in range(spare // 2 + 1, len(answers) + 1):
        wrong = RNG.permutation(sorted(answers))[:errors].tolist()
        with pytest.raises(DecodingError, match=f"more than {spare // 2} of {len(answers)}"):
            code.correct(spoil(answers, wrong, Q, columns=[0, 3]))


def test_a_large_code_corrects():
    code = MaskCode(1000, 700, 500)
    mask, noise = drawn(code, 3)
    wrong = tuple(sorted(RNG.permutation(1000)[:150].tolist()))
    answers = spoil(dict(enumerate(code.encode(mask, noise))), wrong, Q)
    found, named = code.correct(answers, agreeing=850)
    assert named == wrong
    assert (found == mask).all()


class ZeroStream:
    """Coins that hide every error from the random combinations."""

    def __init__(self, seed, modulus):
        pass

    def draw(self, n):
        return np.zeros(n, np.uint32)


def test_errors_that_the_coins_miss_are_found_by_comparing_all_columns(monkeypatch):
    monkeypatch.setattr(basecagg.maths.mds_code, "FieldStream", ZeroStream)
    code = MaskCode(12, 4, 1)
    mask, noise = drawn(code, 300)
    answers = dict(enumerate(code.encode(mask, noise)))
    for wrong, columns in (((0,), [299]), ((2, 5, 7, 11), None), ((8, 9, 10, 11), [0, 150])):
        found, named = code.correct(spoil(answers, wrong, Q, columns=columns))
        assert named == wrong
        assert (found == mask).all()
    with pytest.raises(DecodingError):
        code.correct(spoil(answers, range(5), Q))


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([5, 7]))
def test_in_a_tiny_field_the_right_mask_is_found_whatever_the_coins(seed, q):
    rng, code = np.random.default_rng(seed), MaskCode(4, 2, 1, q)
    mask, noise = drawn(code, 6, rng)
    wrong = int(rng.integers(4))
    answers = spoil(dict(enumerate(code.encode(mask, noise))), [wrong], q, rng)
    found, named = code.correct(answers)
    assert named == (wrong,)
    assert (found == mask).all()


def test_without_a_spare_share_correct_only_decodes():
    code = MaskCode(12, 5, 2)
    mask, noise = drawn(code, 6)
    found, named = code.correct(some(code.encode(mask, noise), 5), agreeing=5)
    assert named == ()
    assert (found == mask).all()


def test_what_no_decoder_can_tell():
    """n − U − e + 1 = 2 forgers who agree on another mask outvote a holder, as the docstring says."""
    code = MaskCode(5, 3, 1)
    mask, noise = drawn(code, 2)
    other, other_noise = drawn(code, 2)
    right, forged = code.encode(mask, noise), code.encode(other, other_noise)
    agreed = {0: right[0], 1: right[1], 2: right[2], 3: right[3], 4: right[4]}
    # A polynomial through two right shares and two forged ones; the fifth, right, looks wrong.
    basis = {0: right[0], 1: right[1], 3: forged[3]}
    rows = MaskCode(5, 3, 1)._open(basis, (0, 1, 3), (4,))
    agreed |= {3: forged[3], 4: rows[1][0]}
    found, named = code.correct(agreed, agreeing=3)
    assert named == (2,)
    assert (found == rows[0]).all()
    assert (found != mask).any()


@pytest.mark.parametrize("liars", [(0, 1), (1, 5), (6, 7)])
@pytest.mark.parametrize("number", range(4, 9))
def test_liars_write_a_mask_unless_u_and_t_shares_agree(liars, number):
    """T = 2 liars among U answers complete a polynomial of their own with the honest ones."""
    code = MaskCode(8, 4, 2)
    mask, noise = drawn(code, 2)
    shares = code.encode(mask, noise)
    honest = [holder for holder in range(8) if holder not in liars]
    forged = code.encode(*drawn(code, 2))
    # Through the shares of two honest holders and two forged ones: what the liars say lies on it.
    basis = {h: shares[h] for h in honest[:2]} | {h: forged[h] for h in liars}
    answers = basis | {h: shares[h] for h in honest[2 : number - 2]}
    if number == 4:
        wanted = code.decode(basis)
        found, named = code.correct(answers, agreeing=4)
        assert (found == wanted).all()
        assert (found != mask).any()
        assert named == ()
    if number < 8:
        with pytest.raises(DecodingError) as caught:
            code.correct(answers)
        assert caught.value.wrong <= 2
    else:
        found, named = code.correct(answers)
        assert (found == mask).all()
        assert named == liars
