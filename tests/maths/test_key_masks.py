"""Masks that grow from keys are the oracle's, chunk by chunk, and add up as their keys do, with errors."""

import hashlib
import json
from fractions import Fraction

import numpy as np
import oracle_keys as oracle
import pytest
from oracle_keys import CHUNK, GROUP, NARROW, WIDE, N
from oracle_rounding import field_elements
from scipy import stats
from vectors_keys import EPOCH, FILE, FRESH, SEED, key_vectors
from vectors_rounding import VECTORS, as_text

from basecagg.errors import DataError, LocalProtocolError, ParameterError
from basecagg.maths import approved_rings
from basecagg.maths.approved_rings import MOST_WORDS, approved_ring
from basecagg.maths.key_masks import key_of, mask_of_sum, mask_of_upload, unmask_with
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.packing import pack
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import dequantize, magnitude, quantize_and_mask, signed, unmask
from basecagg.maths.randomness import FieldStream, Seed, WordStream, derive_seed, new_seed
from basecagg.maths.ring import RingProduct
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.masking import shares_of

FIELDS = (NARROW, WIDE)
GOOD = json.loads(FILE.read_text(encoding="utf-8"))


def agrees(words, vector):
    q = vector["q"]
    assert words[:4].tolist() == vector["first"]
    assert words[-4:].tolist() == vector["last"]
    return hashlib.sha256(pack(words, q)).hexdigest() == vector["sha256"]


# --- against the oracle -------------------------------------------------------------------------


def test_the_committed_vectors_are_the_oracles():
    assert FILE.read_text(encoding="utf-8") == as_text(key_vectors())


@pytest.mark.parametrize("vector", GOOD["key"], ids=lambda v: str(v["q"]))
def test_keys_match_the_vectors(vector):
    assert agrees(key_of(bytes.fromhex(vector["seed"]), vector["q"]), vector)


@pytest.mark.parametrize("vector", GOOD["transform"], ids=lambda v: f"{v['q']} {v['values']}")
def test_transforms_match_the_vectors(vector):
    q, said = vector["q"], vector["values"]
    if said.startswith("elements"):
        values = [word for word, _ in zip(field_elements(SEED, q), range(N), strict=False)]
    elif said.startswith("one at place"):
        place = int(said.split()[3].rstrip(","))
        values = [int(j == place) for j in range(N)]
    else:
        values = {"o": [1] * N, "q": [q - 1] * N, "j": [*range(N)]}[said[0]]
    public = np.zeros(GROUP, np.uint32)
    public[9::16] = values
    assert agrees(public[9::16], vector["input"] | {"q": q})
    RingProduct(np.ones(N, np.uint32), q)(public, public)
    assert agrees(np.ascontiguousarray(public[9::16]), vector)


@pytest.mark.parametrize("vector", GOOD["public"], ids=lambda v: f"{v['q']} {v['chunk']}")
def test_the_public_words_match_the_vectors(vector):
    """What grows from the key 1 is the transform of a: the oracle turns it back."""
    key, chunk = np.ones(N, np.uint32), vector["chunk"]
    grown = mask_of_sum(key, EPOCH, vector["q"], first_chunk=chunk).draw(GROUP)
    public = np.empty(GROUP, np.uint32)
    for block in range(16):
        public[block::16] = oracle.forward(grown[block::16].tolist(), vector["q"])
    assert agrees(public, vector)


@pytest.mark.parametrize("vector", GOOD["product"], ids=lambda v: str(v["q"]))
def test_products_match_the_vectors(vector):
    q, public = vector["q"], np.zeros(GROUP, np.uint32)
    public[vector["block"] :: 16] = oracle.public_words(EPOCH, q, 0, N)
    RingProduct(key_of(SEED, q), q)(public, public)
    assert agrees(public, vector)


@pytest.mark.parametrize("vector", GOOD["bare mask"], ids=lambda v: f"{v['q']} {v['count']}")
def test_bare_masks_match_the_vectors(vector):
    q, chunk = vector["q"], vector["first word"] // CHUNK
    stream = mask_of_sum(key_of(SEED, q), EPOCH, q, first_chunk=chunk)
    assert agrees(stream.draw(vector["count"]), vector)


@pytest.mark.parametrize("vector", GOOD["mask"], ids=lambda v: f"{v['q']} {v['count']}")
def test_masks_match_the_vectors(vector):
    q = vector["q"]
    assert agrees(mask_of_upload(SEED, FRESH, EPOCH, q).draw(vector["count"]), vector)


@pytest.mark.parametrize("vector", GOOD["shares"], ids=lambda v: f"{v['q']} {v['N']} {v['holder']}")
def test_shares_match_the_vectors(vector):
    q, numbers = vector["q"], [vector[name] for name in "NUT"]
    p = ProtocolParameters(
        **dict(zip(("num_holders", "recovery_threshold", "max_colluders"), numbers, strict=True)),
        **{"max_dropouts": 1, "buffer_size": 4, "model_size": 10**4, "modulus": q},
        correctness="honest-holders",
    )
    shares = shares_of(bytes.fromhex(vector["seed"]), MaskCode(*numbers, q), p)
    assert agrees(shares[vector["holder"]], vector)


@pytest.mark.parametrize(("q", "pad"), [(NARROW, 3), (WIDE, 2)])
def test_a_pad_has_as_many_words_as_the_page_for_implementers_says(q, pad):
    p = ProtocolParameters(
        **{"num_holders": 7, "recovery_threshold": 3, "max_colluders": 1, "max_dropouts": 1},
        **{"buffer_size": 10, "model_size": 10**4, "modulus": q},
    )
    assert p.padded_size - p.model_size == pad
    chance = Fraction(32 * 10 + 1, q)
    assert chance**pad <= Fraction(1, 2**40) < chance ** (pad - 1)


# --- cuts, chunks, sums -------------------------------------------------------------------------


@pytest.mark.parametrize("q", FIELDS)
def test_how_a_mask_is_cut_changes_nothing(q):
    cuts = [0, 1, 2047, GROUP - 2048, 1, GROUP, 3 * GROUP - 7, CHUNK, 5, 2 * GROUP]
    stream = mask_of_upload(SEED, FRESH, EPOCH, q)
    pieces = np.concatenate([stream.draw(n) for n in cuts])
    whole = np.empty(sum(cuts), np.uint32)
    assert mask_of_upload(SEED, FRESH, EPOCH, q).draw(whole.size, whole) is whole
    assert np.array_equal(pieces, whole)


@pytest.mark.parametrize("q", FIELDS)
def test_every_chunk_made_alone_is_that_of_the_whole(q):
    key = key_of(SEED, q)
    whole = mask_of_sum(key, EPOCH, q).draw(2 * CHUNK + 12345)
    for chunk in range(3):
        part = whole[chunk * CHUNK : (chunk + 1) * CHUNK]
        alone = mask_of_sum(key, EPOCH, q, first_chunk=chunk).draw(part.size)
        assert np.array_equal(alone, part)
    assert not np.array_equal(whole[:CHUNK], whole[CHUNK : 2 * CHUNK])


@pytest.mark.parametrize("q", FIELDS)
def test_a_mask_of_its_own_for_every_epoch_field_and_seed(q):
    def first(seed=SEED, epoch=EPOCH, q=q):
        return mask_of_sum(key_of(seed, q), epoch, q).draw(64).tolist()

    others = [first(seed=FRESH), first(epoch=SEED), first(q=sum(FIELDS) - q)]
    assert all(sum(a == b for a, b in zip(first(), other, strict=True)) < 4 for other in others)


@pytest.mark.parametrize("q", FIELDS)
@pytest.mark.parametrize("size", [1, 2049, 70_001])
def test_what_stays_of_a_sum_is_the_updates_and_the_errors(q, size):
    members, levels, field = 10, 1000, PrimeField(q)
    rng = np.random.default_rng(size)
    total, key, expected = np.zeros((2, size), np.uint32), np.zeros((2, N), np.uint32), 0
    for member in range(members):
        seed, fresh = bytes([member] * 32), bytes([100 + member] * 32)
        update, coins = rng.uniform(-4, 4, size), WordStream(seed).draw(size)
        mask = mask_of_upload(seed, fresh, EPOCH, q).draw(size)
        total[1] = quantize_and_mask(update, levels, q, coins, mask)
        key[1] = key_of(seed, q)
        total[0], key[0] = field.weighted_sum(total, [1, 1]), field.weighted_sum(key, [1, 1])
        rounded = signed(quantize_and_mask(update, levels, q, coins, np.zeros_like(coins)), q)
        expected = expected + rounded + oracle.errors(fresh, size)
    numbers, largest = unmask_with(mask_of_sum(key[0], EPOCH, q), total[0], levels, q)
    assert np.array_equal(signed(total[0], q), expected)
    assert np.array_equal(numbers, expected / levels)
    assert largest == np.abs(expected).max()
    assert largest <= members * (4 * levels + 17)


def test_a_wrong_sum_of_keys_leaves_noise():
    """Negative control of the test above: one bit of one word of the key, and every element is lost."""
    key, total = key_of(SEED, NARROW), mask_of_upload(SEED, FRESH, EPOCH, NARROW).draw(10_000)
    again = total.copy()
    assert unmask_with(mask_of_sum(key, EPOCH, NARROW), total, 1, NARROW)[1] <= 16
    key[7] ^= 1
    numbers, _ = unmask_with(mask_of_sum(key, EPOCH, NARROW), again, 1, NARROW)
    assert np.mean(np.abs(numbers) > 2**10) > 0.99


# --- taking a mask off --------------------------------------------------------------------------


@pytest.mark.parametrize("q", [3, 7, NARROW, WIDE, 2**32 - 5])
@pytest.mark.parametrize("size", [0, 1, 17, 1000])
def test_to_unmask_is_to_subtract_and_bring_back(q, size):
    total, mask = FieldStream(SEED, q).draw(2 * size).reshape(2, size)
    edges = [((q - 1) // 2 + k) % q for k in (-1, 0, 1)]
    for at, edge in zip(range(size), edges, strict=False):
        total[at] = (edge + int(mask[at])) % q
    expected, numbers = (total.astype(int) - mask) % q, np.empty(size)
    largest = unmask(total, mask, 3, q, out=numbers)
    assert np.array_equal(total, expected)
    assert np.array_equal(numbers, dequantize(total, 3, q))
    assert largest == (magnitude(total, q) if size else 0)


@pytest.mark.parametrize("bad", ["total", "mask"])
def test_a_word_that_is_not_below_q_is_not_unmasked(bad):
    rows = {"total": np.zeros(40, np.uint32), "mask": np.zeros(40, np.uint32)}
    rows[bad][33] = WIDE
    with pytest.raises(DataError, match=f"{bad} holds a value"):
        unmask(rows["total"], rows["mask"], 1, WIDE, out=np.empty(40))


@pytest.mark.parametrize(
    "out",
    [np.empty(9), np.empty(10, np.float32), np.empty(20)[::2]],
    ids=["size", "dtype", "strided"],
)
def test_numbers_that_have_no_place_are_refused(out):
    with pytest.raises(DataError, match="out must be"):
        unmask(np.zeros(10, np.uint32), np.zeros(10, np.uint32), 1, WIDE, out=out)


# --- errors -------------------------------------------------------------------------------------

DRAWS = 8 * GROUP


def errors_left(freshes, q=WIDE):
    """What is left of a sum of masks without updates, one for each seed of errors."""
    seeds = [derive_seed(SEED, f"member {i}") for i in range(len(freshes))]
    field, keys = PrimeField(q), [key_of(seed, q) for seed in seeds]
    masks = [
        mask_of_upload(seed, fresh, EPOCH, q).draw(DRAWS)
        for seed, fresh in zip(seeds, freshes, strict=True)
    ]
    ones = [1] * len(freshes)
    total, key = field.weighted_sum(masks, ones), field.weighted_sum(keys, ones)
    numbers, _ = unmask_with(mask_of_sum(key, EPOCH, q), total, 1, q)
    return numbers.astype(int)


def fits(errors, members, coins=32):
    """χ² p-value against the centred binomial of all members' coins."""
    most = coins * members
    expected = stats.binom.pmf(np.arange(most + 1), most, 0.5) * errors.size
    observed = np.bincount(np.clip(errors + most // 2, 0, most), minlength=most + 1)
    common = expected > 20
    far = expected[~common].sum()
    return stats.chisquare(
        [*observed[common], observed[~common].sum()], [*expected[common], far]
    ).pvalue


def freshes(members):
    return [derive_seed(FRESH, f"errors of {i}") for i in range(members)]


@pytest.mark.parametrize("q", FIELDS)
@pytest.mark.parametrize("members", [1, 2, 10])
def test_the_errors_of_a_sum_are_binomial(members, q):
    errors = errors_left(freshes(members), q)
    assert fits(errors, members) > 1e-4
    assert errors.var() == pytest.approx(members * approved_rings.ERROR_VARIANCE, rel=0.02)
    assert np.abs(errors).max() <= members * approved_rings.ERROR_REACH


def test_half_the_error_would_be_noticed():
    assert fits(errors_left(freshes(2)), 2, coins=16) < 1e-9
    assert fits(errors_left(freshes(1)), 2) < 1e-9


def test_a_seed_of_errors_that_is_used_twice_would_be_noticed():
    (fresh,) = freshes(1)
    assert fits(errors_left([fresh, fresh]), 2) < 1e-9


# --- what is refused ----------------------------------------------------------------------------


def test_no_key_makes_more_than_two_to_the_30_words():
    last = MOST_WORDS // CHUNK - 1
    stream = mask_of_sum(key_of(SEED, WIDE), EPOCH, WIDE, first_chunk=last)
    stream.draw(CHUNK)
    with pytest.raises(ParameterError, match="2³⁰"):
        stream.draw(1)


@pytest.mark.parametrize("q", FIELDS)
def test_approved_rings_are_given_and_nothing_else(q):
    ring = approved_ring(N, q, MOST_WORDS)
    assert (ring.size, ring.modulus) == (N, q)
    for size, modulus, words in (
        (N, q, MOST_WORDS + 1),
        (N, q, 0),
        (1024, q, 1000),
        (4096, q, 1000),
        (N, 2**32 - 5, 1000),
        (N, 12289, 1000),
        (N, 61441, 1000),
    ):
        with pytest.raises(ParameterError) as refusal:
            approved_ring(size, modulus, words)
        assert refusal.value.rule


def test_the_approved_primes_are_the_largest_of_their_width():
    for ring, bits in zip(approved_rings.APPROVED, (24, 32), strict=True):
        candidates = range(2**bits - 2**bits % 4096 + 1 - 4096, 0, -4096)
        assert ring.modulus == next(q for q in candidates if all(q % p for p in range(3, 2**16, 2)))


@pytest.mark.parametrize("q", [2**32 - 5, 2**24 - 3])
def test_a_field_in_which_keys_cannot_grow_is_refused(q):
    with pytest.raises(ParameterError, match="2n = 4096"):
        mask_of_upload(SEED, FRESH, EPOCH, q)


@pytest.mark.parametrize("kind", [bytes, Seed])
def test_errors_from_the_masks_own_seed_are_refused(kind):
    with pytest.raises(LocalProtocolError, match="fresh") as refusal:
        mask_of_upload(kind(SEED), Seed(SEED), EPOCH, WIDE)
    assert SEED.hex() not in str(refusal.value)


def test_a_mask_does_not_print():
    assert repr(mask_of_upload(new_seed(), new_seed(), EPOCH, WIDE)) == "KeyStream(…)"


def test_the_page_for_implementers_tells_the_roots():
    page = (VECTORS.parents[1] / "docs" / "reference" / "key-masks.md").read_text("utf-8")
    assert all(f"{oracle.psi(q)} for the" in page for q in FIELDS)
