"""A contributor that wants no sum with its update to be opened. Put these in place of `contributor.hide`."""

from __future__ import annotations

import numpy as np

from basecagg.maths.key_masks import MaskWords
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.masking import hide

SIGN = np.float32(1000)
"""A liar's model after training is lower by this in every number, so that `lie_if_marked` knows its update."""
_LEAST = 3
"""All numbers of such an update are larger, also where it was clipped before it comes here (B = 4)."""


def lie(
    update: np.ndarray, seed: bytes, tier: int, p: ProtocolParameters, mask: MaskWords
) -> tuple[np.ndarray, int]:
    """The words of an update that no clipping has seen. A sum with it cannot be opened."""
    numbers = np.zeros(p.padded_size, object)
    drawn = np.random.default_rng(5).integers(0, p.modulus, p.model_size)
    numbers[: p.model_size] = [int(number) for number in drawn]
    words = mask.draw(p.padded_size).astype(object)
    return ((numbers + words) % p.modulus).astype(np.uint32), 0


def lie_if_marked(
    update: np.ndarray, seed: bytes, tier: int, p: ProtocolParameters, mask: MaskWords
) -> tuple[np.ndarray, int]:
    """Honest but for an update with the sign."""
    return (hide if update.min() < _LEAST else lie)(update, seed, tier, p, mask)
