"""What the proof of masks from keys rests on: each rule has an attack that works only where it is broken.

The attacker is a server that opened a sum of two members, and knows one block of both updates (a layer that is
frozen, say). docs/explanation/keys-proof.md has the argument.
"""

from collections import Counter
from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import oracle_keys as oracle
import pytest
from oracle_keys import BLOCKS, GROUP, NARROW, WIDE, N
from scipy import stats

from basecagg.maths.key_masks import key_of, mask_of_sum, mask_of_upload
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import derive_seed
from basecagg.maths.ring import RingProduct

EPOCH = bytes([3] * 32)
SEEDS = [bytes([k] * 32) for k in (5, 6)]
FIELDS = (NARROW, WIDE)
KNOWN = slice(0, None, BLOCKS)  # the words of block 0
OTHERS = np.arange(GROUP) % BLOCKS != 0
FAR = 2**20


def updates(seed=1):
    """Two members' rounded updates, 0 in block 0."""
    found = np.random.default_rng(seed).integers(-FAR, FAR, (2, GROUP))
    found[:, KNOWN] = 0
    return found


def uploads(rounded, q, seeds=SEEDS):
    """Rounded updates as they are sent."""
    freshes = [derive_seed(seed, f"fresh {i}") for i, seed in enumerate(seeds)]
    masks = [
        mask_of_upload(seed, fresh, EPOCH, q).draw(GROUP)
        for seed, fresh in zip(seeds, freshes, strict=True)
    ]
    return ((rounded + np.array(masks, int)) % q).astype(np.uint32)


def opened(sent, weights, q, seeds=SEEDS):
    """What the server opens: the weighted sum of the updates and their errors."""
    field = PrimeField(q)
    key = field.weighted_sum([key_of(seed, q) for seed in seeds], weights)
    mask = mask_of_sum(key, EPOCH, q).draw(GROUP)
    return signed(field.sub(field.weighted_sum(sent, weights), mask), q)


def key_from(block, q):
    """The key that makes these words of block 0, if they have no errors."""
    public = oracle.public_words(EPOCH, q, 0, GROUP)[KNOWN]
    values = oracle.forward([int(word) % q for word in block], q)
    return [v * pow(a, -1, q) % q for v, a in zip(values, public, strict=True)]


def read(upload, key, q):
    """An update, by its key."""
    mask = mask_of_sum(np.array(key, np.uint32), EPOCH, q).draw(GROUP)
    return signed(PrimeField(q).sub(upload, mask), q)


def is_read(guess, truth):
    """Whether nearly all elements that were not known are, up to errors."""
    return np.mean(np.abs(guess - truth)[OTHERS] <= 16) > 0.99


# --- equal weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("q", FIELDS)
@pytest.mark.parametrize(("heavy", "light"), [(64, 1), (64, 33)])
def test_with_unequal_weights_one_known_block_tells_a_key_and_the_whole_update(heavy, light, q):
    """heavy·e₁ + light·e₂ tells e₂: it is small, and known mod the heavy weight."""
    rounded = updates() // 512  # so that the weighted sum of 24-bit words does not wrap around
    sent = uploads(rounded, q)
    errors = opened(sent, [heavy, light], q)[KNOWN]
    light_error = (errors * pow(light, -1, heavy) + heavy // 2) % heavy - heavy // 2
    key = key_from(sent[1][KNOWN].astype(int) - light_error, q)
    assert key == key_of(SEEDS[1], q).tolist()
    assert is_read(read(sent[1], key, q), rounded[1])


@pytest.mark.parametrize("q", FIELDS)
def test_with_equal_weights_the_same_attack_finds_nothing(q):
    rounded = updates()
    sent = uploads(rounded, q)
    errors = opened(sent, [1, 1], q)[KNOWN]
    key = key_from(sent[1][KNOWN].astype(int) - errors // 2, q)
    right = sum(a == b for a, b in zip(key, key_of(SEEDS[1], q).tolist(), strict=True))
    assert right < 5
    guess = read(sent[1], key, q)
    assert not is_read(guess, rounded[1])
    assert abs(np.corrcoef(guess[OTHERS], rounded[1][OTHERS])[0, 1]) < 0.03


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", FIELDS)
def test_words_without_errors_tell_the_key(q):
    """As many as a key has, in one block: a pad without errors, or a forgotten one."""
    key = key_of(SEEDS[0], q)
    assert key_from(mask_of_sum(key, EPOCH, q).draw(GROUP)[KNOWN], q) == key.tolist()


@pytest.mark.parametrize("q", FIELDS)
def test_words_with_errors_do_not(q):
    key = key_of(SEEDS[0], q)
    found = key_from(uploads(updates(), q)[0][KNOWN], q)
    assert sum(a == b for a, b in zip(found, key.tolist(), strict=True)) < 5


@pytest.mark.parametrize("coins", [1, 2, 5])
def test_given_the_sums_of_a_pairs_coins_one_error_is_binomial_and_the_other_its_opposite(coins):
    """Step 3 of the proof, counted: for as many coins as can be gone through, of each of two members."""
    seen: dict[tuple[int, ...], Counter[int]] = {}
    for mine in product((0, 1), repeat=coins):
        for theirs in product((0, 1), repeat=coins):
            told = tuple(a + b for a, b in zip(mine, theirs, strict=True))
            seen.setdefault(told, Counter())[sum(mine)] += 1
    for told, counts in seen.items():
        known, still_open = told.count(2), told.count(1)
        total = sum(counts.values())
        assert {k - known: Fraction(n, total) for k, n in counts.items()} == {
            f: Fraction(comb(still_open, f), 2**still_open) for f in range(still_open + 1)
        }


# --- keys ---------------------------------------------------------------------------------------


def spread(words, q, cells=256):
    """χ² p-value of words against the uniform distribution on 0…q−1."""
    observed = np.bincount(words.astype(np.int64) * cells // q, minlength=cells)
    return stats.chisquare(observed).pvalue


@pytest.mark.parametrize("q", FIELDS)
def test_keys_and_uploads_look_uniform(q):
    keys = np.concatenate([key_of(bytes([k] * 32), q) for k in range(64)])
    assert spread(keys, q) > 1e-4
    assert all(spread(upload, q) > 1e-4 for upload in uploads(np.zeros((2, GROUP), int), q))
    assert spread(keys // 2, q) < 1e-9


def test_small_keys_would_be_told_by_their_sum():
    """Where keys of −1, 0, 1 add up to ±2, in two of nine places, both are known. Uniform ones never are."""
    for values, known in ((3, Fraction(2, 9)), (5, Fraction(2, 25))):
        sums = Counter(a + b for a, b in product(range(values), repeat=2))
        assert Fraction(sum(n for n in sums.values() if n == 1), values**2) == known
    uniform = Counter((a + b) % 7 for a, b in product(range(7), repeat=2))
    assert set(uniform.values()) == {7}


@pytest.mark.parametrize("q", FIELDS)
def test_a_key_that_hides_two_updates_tells_their_difference(q):
    rounded = updates()
    first, second = uploads(rounded, q, [SEEDS[0], SEEDS[0]])
    difference = signed(PrimeField(q).sub(first, second), q)
    assert np.abs(difference - (rounded[0] - rounded[1])).max() <= 32


@pytest.mark.parametrize("q", FIELDS)
def test_two_keys_do_not(q):
    rounded = updates()
    first, second = uploads(rounded, q)
    difference = signed(PrimeField(q).sub(first, second), q)
    assert np.mean(np.abs(difference - (rounded[0] - rounded[1])) <= 32) < 0.001


# --- the public a -------------------------------------------------------------------------------


@pytest.mark.parametrize("q", FIELDS)
def test_somebody_who_chose_a_would_read_differences(q):
    """The same a in every block: then each update tells its blocks' differences. That of an epoch is hashed."""
    rounded = updates()[0]
    chosen = np.repeat(key_of(SEEDS[1], q), BLOCKS)
    planted = np.empty(GROUP, np.uint32)
    coins = np.random.default_rng(1).integers(0, 2**32, GROUP).astype(np.uint32)
    RingProduct(key_of(SEEDS[0], q), q)(chosen, planted, coins)
    sent = ((rounded + planted.astype(int)) % q).astype(np.uint32)
    for upload, told in ((sent, True), (uploads(updates(), q)[0], False)):
        blocks = signed(upload, q).reshape(N, BLOCKS)
        difference = (blocks[:, 1] - blocks[:, 0] + q // 2) % q - q // 2
        assert (np.abs(difference - rounded.reshape(N, BLOCKS)[:, 1]).max() <= 32) == told
