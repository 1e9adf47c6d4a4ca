"""Spies for tests: what was really masked, and what the server really opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from basecagg.flower.coordinator import Coordinator
from basecagg.maths.quantization import signed
from basecagg.protocol import contributor
from basecagg.protocol.effects import Released, Uploaded, news_of


@contextmanager
def noting_plain_updates(folder: Path) -> Iterator[None]:
    """Write every update into the folder as it was quantised, before its mask was added."""
    original_submit, original_mask = contributor.Contributor.submit, contributor.quantize_and_mask
    plain: list[Any] = []

    def quantize_and_mask(update: Any, levels: int, modulus: int, coins: Any, mask: Any) -> Any:
        words = original_mask(update, levels, modulus, coins, np.zeros_like(mask))
        plain.append(signed(words, modulus))
        return original_mask(update, levels, modulus, coins, mask)

    def submit(self: Any, *arguments: Any) -> Any:
        effects = original_submit(self, *arguments)
        (uploaded,) = (news for news in news_of(effects) if isinstance(news, Uploaded))
        np.save(folder / f"{uploaded.mask.serial.hex()}.npy", plain.pop())
        return effects

    with (
        patch.object(contributor, "quantize_and_mask", quantize_and_mask),
        patch.object(contributor.Contributor, "submit", submit),
    ):
        yield


@contextmanager
def noting_sums() -> Iterator[list[Released]]:
    """Collect what the server opens."""
    found: list[Released] = []
    original = Coordinator.perform

    def perform(self: Any, effects: Any) -> None:
        found.extend(news for news in news_of(effects) if isinstance(news, Released))
        original(self, effects)

    with patch.object(Coordinator, "perform", perform):
        yield found


def require_exact(sums: list[Released], folder: Path, levels: int = 2**16) -> None:
    """Every opened sum is Σ s̄·Δ̄ of its members' quantised updates, to the last unit."""
    assert sums
    for released in sums:
        plain = [np.load(folder / f"{name.serial.hex()}.npy") for name in released.members]
        weights = [int(weight) for weight in released.weights]
        total = sum(w * update for w, update in zip(weights, plain, strict=True))
        size = released.weighted_sum.size
        assert not total[size:].any()
        np.testing.assert_array_equal(released.weighted_sum * levels, total[:size])
