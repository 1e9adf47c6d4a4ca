"""What the field does to a sum when c_l is small or large: the quantisation of BASecAgg, without its masks.

Masks cancel to the last bit, so they change nothing here. No epoch accepts parameters with which a sum may wrap
around; an experiment must, to show what that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import clip_update, quantize, signed
from basecagg.maths.randomness import WordStream
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, seed_of
from basecagg.simulation.arithmetic import SummedHere

Reals = npt.NDArray[np.float64]


@dataclass
class FieldErrors:
    """What the field did to the mean updates Σ s̄·Δ / Σ s̄ of all steps so far, element by element."""

    elements: int = 0
    clipped: int = 0
    """Elements of updates that lay outside ±B."""
    wrapped: int = 0
    """Elements whose integer sum lay beyond ±(q − 1)/2."""
    squared_rounding: float = 0.0
    """Σ of squared errors of the elements that did not wrap."""
    squared_wraparound: float = 0.0
    """Σ of squared errors of those that did."""
    squared_signal: float = 0.0
    """Σ of squares of the exact mean updates."""

    def add(self, exact: Reals, opened: Reals, limit: float) -> None:
        """Compare a step with what it should have been; beyond ±limit an element wraps."""
        wrapped = np.abs(exact) > limit
        squared = (opened - exact) ** 2
        self.elements += exact.size
        self.wrapped += int(wrapped.sum())
        self.squared_rounding += float(squared[~wrapped].sum())
        self.squared_wraparound += float(squared[wrapped].sum())
        self.squared_signal += float((exact**2).sum())


class WrappingAggregation(SummedHere):
    """Clips, quantises, sums mod q and takes the sign back, as contributors, holders and server would."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        parameters = beginning.config.protocol_parameters(beginning.model.size)
        self._once = parameters.once_per_version
        self._field = PrimeField(parameters.modulus)
        self.errors = FieldErrors()
        """What the field did so far."""
        return Weighing.of(parameters), parameters.least_per_version

    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[float]) -> Opened:
        """φ⁻¹(Σ s̄·φ(c_l·Q(Δ))) / c_l, Eqs. (def_w_bar) and (global_update)."""
        whole = list(map(int, weights))
        levels, modulus = self._config.update_levels, self._config.modulus
        clipped = [self._clipped(update) for update in updates.values()]
        coins = [WordStream(seed_of(self._config.seed, name)) for name in updates]
        rows = [
            quantize(update, levels, modulus, stream.draw(update.size), wrap=True)
            for update, stream in zip(clipped, coins, strict=True)
        ]
        total = signed(self._field.weighted_sum(rows, whole), modulus) / levels
        count = sum(whole)
        exact = _weighted_sum(clipped, whole) / count
        self.errors.add(exact, total / count, (modulus - 1) / (2 * levels * count))
        return Opened(total, tuple(weights))

    def _clipped(self, update: Vector) -> Vector:
        clipped, count = clip_update(update, self._config.clip)
        self.errors.clipped += count
        return clipped

    def totals(self, updates: int) -> dict[str, Any]:
        """As others, and what the field did."""
        return super().totals(updates) | {"field errors": asdict(self.errors)}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {"errors": asdict(self.errors)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        vars(self.errors).update(state["errors"])


def _weighted_sum(updates: Sequence[Vector], weights: Sequence[int]) -> Reals:
    """Σ s̄·Δ in float64, one update at a time: a stack of them would leave the cache."""
    total = np.zeros(updates[0].size)
    for update, weight in zip(updates, weights, strict=True):
        total += np.multiply(update, float(weight), dtype=np.float64)
    return total
