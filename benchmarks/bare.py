"""The primitives of one cycle and nothing around them, over as many bytes: ten masks, a thousand shares.

All of them lie in memory at once, as in the cycle: one share sealed a thousand times never leaves the cache.
The masked updates are the masks themselves: what they hide costs nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from basecagg import ProtocolParameters
from basecagg.channels.identity import Ed25519Verifier, Identity
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.randomness import SEED_BYTES, FieldStream, WordStream

_KEY, _NONCE = bytes(range(32)), bytes(12)


class BareCycle:
    """All steps of one cycle by their names, in the order in which each needs the one before."""

    def __init__(self, p: ProtocolParameters, signatures: int, checks: int) -> None:
        """Prepare what is not a primitive of the cycle."""
        self._p, self._signatures, self._checks = p, signatures, checks
        self._code = MaskCode(
            p.num_holders, p.recovery_threshold, p.max_colluders, modulus=p.field_size
        )
        self._field = PrimeField(p.field_size)
        self._weights = [p.field_levels] * p.buffer_size
        self._identity, self._verifier, self._statement = (
            Identity.create(),
            Ed25519Verifier(),
            bytes(300),
        )

    def seconds(self) -> dict[str, float]:
        """CPU seconds of each step of one pass."""
        steps: dict[str, Callable[[], None]] = {
            "PRG": self._draw,
            "encode": self._encode,
            "AES-GCM, seal": self._seal,
            "AES-GCM, open": self._open,
            "holders' sums": self._add_shares,
            "server's sum": self._add_masks,
            "decode": self._decode,
            "sign": self._sign,
            "verify": self._verify,
        }
        return {name: _cpu(step) for name, step in steps.items()}

    def _draw(self) -> None:
        """Each mask twice (dealt, then used), its noise, and the coins of rounding."""
        p, self._masks, self._noise = self._p, [], []
        for member in range(p.buffer_size):
            seed = bytes([member]) * SEED_BYTES
            stream = FieldStream(seed, p.field_size)
            self._masks.append(stream.draw(p.padded_size))
            noise = stream.draw(p.max_colluders * p.share_size)
            self._noise.append(noise.reshape(p.max_colluders, p.share_size))
            stream.draw(p.padded_size)
            WordStream(seed).draw(p.padded_size)

    def _encode(self) -> None:
        pairs = zip(self._masks, self._noise, strict=True)
        self._shares = [self._code.encode(mask, noise) for mask, noise in pairs]

    def _seal(self) -> None:
        self._sealed = [
            [AESGCM(_KEY).encrypt(_NONCE, share.data.cast("B"), b"") for share in shares]
            for shares in self._shares
        ]

    def _open(self) -> None:
        self._held = [
            [AESGCM(_KEY).decrypt(_NONCE, sealed, b"") for sealed in envelopes]
            for envelopes in self._sealed
        ]

    def _add_shares(self) -> None:
        self._answers = {}
        for holder in range(self._p.num_holders):
            rows = [np.frombuffer(shares[holder], np.uint32) for shares in self._held]
            self._answers[holder] = self._field.weighted_sum(rows, self._weights)

    def _add_masks(self) -> None:
        self._sum = self._field.weighted_sum(self._masks, self._weights)

    def _decode(self) -> None:
        first = range(self._p.recovery_threshold)
        opened = self._code.decode({holder: self._answers[holder] for holder in first})
        if not np.array_equal(opened, self._sum):
            raise SystemExit("the bare sum did not open")

    def _sign(self) -> None:
        for _ in range(self._signatures):
            self._signature = self._identity.sign(self._statement)

    def _verify(self) -> None:
        for _ in range(self._checks):
            self._verifier.verify(self._identity.public_key, self._statement, self._signature)


def _cpu(step: Callable[[], None]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started
