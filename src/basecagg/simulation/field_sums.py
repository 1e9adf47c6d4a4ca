"""What all parties do with a full buffer, done in one place: protection basecagg for large sweeps.

There are no messages between the parties, so nothing is sealed, signed or refused; simulated time and bytes are
charged as if there were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from basecagg.costs import Prices, share_bytes, shares_bytes
from basecagg.maths.key_masks import unmask_with
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import clip_update, quantize, signed
from basecagg.maths.randomness import Words, WordStream
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.masking import hide, mask_of, masks_of, shares_of
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened, Outcome, sum_of_numbers
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.beginning import Beginning, Devices, seed_of
from basecagg.simulation.private_sums import SIMULATED, PrivateSums, fresh_seed
from basecagg.simulation.sums import Reals, Sums, Updates, in_clear


class FieldSums(Sums):
    """Protections basecagg and lightsecagg, their field arithmetic only.

    Hides the updates of a full buffer under masks, and opens their sum with the shares of U holders. Where sums
    are private, `PrivateSums` says how updates are hidden and what they cost.
    """

    def __init__(self, beginning: Beginning) -> None:
        """Build the code of this epoch."""
        config = beginning.config
        p = self._parameters = config.protocol_parameters(beginning.model.size)
        self.once = p.once_per_version
        self._prices = Prices(p, cryptography=False)
        self._field = PrimeField(p.field_size)
        self._code = MaskCode(p.num_holders, p.recovery_threshold, p.max_colluders, p.field_size)
        self._private = PrivateSums(config, p, beginning.state) if p.mechanism else None
        network = in_clear(beginning, self.sum_up, Weighing.of(p), p.least_per_version, masked=True)
        super().__init__(beginning, network)

    # --- before an update is there --------------------------------------------------------------

    def affords(self, user: int) -> bool:
        """As its ledger says."""
        return self._private is None or self._private.affords(user)

    def prepare(self, user: int) -> float:
        """Deal one mask: what it costs is charged now, the work is done when the sum is opened.

        A mask that comes with its update is paid for with the upload.
        """
        size = shares_bytes(self._parameters, sealed=False)
        self._meter.bytes_sent["Shipment"] += size
        if self._parameters.one_visit:
            return 0.0
        return self._prices.deal() + self._devices.upload(size)

    @property
    def upload_bytes(self) -> int:
        """Bytes of one upload, with the shares of its mask if they come with it."""
        p = self._parameters
        shares = shares_bytes(p, sealed=False) if p.one_visit else 0
        return p.word_bytes * p.padded_size + shares

    # --- from updates to a sum ------------------------------------------------------------------

    def send(self, user: int, update: Vector, base_version: int) -> bool:
        """Pay for the update where sums are private, then send it; what is too old is not paid for."""
        if self._private is not None:
            if self.server.head_of(base_version) is None:
                return super().send(user, update, base_version)
            if not self._private.pay(user, self.server.version - base_version):
                self._counts["updates beyond the budget"] += 1
                return False
        return super().send(user, update, base_version)

    def sum_up(self, updates: Updates, weights: list[float]) -> Outcome:
        """Σ s·Δ"""
        p, factors = self._parameters, in_field(self._parameters, weights)
        ages = zip(updates.items(), weights, strict=True)
        masked = [self._hide(name, update, weight) for (name, update), weight in ages]
        masks = masks_of(self._open_masks(updates, factors), SIMULATED, p)
        # Σ s̄·Δ̃ − Σ s̄·z in the field (Eq. server_decode).
        total = self._field.weighted_sum(masked, factors)[: p.model_size]
        numbers, _ = unmask_with(masks, total, p.update_levels, p.field_size)
        if self._private is not None:
            return self._private.opened(total, numbers, updates)
        return Opened(numbers, tuple(weights))

    def _hide(self, name: MaskName, update: Vector, weight: float) -> Words:
        seed = seed_of(self._config.seed, name)
        if self._private is not None:
            return self._private.hide(name, update, seed)
        p = self._parameters
        mask = mask_of(seed, fresh_seed(self._config.seed, name), SIMULATED, p)
        masked, clipped = hide(update, seed, own_tier(p, weight), p, mask)
        self._counts["clipped elements"] += clipped
        return masked

    def _open_masks(self, names: Iterable[MaskName], weights: list[int]) -> Words:
        """The weighted sum of the masks, or of their keys.

        Every holder adds up its shares, and U of the sums are decoded.
        """
        p = self._parameters
        holders = range(p.num_holders - p.recovery_threshold, p.num_holders)
        seeds = (seed_of(self._config.seed, name) for name in names)
        # The holders do the same with their rows, so they do it all together.
        rows = [shares_of(seed, self._code, p)[holders.start :].reshape(-1) for seed in seeds]
        sums = self._field.weighted_sum(rows, weights).reshape(len(holders), p.share_size)
        return self._code.decode(dict(zip(holders, sums, strict=True)))

    def opening_seconds(self) -> float:
        """Work and travel, by the list of prices."""
        rows = self._config.buckets
        work = self._prices.upload() + rows * (self._prices.open() + self._prices.answer())
        return work + travel(self._parameters, self._devices, rows)

    # --- what is known of it --------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far."""
        return self._private.epsilon if self._private else None

    def totals(self) -> dict[str, Any]:
        """The noise that was measured in private sums."""
        return {"opened noise": self._private.noise} if self._private else {}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | (self._private.state() if self._private else {})


def own_tier(parameters: ProtocolParameters, weight: float) -> int:
    """t of an own weight 2^−t; 0 where the field weighs."""
    return round(-math.log2(weight)) if parameters.weights == "own" else 0


def in_field(parameters: ProtocolParameters, weights: list[float]) -> list[int]:
    """By what the field multiplies updates with these weights."""
    return [1 if parameters.weights == "own" else int(weight) for weight in weights]


def travel(parameters: ProtocolParameters, devices: Devices, rows: int = 1) -> float:
    """Simulated time of questions and answers on the wire; an answer has a row for each bucket.

    Also of shares and receipts, if they come after the upload.
    """
    questions = (2 if parameters.consistency == "certified" else 1) + parameters.one_visit
    answer = devices.upload(rows * share_bytes(parameters))
    return (2 * questions - 1) * devices.config.latency + answer


class WrappingSums(Sums):
    """What the field does to a sum when c_l is small or large: BASecAgg's quantisation, without its masks.

    Masks cancel to the last bit, so they change nothing here. No epoch accepts parameters with which a sum may
    wrap around; an experiment must, to show what that does. `errors` compares the mean updates Σ s̄·Δ / Σ s̄ of
    all steps so far with what they should have been, element by element: `clipped` elements of updates lay
    outside ±B, `wrapped` ones of sums beyond ±(q − 1)/2; errors are squared and added up, those of rounding
    apart from those of wrapping around, beside the exact mean updates' own squares.
    """

    def __init__(self, beginning: Beginning) -> None:
        """Quantise as the epoch's parameters say."""
        p = self._parameters = beginning.config.protocol_parameters(beginning.model.size)
        self.once = p.once_per_version
        self._field = PrimeField(p.field_size)
        counted = dict.fromkeys(("elements", "clipped", "wrapped"), 0)
        squares = dict.fromkeys(("rounding", "wraparound", "signal"), 0.0)
        self.errors: dict[str, float] = {
            **counted,
            **{f"squared_{name}": value for name, value in squares.items()},
            **beginning.state.get("errors", {}),
        }
        network = in_clear(beginning, self.sum_up, Weighing.of(p), p.least_per_version, masked=True)
        super().__init__(beginning, network)

    def sum_up(self, updates: Updates, weights: list[float]) -> Outcome:
        """φ⁻¹(Σ s̄·φ(c_l·Q(Δ))) / c_l, Eqs. (def_w_bar) and (global_update)."""
        p = self._parameters
        levels, modulus, factors = p.update_levels, p.field_size, in_field(p, weights)
        clipped = [
            np.ldexp(self._clipped(update), -own_tier(p, weight))
            for update, weight in zip(updates.values(), weights, strict=True)
        ]
        coins = [WordStream(seed_of(self._config.seed, name)) for name in updates]
        rows = [
            quantize(update, levels, modulus, stream.draw(update.size), wrap=True)
            for update, stream in zip(clipped, coins, strict=True)
        ]
        total = signed(self._field.weighted_sum(rows, factors), modulus) / levels
        count = math.fsum(weights)
        exact = sum_of_numbers((u.astype(np.float64) for u in clipped), factors, total.size) / count
        self._compare(exact, total / count, (modulus - 1) / (2 * levels * count))
        return Opened(total, tuple(weights))

    def _clipped(self, update: Vector) -> Vector:
        clipped, count = clip_update(update, self._config.clip)
        self.errors["clipped"] += count
        return clipped

    def _compare(self, exact: Reals, opened: Reals, limit: float) -> None:
        """Compare a step with what it should have been; beyond ±limit an element wraps."""
        wrapped = np.abs(exact) > limit
        squared = (opened - exact) ** 2
        found: Mapping[str, float] = {
            "elements": exact.size,
            "wrapped": int(wrapped.sum()),
            "squared_rounding": float(squared[~wrapped].sum()),
            "squared_wraparound": float(squared[wrapped].sum()),
            "squared_signal": float((exact**2).sum()),
        }
        for name, value in found.items():
            self.errors[name] += value

    def totals(self) -> dict[str, Any]:
        """What the field did."""
        return {"field errors": self.errors}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {"errors": self.errors}
