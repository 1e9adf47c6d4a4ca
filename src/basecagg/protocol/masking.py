"""What a mask's seed determines: the mask, its shares, the coins of rounding; and how it hides an update."""

from __future__ import annotations

import numpy as np

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.quantization import Reals, clip_update, quantize_and_mask
from basecagg.maths.randomness import FieldStream, Words, WordStream, derive_seed
from basecagg.parameters import ProtocolParameters


def shares_of(seed: bytes, code: MaskCode, parameters: ProtocolParameters) -> Words:
    """One row for each holder: the encoded mask (Eq. encoding), its noise drawn from the same seed."""
    p = parameters
    noise = FieldStream(derive_seed(seed, "noise"), p.modulus)
    rows = noise.draw(p.max_colluders * p.share_size).reshape(p.max_colluders, p.share_size)
    return code.encode(_mask(seed, p), rows)


def hide(update: Reals, seed: bytes, parameters: ProtocolParameters) -> tuple[Words, int]:
    """Clip, quantise and mask an update Δ (Eq. masked_update); also how many elements lay outside ±B."""
    p = parameters
    # The pad is 0, and masked like the rest.
    padded = np.zeros(p.padded_size, dtype=update.dtype)
    _, count = clip_update(update, p.clip, out=padded[: p.model_size])
    coins = WordStream(derive_seed(seed, "rounding")).draw(p.padded_size)
    return quantize_and_mask(padded, p.update_levels, p.modulus, coins, _mask(seed, p)), count


def _mask(seed: bytes, p: ProtocolParameters) -> Words:
    """z: all d elements and the pad."""
    return FieldStream(derive_seed(seed, "mask"), p.modulus).draw(p.padded_size)
