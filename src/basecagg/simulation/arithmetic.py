"""Protection basecagg, its field arithmetic only, for large sweeps: quantise, mask, encode, sum, decode.

What contributors, holders and server compute is computed here in one place. There are no messages between
them, so nothing is sealed, signed or refused; simulated time and bytes are charged as if there were.
"""

from __future__ import annotations

from collections.abc import Sequence

from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import dequantize
from basecagg.maths.randomness import Words
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.masking import hide, shares_of
from basecagg.protocol.messages import History, MaskName
from basecagg.protocol.opening import Opened, Step
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.records import BufferedUpdate
from basecagg.protocol.weighing import Weighing
from basecagg.simulation.aggregation import Beginning, PlainAggregation, seed_of, travel
from basecagg.simulation.prices import Prices
from basecagg.storage.memory import MemoryStore


class MaskedOpening(PlainOpening):
    """Hides the updates of a full buffer under masks, and opens their sum with the shares of U holders."""

    def __init__(
        self, parameters: ProtocolParameters, weighing: Weighing, store: MemoryStore, seed: int
    ) -> None:
        """Take updates in clear; the masks follow from the run's seed."""
        p = parameters
        super().__init__(p.model_size, weighing, store)
        self._parameters = p
        self._field = PrimeField(p.modulus)
        self._code = MaskCode(p.num_users, p.recovery_threshold, p.max_colluders, p.modulus)
        self._seed = seed
        self.clipped = 0

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Step:
        """Σ s̄·Δ̃ − Σ s̄·z (Eq. server_decode), at once."""
        weights = [int(self._weight(history.last, member)) for member in members]
        masked = [self._hide(member.name) for member in members]
        masks = self._open_masks([member.name for member in members], weights)
        total = self._field.sub(self._field.weighted_sum(masked, weights), masks)
        p = self._parameters
        values = dequantize(total[: p.model_size], p.update_levels, p.modulus)
        return [], Opened(values, tuple(map(float, weights)))

    def _open_masks(self, names: Sequence[MaskName], weights: list[int]) -> Words:
        """The weighted sum of the masks: every holder adds up its shares, and U of the sums are decoded."""
        p = self._parameters
        holders = range(p.num_users - p.recovery_threshold, p.num_users)
        shares = [shares_of(seed_of(self._seed, name), self._code, p) for name in names]
        # The holders do the same with their rows, so they do it all together.
        rows = [each[holders.start :].reshape(-1) for each in shares]
        sums = self._field.weighted_sum(rows, weights).reshape(len(holders), p.share_size)
        return self._code.decode(dict(zip(holders, sums, strict=True)))

    def _hide(self, name: MaskName) -> Words:
        masked, clipped = hide(self._read(name), seed_of(self._seed, name), self._parameters)
        self.clipped += clipped
        return masked


class ArithmeticAggregation(PlainAggregation):
    """Takes updates as a plain server does, and opens them as all parties of BASecAgg would."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        self._parameters = beginning.config.protocol_parameters(beginning.model.size)
        self._prices = Prices(self._parameters, cryptography=False)
        return Weighing.of(self._parameters), self._parameters.least_per_version

    def _opening(
        self, beginning: Beginning, weighing: Weighing, store: MemoryStore
    ) -> MaskedOpening:
        self._masks = MaskedOpening(self._parameters, weighing, store, beginning.config.seed)
        return self._masks

    def prepare(self, user: int) -> float:
        """Deal one mask: what it costs is charged now, the work is done when the sum is opened."""
        size = 4 * self._parameters.num_users * self._parameters.share_size
        self.network.meter.bytes_sent["Shipment"] += size
        return self._prices.deal() + self._devices.upload(size)

    def _collect_news(self) -> None:
        super()._collect_news()
        self.counts["clipped elements"] += self._masks.clipped
        self._masks.clipped = 0

    def _opening_seconds(self) -> float:
        work = self._prices.mask() + self._prices.open() + self._prices.answer()
        return work + travel(self._parameters, self._devices)

    def upload_bytes(self, model_size: int) -> int:
        """Bytes of one upload."""
        return 4 * self._parameters.padded_size
