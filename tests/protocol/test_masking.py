"""What a seed determines: mask, noise and coins each come from a stream of their own."""

import numpy as np
import pytest
from parties import SIZE, parameters

from basecagg.errors import DataError
from basecagg.maths.interpolation import coefficient_rows
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import FieldStream, WordStream, derive_seed
from basecagg.protocol import masking

SEED = bytes(range(32))
TWO_COLLUDERS = parameters(
    recovery_threshold=5, max_colluders=2, max_dropouts=0, buffer_size=4, clip=0.5
)


def rows_of(p):
    """The polynomials behind the shares, one row a coefficient: the sub-masks, then the noise."""
    code = MaskCode(p.num_holders, p.recovery_threshold, p.max_colluders, p.modulus)
    some = masking.shares_of(SEED, code, p)[: p.recovery_threshold].astype(object)
    points = code.points[: p.recovery_threshold].astype(np.uint64)
    inverse = coefficient_rows(points, p.recovery_threshold, p.modulus).astype(object)
    return (inverse @ some % p.modulus).astype(np.uint32)


def repeated_rows(p):
    """How often a row of the polynomials has been there before."""
    rows = rows_of(p)
    return len(rows) - len({row.tobytes() for row in rows})


def test_no_row_of_noise_is_a_row_of_the_mask_or_of_other_noise():
    assert repeated_rows(TWO_COLLUDERS) == 0


@pytest.mark.parametrize("p", [TWO_COLLUDERS, parameters(recovery_threshold=2)])
def test_control_noise_from_the_masks_stream_is_noticed(monkeypatch, p):
    """Such noise hides nothing: with U = T + 1 a single holder would know the whole mask."""
    names = {"noise": "mask"}
    monkeypatch.setattr(masking, "derive_seed", lambda s, p: derive_seed(s, names.get(p, p)))
    assert repeated_rows(p) == p.max_colluders


def test_mask_and_noise_are_the_streams_of_their_names():
    p = TWO_COLLUDERS
    mask = FieldStream(derive_seed(SEED, "mask"), p.modulus).draw(p.padded_size)
    noise = FieldStream(derive_seed(SEED, "noise"), p.modulus).draw(2 * p.share_size)
    assert np.array_equal(rows_of(p).reshape(-1), np.concatenate([mask, noise]))


def test_the_update_is_clipped_and_rounded_by_the_coins_of_their_name():
    p = TWO_COLLUDERS
    update = np.linspace(-1, 1, SIZE)
    hidden, outside = masking.hide(update, SEED, 0, p, masking.mask_of(SEED, b"", b"", p))
    mask = FieldStream(derive_seed(SEED, "mask"), p.modulus).draw(p.padded_size)
    rounded = signed(((hidden.astype(object) - mask) % p.modulus).astype(np.uint32), p.modulus)
    scaled = np.zeros(p.padded_size)
    scaled[:SIZE] = np.clip(update, -p.clip, p.clip) * p.update_levels
    coins = WordStream(derive_seed(SEED, "rounding")).draw(p.padded_size)
    up = coins < (scaled - np.floor(scaled)) * 2.0**32
    assert rounded.tolist() == (np.floor(scaled) + up).tolist()
    assert outside == np.count_nonzero(np.abs(update) > p.clip)


def test_a_number_that_is_none_is_found_in_the_whole_update(monkeypatch):
    monkeypatch.setattr(masking, "_SEGMENT", 8)
    update = np.zeros(SIZE)
    update[20] = np.nan
    mask = masking.mask_of(SEED, b"", b"", TWO_COLLUDERS)
    with pytest.raises(DataError, match="20"):
        masking.hide(update, SEED, 0, TWO_COLLUDERS, mask)
