"""The table holds the discrete Gaussian to 2⁻¹²⁷, the draws follow it, and the tests would notice if not."""

from fractions import Fraction

import numpy as np
import pytest
from mpmath import exp, mp, mpf
from scipy import stats

from basecagg.errors import DataError, ParameterError
from basecagg.maths.noise import CUT, MOST_VARIANCE, NoiseTable, noise_and_mask, noise_table
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import FieldStream, WordStream

Q = 2**32 - 5
DRAWS = 10**6
VARIANCE = 100


def probabilities(table: NoiseTable) -> dict[int, Fraction]:
    """What the columns give, exactly."""
    found: dict[int, Fraction] = {}
    columns = len(table.high)
    for k in range(columns):
        threshold = (int(table.high[k]) << 64) + int(table.low[k])
        own = Fraction(threshold, 2**128 * columns)
        for value, mass in (
            (k - table.reach, own),
            (int(table.other[k]), 1 / Fraction(columns) - own),
        ):
            found[value] = found.get(value, Fraction(0)) + mass
    return found


def distance(table: NoiseTable, variance: int):
    """The statistical distance to the discrete Gaussian on all integers, with 400 bits of mpmath."""
    with mp.workprec(400):
        far = range(-40 * variance - 40, 40 * variance + 41)
        weights = {k: exp(-mpf(k * k) / (2 * variance)) for k in far if k * k < 400 * variance}
        total = sum(weights.values())
        found = probabilities(table)
        parts = (
            abs(weights.get(k, mpf(0)) / total - mpf(found.get(k, Fraction(0)).numerator)
                / found.get(k, Fraction(0)).denominator)
            for k in weights.keys() | found.keys()
        )  # fmt: skip
        return sum(parts) / 2


@pytest.mark.parametrize("variance", [1, 2, 9, 10, 100, 2704])
def test_the_table_is_the_discrete_gaussian(variance):
    table = noise_table(variance)
    found = probabilities(table)
    assert sum(found.values()) == 1
    assert all(found.get(k, 0) == found.get(-k, 0) for k in found)
    assert max(k for k, mass in found.items() if mass) <= table.reach
    assert table.reach**2 >= CUT**2 * variance
    assert distance(table, variance) < mpf(2) ** -127


def test_half_of_the_bits_would_not_be_enough():
    """Negative control: 64-bit thresholds are off by more than 2⁻⁸⁰."""
    table = noise_table(100)
    assert distance(table._replace(low=np.zeros_like(table.low)), 100) > mpf(2) ** -80


def test_another_width_would_be_noticed():
    assert distance(noise_table(101), 100) > mpf(2) ** -10


@pytest.mark.parametrize("variance", [0, -1, MOST_VARIANCE + 1])
def test_a_table_that_cannot_be_is_refused(variance):
    with pytest.raises(ParameterError, match="variance"):
        noise_table(variance)


# --- drawing ------------------------------------------------------------------------------------


def draw(count=DRAWS, variance=VARIANCE, seed=1, rounded=None, mask=None):
    out = np.empty(count, np.uint32)
    rounded = np.zeros(count, np.int32) if rounded is None else rounded
    mask = np.zeros(count, np.uint32) if mask is None else mask
    stream = WordStream(bytes([seed] * 32))
    noise_and_mask(rounded, noise_table(variance), stream, mask, Q, out)
    return out


def fits(noise, variance, members=1):
    """χ² against the discrete Gaussian of this variance; a sum of several is one, up to 10⁻⁸ from σ_i = 3."""
    spread = members * variance
    reach = int(4 * spread**0.5)
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * spread))
    inside = weights / np.exp(-(np.arange(-20 * reach, 20 * reach + 1.0) ** 2) / (2 * spread)).sum()
    counts = np.bincount(np.clip(noise, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    tail = (1 - inside.sum()) / 2
    expected = np.concatenate([[tail], inside, [tail]]) * noise.size
    return stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue


def test_the_draws_are_discrete_gaussian():
    assert fits(signed(draw(), Q), VARIANCE) > 1e-4


@pytest.mark.parametrize("wrong", [VARIANCE // 2, VARIANCE - 2, VARIANCE + 2])
def test_another_variance_would_be_noticed(wrong):
    assert fits(signed(draw(variance=wrong), Q), VARIANCE) < 1e-4


def test_a_sum_of_shares_is_discrete_gaussian_and_a_reused_stream_is_noticed():
    two = signed(draw(seed=1), Q) + signed(draw(seed=2), Q)
    assert fits(two, VARIANCE, members=2) > 1e-4
    assert fits(2 * signed(draw(seed=1), Q), VARIANCE, members=2) < 1e-9


def test_a_wide_table_has_its_variance():
    noise = signed(draw(variance=2**22, seed=3), Q)
    assert noise.var() == pytest.approx(2**22, rel=0.006)
    assert abs(noise.mean()) < 5 * 2**11 / DRAWS**0.5


def test_noise_and_mask_are_added_to_the_rounded_update():
    count = 4096
    rounded = np.random.default_rng(1).integers(-(2**30), 2**30, count).astype(np.int32)
    mask = FieldStream(bytes(32), Q).draw(count)
    mask[:2] = 0, Q - 1
    plain = signed(draw(count), Q)
    expected = (rounded.astype(object) + plain.astype(object) + mask.astype(object)) % Q
    assert draw(count, rounded=rounded, mask=mask).tolist() == expected.tolist()
    memory = rounded.copy()
    noise_and_mask(
        memory, noise_table(VARIANCE), WordStream(bytes([1] * 32)), mask, Q, memory.view(np.uint32)
    )
    assert memory.view(np.uint32).tolist() == expected.tolist()


def test_a_mask_that_is_not_below_q_is_refused():
    mask = np.full(4, Q, np.uint32)
    with pytest.raises(DataError, match="below q"):
        draw(4, mask=mask)


class Script(WordStream):
    """Words as told, one draw after the other."""

    def __init__(self, *draws):
        self._draws = list(draws)

    def draw(self, n, out=None):
        words = np.array(self._draws.pop(0), np.uint32)
        assert words.size == n
        return words


@pytest.mark.parametrize(("below", "own"), [(1, True), (0, False)])
def test_a_tie_is_decided_by_another_64_bits(below, own):
    table = noise_table(VARIANCE)
    column = next(k for k in range(len(table.high)) if table.low[k] > 1 and table.high[k] > 1)
    high, low = int(table.high[column]), int(table.low[column])
    halves = [high & 0xFFFFFFFF, high >> 32]
    spare = low - below
    spares = [spare & 0xFFFFFFFF, spare >> 32] * 8
    out = np.empty(1, np.uint32)
    script = Script([column], halves, spares)
    noise_and_mask(np.zeros(1, np.int32), table, script, np.zeros(1, np.uint32), Q, out)
    expected = column - table.reach if own else int(table.other[column])
    assert signed(out, Q).tolist() == [expected]
