"""What a contributor remembers of its updates: keyed fingerprints, so that none is ever masked twice.

The same Δ in two sums would be their difference, in one epoch or in two. So fingerprints outlive epochs, and
federations that share a store.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from basecagg.errors import LocalProtocolError
from basecagg.maths.fingerprints import fingerprint
from basecagg.maths.randomness import SEED_BYTES
from basecagg.protocol.effects import Effect, Persist
from basecagg.protocol.global_model import Model
from basecagg.protocol.ports import Records


class SentUpdates:
    """The updates that were ever masked from one store."""

    def __init__(self, records: Records, entropy: Callable[[int], bytes]) -> None:
        self._records = records
        self._entropy = entropy
        self._salt = b""
        self._recent: set[str] = set()
        """Those since the start, which may not be in the records yet."""

    def require_fresh(self, update: Model) -> str:
        """The fingerprint of an update; one that was masked before is refused."""
        # Another federation's machine, which shares the store's fingerprints, may have drawn it meanwhile.
        self._salt = self._records.read("salt", "") or self._salt or self._entropy(SEED_BYTES)
        # Numbers that agree to float32 are the same update, in any precision and with either sign of zero.
        with np.errstate(over="ignore"):
            numbers = np.add(update, 0.0, dtype=np.float32)
        own = fingerprint(self._salt, numbers).hex()
        if own in self._recent or self._records.read("sent", own) is not None:
            raise LocalProtocolError(
                "this update was masked before; one local update is sent at most once: train again"
            )
        return own

    def remember(self, own: str) -> list[Effect]:
        """An update with this fingerprint is masked."""
        self._recent.add(own)
        return [Persist("salt", "", self._salt), Persist("sent", own, b"")]
