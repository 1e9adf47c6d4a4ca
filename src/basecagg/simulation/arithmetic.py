"""Protection basecagg, its field arithmetic only, for large sweeps: quantise, mask, encode, sum, decode.

What contributors, holders and server compute is computed here in one place. There are no messages between
them, so nothing is sealed, signed or refused; simulated time and bytes are charged as if there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from basecagg.costs import Prices, shares_bytes
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import dequantize
from basecagg.maths.randomness import Words
from basecagg.protocol.masking import hide, shares_of
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, seed_of, travel
from basecagg.simulation.masked import MaskedAggregation


class ArithmeticAggregation(MaskedAggregation):
    """Hides the updates of a full buffer under masks, and opens their sum with the shares of U holders."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        p = self._parameters = beginning.config.protocol_parameters(beginning.model.size)
        self._prices = Prices(p, cryptography=False)
        self._field = PrimeField(p.modulus)
        self._code = MaskCode(p.num_holders, p.recovery_threshold, p.max_colluders, p.modulus)
        return Weighing.of(p), p.least_per_version

    def prepare(self, user: int) -> float:
        """Deal one mask: what it costs is charged now, the work is done when the sum is opened."""
        size = shares_bytes(self._parameters, sealed=False)
        self.network.meter.bytes_sent["Shipment"] += size
        return self._prices.deal() + self._devices.upload(size)

    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[int]) -> Opened:
        """Σ s̄·Δ"""
        p, total = self._parameters, self._total(updates, weights)
        return Opened(dequantize(total, p.update_levels, p.modulus), tuple(map(float, weights)))

    def _total(self, updates: Mapping[MaskName, Vector], weights: list[int]) -> Words:
        """Σ s̄·Δ̃ − Σ s̄·z in the field (Eq. server_decode)."""
        masked = [self._hide(name, update) for name, update in updates.items()]
        masks = self._open_masks(updates, weights)
        total = self._field.sub(self._field.weighted_sum(masked, weights), masks)
        return total[: self._parameters.model_size]

    def _hide(self, name: MaskName, update: Vector) -> Words:
        masked, clipped = hide(update, seed_of(self._config.seed, name), self._parameters)
        self.counts["clipped elements"] += clipped
        return masked

    def _open_masks(self, names: Iterable[MaskName], weights: list[int]) -> Words:
        """The weighted sum of the masks: every holder adds up its shares, and U of the sums are decoded."""
        p = self._parameters
        holders = range(p.num_holders - p.recovery_threshold, p.num_holders)
        seeds = (seed_of(self._config.seed, name) for name in names)
        # The holders do the same with their rows, so they do it all together.
        rows = [shares_of(seed, self._code, p)[holders.start :].reshape(-1) for seed in seeds]
        sums = self._field.weighted_sum(rows, weights).reshape(len(holders), p.share_size)
        return self._code.decode(dict(zip(holders, sums, strict=True)))

    def _opening_seconds(self) -> float:
        work = self._prices.mask() + self._prices.open() + self._prices.answer()
        return work + travel(self._parameters, self._devices)

    def upload_bytes(self, model_size: int) -> int:
        """Bytes of one upload."""
        return 4 * self._parameters.padded_size
