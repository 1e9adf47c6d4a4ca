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
from basecagg.maths.randomness import Words, WordStream
from basecagg.protocol.messages import History, MaskName
from basecagg.protocol.opening import Opened, Step
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.records import BufferedUpdate
from basecagg.protocol.weighing import Weighing
from basecagg.simulation.aggregation import Beginning, PlainAggregation, seed_of
from basecagg.simulation.config import SimulationConfig
from basecagg.storage.memory import MemoryStore

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


class FieldOpening(PlainOpening):
    """Clips, quantises, sums mod q and takes the sign back, as contributors, holders and server would."""

    def __init__(
        self, config: SimulationConfig, size: int, weighing: Weighing, store: MemoryStore
    ) -> None:
        """Take updates in clear; they are quantised when they are summed."""
        super().__init__(size, weighing, store)
        self._field = PrimeField(config.modulus)
        self._config = config
        self.errors = FieldErrors()

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Step:
        """φ⁻¹(Σ s̄·φ(c_l·Q(Δ))) / c_l, Eqs. (def_w_bar) and (global_update), at once."""
        levels, modulus = self._config.update_levels, self._config.modulus
        weights = [int(self._weight(history.last, member)) for member in members]
        updates = [self._clipped(member.name) for member in members]
        rows = [
            quantize(update, levels, modulus, self._coins(member.name), wrap=True)
            for update, member in zip(updates, members, strict=True)
        ]
        total = signed(self._field.weighted_sum(rows, weights), modulus) / levels
        exact = np.average(np.stack(updates).astype(np.float64), axis=0, weights=weights)
        count = sum(weights)
        self.errors.add(exact, total / count, (modulus - 1) / (2 * levels * count))
        return [], Opened(total, tuple(map(float, weights)))

    def _clipped(self, name: MaskName) -> npt.NDArray[np.floating[Any]]:
        update, count = clip_update(self._read(name), self._config.clip)
        self.errors.clipped += count
        return update

    def _coins(self, name: MaskName) -> Words:
        return WordStream(seed_of(self._config.seed, name)).draw(self._model_size)


class WrappingAggregation(PlainAggregation):
    """Protection basecagg with `allow_wraparound`: what is opened, without what protects it."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        parameters = beginning.config.protocol_parameters(beginning.model.size)
        return Weighing.of(parameters), parameters.least_per_version

    def _opening(
        self, beginning: Beginning, weighing: Weighing, store: MemoryStore
    ) -> FieldOpening:
        opening = FieldOpening(beginning.config, beginning.model.size, weighing, store)
        self.errors = opening.errors
        """What the field did so far."""
        return opening

    def totals(self, updates: int) -> dict[str, Any]:
        """As others, and what the field did."""
        return super().totals(updates) | {"field errors": asdict(self.errors)}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return super().state() | {"errors": asdict(self.errors)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        vars(self.errors).update(state["errors"])
