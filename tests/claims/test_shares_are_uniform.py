"""A share tells nothing: it is uniform whatever the mask is, and so are T shares together."""

import numpy as np
import pytest
from scipy import stats

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.randomness import FieldStream

Q = 2**32 - 5
SHARES = 10**7
COLLUDERS = 10
COLUMNS = SHARES // COLLUDERS
# One false alarm in a million, and the seeds are fixed.
SUSPICIOUS = 1e-6


def drawn(seed):
    return FieldStream(seed, Q).draw(SHARES).reshape(COLLUDERS, COLUMNS)


def shares_of(mask_value, noise):
    """T shares, of a mask that is the same number everywhere."""
    code = MaskCode(20, 14, COLLUDERS)
    mask = np.full(code.submasks * COLUMNS, mask_value, np.uint32)
    return code.encode(mask, noise)[5 : 5 + COLLUDERS]


def chi_square(counts):
    return stats.chisquare(counts).pvalue


def high_bits(words, buckets):
    return (words.astype(np.uint64) * buckets // Q).astype(np.int64)


def looks_uniform(shares):
    """Leading and trailing digits of single shares, and leading digits of neighbours together."""
    words = shares.reshape(-1)
    leading = np.bincount(high_bits(words, 1000), minlength=1000)
    trailing = np.bincount(words % np.uint32(1000), minlength=1000)
    pairs = high_bits(shares[:-1], 32) * 32 + high_bits(shares[1:], 32)
    together = np.bincount(pairs.reshape(-1), minlength=1024)
    return all(chi_square(counts) > SUSPICIOUS for counts in (leading, trailing, together))


@pytest.mark.parametrize("mask_value", [0, 1, Q - 1])
def test_shares_of_a_constant_mask_are_uniform(mask_value):
    assert looks_uniform(shares_of(mask_value, drawn(bytes([mask_value % 251] * 32))))


def test_the_statistic_notices_missing_noise():
    noise = np.zeros((COLLUDERS, COLUMNS), np.uint32)
    assert not looks_uniform(shares_of(1, noise))


def test_the_statistic_notices_a_slight_bias():
    shares = shares_of(1, drawn(bytes(32)))
    shares[:, ::50] %= np.uint32(Q // 2)  # one word in a hundred is not what it should be
    assert not looks_uniform(shares)
