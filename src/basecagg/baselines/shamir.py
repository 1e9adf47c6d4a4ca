"""Shamir's t-of-n sharing of 32-byte secrets: our mask code with a single sub-mask.

With U = t and T = t − 1 the mask is one row, hidden by t − 1 rows of noise: share j is the polynomial
secret + Σ noise_u·x^u at β_j ≠ 0, any t shares give it back, and t − 1 say nothing (Shamir 1979). So sharing is
vectorised over all secrets of a dealer, and recovery over all secrets that the same people hold shares of.

A secret of 256 bits becomes 9 elements of F_q: eight words without their top bits, and the top bits together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from basecagg.errors import DecodingError, ParameterError
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.randomness import SEED_BYTES, FieldStream, Seed, Words

ELEMENTS = 9
"""Field elements of one secret, and of one share of it."""
SHARE_BYTES = 4 * ELEMENTS
_WORDS, _LOW_31 = 8, np.uint32(2**31 - 1)
_TOP_BITS = np.arange(_WORDS, dtype=np.uint32)


class SecretSharing:
    """t-of-n sharing over F_q, q = 2³² − 5."""

    def __init__(self, shares: int, threshold: int) -> None:
        """Make n = `shares` shares, of which any t = `threshold` give the secret back."""
        if not 2 <= threshold <= shares:
            raise ParameterError(
                f"threshold t = {threshold} is outside 2…n = {shares}: with t = 1 every share is the"
                " secret, with t > n it is lost",
                rule="2 ≤ t ≤ n",
            )
        self.threshold = threshold
        self._code = _code(shares, threshold)

    def share(self, secrets: Sequence[bytes], seed: Seed | bytes) -> Words:
        """Row j: the j-th share of every secret, one after the other. The seed makes the noise."""
        row = np.concatenate([_to_elements(secret) for secret in secrets])
        noise = FieldStream(seed, PAPER_MODULUS).draw((self.threshold - 1) * row.size)
        return self._code.encode(row, noise.reshape(self.threshold - 1, row.size))

    def recover(self, shares: Mapping[int, Words]) -> list[bytes]:
        """The secrets, from the rows of at least t holders."""
        if len(shares) < self.threshold:
            raise DecodingError(
                f"{len(shares)} shares of a secret, but t = {self.threshold} are needed"
            )
        chosen = dict(sorted(shares.items())[: self.threshold])
        row = self._code.decode(chosen)
        return [_to_bytes(row[i : i + ELEMENTS]) for i in range(0, row.size, ELEMENTS)]


@lru_cache(maxsize=64)
def _code(shares: int, threshold: int) -> MaskCode:
    return MaskCode(shares, threshold, threshold - 1, modulus=PAPER_MODULUS)


def _to_elements(secret: bytes) -> Words:
    if len(secret) != SEED_BYTES:
        raise ParameterError(
            f"a secret is {SEED_BYTES} bytes, not {len(secret)}", rule="secrets are 32 bytes"
        )
    words = np.frombuffer(secret, "<u4")
    top_bits = np.sum((words >> np.uint32(31)) << _TOP_BITS, dtype=np.uint32)
    return np.append(words & _LOW_31, top_bits).astype(np.uint32)


def _to_bytes(elements: Words) -> bytes:
    low, top_bits = elements[:_WORDS], elements[_WORDS]
    if low.max() > _LOW_31 or top_bits >= 1 << _WORDS:
        raise DecodingError("the shares do not belong together: what they give is no secret")
    words = low | (((top_bits >> _TOP_BITS) & np.uint32(1)) << np.uint32(31))
    return bytes(words.astype("<u4").tobytes())
