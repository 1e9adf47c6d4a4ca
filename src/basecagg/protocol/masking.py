"""Masks: what a seed determines (mask, shares, coins of rounding), and how a mask hides an update."""

from __future__ import annotations

import numpy as np

from basecagg.maths.approved_rings import KEY_SIZE
from basecagg.maths.key_masks import MaskWords, key_of, mask_of_sum, mask_of_upload
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.noise import noise_and_mask, noise_table, round_within
from basecagg.maths.quantization import Reals, clip_update, quantize_and_mask, require_finite
from basecagg.maths.randomness import FieldStream, Words, WordStream, derive_seed
from basecagg.parameters import ProtocolParameters

_SEGMENT = 1 << 17
"""Elements that are masked at a time, in memory that is used again for the next."""


def shares_of(seed: bytes, code: MaskCode, parameters: ProtocolParameters) -> Words:
    """One row for each holder: the encoded mask (Eq. encoding), with padding rows from the same seed."""
    p = parameters
    padding = FieldStream(derive_seed(seed, "noise"), p.field_size)
    rows = padding.draw(p.max_colluders * p.share_size).reshape(p.max_colluders, p.share_size)
    return code.encode(_shared(seed, p), rows)


def _shared(seed: bytes, p: ProtocolParameters) -> Words:
    """What is cut into pieces: the mask with its pad, or the key that it grows from and zeros."""
    if p.masks == "long":
        return _long_mask(seed, p).draw(p.shared_size)
    return np.pad(key_of(seed, p.field_size), (0, p.shared_size - KEY_SIZE))


def mask_of(seed: bytes, fresh: bytes, epoch: bytes, p: ProtocolParameters) -> MaskWords:
    """z: all d elements and the pad. With keys it has errors from a `fresh` seed that is stored nowhere."""
    if p.masks == "long":
        return _long_mask(seed, p)
    return mask_of_upload(seed, fresh, epoch, p.field_size)


def masks_of(shared: Words, epoch: bytes, p: ProtocolParameters) -> MaskWords:
    """The sum of masks, less its errors, from the sum of what was shared of them."""
    if p.masks == "long":
        return _Words(shared)
    return mask_of_sum(shared[:KEY_SIZE], epoch, p.field_size)


class _Words:
    """Words that are there already, drawn in order."""

    def __init__(self, words: Words) -> None:
        self._left = words

    def draw(self, n: int, out: Words | None = None) -> Words:
        words, self._left = self._left[:n], self._left[n:]
        return words


def hide(
    update: Reals, seed: bytes, tier: int, parameters: ProtocolParameters, mask: MaskWords
) -> tuple[Words, int]:
    """Clip, weigh by 2^−t, quantise and mask an update Δ (Eq. masked_update); how many elements were clipped.

    Δ is before − after; with field weights t = `tier` is 0. A segment at a time: mask and coins of a large
    model are never there as a whole.
    """
    p = parameters
    require_finite(update)
    coins = WordStream(derive_seed(seed, "rounding"))
    masked, count = np.empty(p.padded_size, np.uint32), 0
    # Fresh memory for every segment would cost as much as what is done in it.
    longest = min(_SEGMENT, p.padded_size)
    clipped, drawn = np.empty(longest, update.dtype), np.empty((2, longest), np.uint32)
    for at in range(0, p.padded_size, _SEGMENT):
        out, part = masked[at : at + _SEGMENT], update[at : at + _SEGMENT]
        padded, (rounding, cover) = clipped[: out.size], drawn[:, : out.size]
        count += clip_update(part, p.clip, out=padded[: part.size])[1]
        padded[part.size :] = 0  # the pad is masked like the rest
        if tier:
            np.ldexp(padded, -tier, out=padded)
        draws = coins.draw(out.size, rounding), mask.draw(out.size, cover)
        quantize_and_mask(padded, p.update_levels, p.field_size, *draws, out=out)
    return masked, count


def hide_with_noise(
    update: Reals, staleness: int, fresh: bytes, parameters: ProtocolParameters, mask: MaskWords
) -> Words:
    """Clip Δ by its length, weigh it by its age τ̂, round it within C̃, add a share of the noise, mask.

    Coins and noise come from a `fresh` seed that is stored nowhere: the mask's own seed lies on the disk since
    the mask was dealt. The pad has no noise, so that the sum still shows whether it was opened rightly.
    """
    p, mechanism = parameters, parameters.mechanism
    assert mechanism is not None
    masked = np.empty(p.padded_size, np.uint32)
    rounded, coins = masked.view(np.int32), WordStream(derive_seed(fresh, "private rounding"))
    bound, size = mechanism.squared_bound(staleness), p.model_size
    longest, weight = mechanism.privacy.longest, mechanism.weight(staleness)
    round_within(update, p.update_levels, longest, weight, bound, coins, rounded[:size])
    noise = WordStream(derive_seed(fresh, "private noise"))
    table = noise_table(mechanism.variance) if mechanism.variance else None
    memory = np.empty(min(size, _SEGMENT), np.uint32)
    for at in range(0, size, _SEGMENT):
        here = slice(at, min(at + _SEGMENT, size))
        words = mask.draw(here.stop - at, memory[: here.stop - at])
        if table is not None:
            noise_and_mask(rounded[here], table, noise, words, p.field_size, masked[here])
        else:
            masked[here] = (rounded[here].astype(np.int64) + words) % p.field_size
    mask.draw(p.padded_size - size, masked[size:])
    return masked


def _long_mask(seed: bytes, p: ProtocolParameters) -> FieldStream:
    return FieldStream(derive_seed(seed, "mask"), p.field_size)
