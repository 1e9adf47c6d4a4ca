"""Spies for tests: what was really masked, and what the server really opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import signed
from basecagg.maths.randomness import FieldStream, derive_seed
from basecagg.parties.epoch_server import EpochServer
from basecagg.protocol.contributor import Contributor
from basecagg.protocol.effects import Released, news_of, sends_of


@contextmanager
def noting_plain_updates(folder: Path) -> Iterator[None]:
    """Write every update into the folder as it was quantised: its upload without the mask."""
    original = Contributor.submit

    def submit(self: Any, *arguments: Any) -> Any:
        (first, *_) = self.ready
        seed, p = self._masks[first.key].seed, self.agreement.parameters
        effects = original(self, *arguments)
        (upload,) = (send.message for send in sends_of(effects))
        assert upload.ticket.mask == first
        mask = FieldStream(derive_seed(seed, "mask"), p.modulus).draw(p.padded_size)
        words = PrimeField(p.modulus).sub(np.frombuffer(upload.words, "<u4"), mask)
        np.save(folder / f"{first.serial.hex()}.npy", signed(words, p.modulus))
        return effects

    with patch.object(Contributor, "submit", submit):
        yield


@contextmanager
def noting_sums(kind: type = Released) -> Iterator[list[Any]]:
    """Collect what the server opens, or news of another kind."""
    found: list[Any] = []
    original = EpochServer._perform

    def perform(self: Any, effects: Any) -> None:
        found.extend(news for news in news_of(effects) if isinstance(news, kind))
        original(self, effects)

    with patch.object(EpochServer, "_perform", perform):
        yield found


def require_exact(sums: list[Released], folder: Path, levels: int = 2**16) -> None:
    """Every opened sum is that of its members' quantised updates, to the last unit.

    Own weights are in the updates already, 1 at most; those of the field are whole multiples of them.
    """
    assert sums
    for released in sums:
        plain = [np.load(folder / f"{name.serial.hex()}.npy") for name in released.members]
        factors = [max(1, int(weight)) for weight in released.weights]
        total = sum(factor * update for factor, update in zip(factors, plain, strict=True))
        size = released.weighted_sum.size
        assert not total[size:].any()
        np.testing.assert_array_equal(released.weighted_sum * levels, total[:size])
