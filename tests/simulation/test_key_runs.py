"""Runs with masks from keys: the arithmetic form opens what the machines open; masks cancel, errors stay."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, simulate
from basecagg.maths.approved_rings import KEY_MODULI
from basecagg.maths.key_masks import KeyStream
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.randomness import Words, WordStream, derive_seed
from basecagg.parameters import ProtocolParameters
from basecagg.protocol import contributor as contributor_module
from basecagg.protocol import masking
from basecagg.schedules.schedule import Vector
from basecagg.simulation import field_sums

CLOCKS: dict[str, dict[str, Any]] = {
    "devices": {"versions": 6},
    "uniform-staleness": {"clock": "uniform-staleness", "max_staleness": 3, "versions": 6},
}


def keyed(q: int = KEY_MODULI[0], **changes: Any) -> SimulationConfig:
    return tiny_config(method="basecagg", masks="keys", modulus=q, **changes)


def model_of(config: SimulationConfig) -> Vector:
    return simulate(config, task=tiny_task()).model


# --- the same coins for both forms -----------------------------------------------------------------


def tie_coins_to_updates(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Rounding and errors follow from the update that they are for. The seeds of masks stay as they are."""

    def hide(
        update: Vector, seed: bytes, tier: int, p: ProtocolParameters, mask: KeyStream
    ) -> tuple[Words, int]:
        own = hashlib.sha256(np.asarray(update, np.float32).tobytes()).digest()
        mask._errors = WordStream(derive_seed(own, "errors"))
        return masking.hide(update, own, tier, p, mask)

    monkeypatch.setattr(module, "hide", hide)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("q", KEY_MODULI)
def test_the_arithmetic_form_opens_the_machines_numbers_to_the_last_bit(
    q: int, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {}
    for form, module in (("full", contributor_module), ("arithmetic", field_sums)):
        with monkeypatch.context() as patched:
            tie_coins_to_updates(patched, module)
            models[form] = model_of(keyed(q, cryptography=form, **CLOCKS[clock]))
    assert np.array_equal(models["full"], models["arithmetic"])
    others = model_of(keyed(q, cryptography="arithmetic", **CLOCKS[clock]))
    assert not np.array_equal(others, models["full"])


# --- masks cancel ----------------------------------------------------------------------------------


class ErrorsAlone:
    """What is left of a mask when the product of a and the key is taken off."""

    def __init__(self, fresh: bytes, q: int) -> None:
        self._coins, self._q = WordStream(derive_seed(fresh, "errors")), q

    def draw(self, n: int, out: Words | None = None) -> Words:
        errors = np.bitwise_count(self._coins.draw(n)).astype(np.int64) - 16
        return (errors % self._q).astype(np.uint32)


class Nothing:
    def draw(self, n: int, out: Words | None = None) -> Words:
        return np.zeros(n, np.uint32)


def leave_masks_out(
    monkeypatch: pytest.MonkeyPatch, left: Callable[[bytes, ProtocolParameters], Any]
) -> None:
    """Uploads have nothing but `left` of a mask, and nothing is taken off a sum."""
    monkeypatch.setattr(field_sums, "mask_of", lambda seed, fresh, epoch, p: left(fresh, p))
    monkeypatch.setattr(field_sums, "masks_of", lambda shared, epoch, p: Nothing())


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("q", KEY_MODULI)
def test_masks_cancel_to_the_last_bit_and_errors_stay(
    q: int, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = keyed(q, cryptography="arithmetic", **CLOCKS[clock])
    masked = model_of(config)
    with monkeypatch.context() as patched:
        leave_masks_out(patched, lambda fresh, p: ErrorsAlone(fresh, p.field_size))
        assert np.array_equal(model_of(config), masked)
    with monkeypatch.context() as patched:
        leave_masks_out(patched, lambda fresh, p: Nothing())
        assert not np.array_equal(model_of(config), masked)


def test_one_wrong_word_of_the_keys_sum_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = keyed(cryptography="arithmetic", **CLOCKS["uniform-staleness"])
    masked, real = model_of(config), field_sums.masks_of

    def wrong(shared: Words, epoch: bytes, p: ProtocolParameters) -> Any:
        one = np.zeros_like(shared)
        one[7] = 1
        return real(PrimeField(p.field_size).weighted_sum([shared, one], [1, 1]), epoch, p)

    monkeypatch.setattr(field_sums, "masks_of", wrong)
    assert not np.allclose(model_of(config), masked, atol=1.0)
