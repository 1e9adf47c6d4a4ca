"""Central differential privacy: a server that sees every update is trusted to add noise to their sums.

What is to be compared with sums that nobody has to be trusted with: the noise of σ = z·C is added once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from basecagg.protections.budget import noise_of
from basecagg.protocol.messages import History
from basecagg.protocol.opening import Opened, Step
from basecagg.protocol.plain import PlainOpening
from basecagg.protocol.records import BufferedUpdate
from basecagg.protocol.weighing import Weighing
from basecagg.simulation.aggregation import Beginning, PlainAggregation
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.purposes import NOISE
from basecagg.storage.memory import MemoryStore


class NoisyOpening(PlainOpening):
    """Sums updates in clear, and adds noise to what it says of them."""

    def __init__(
        self, size: int, weighing: Weighing, store: MemoryStore, config: SimulationConfig
    ) -> None:
        """Noise as the configuration says; a simulation draws it from its seed."""
        super().__init__(size, weighing, store)
        self._deviation = noise_of(config) * config.dp_clip_norm
        self._seed = config.seed

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Step:
        """Σ s·Δ + N(0, σ²)."""
        effects, opened = super().begin(history, members)
        assert isinstance(opened, Opened)
        generator = np.random.default_rng((self._seed, NOISE, history.last))
        noise = generator.normal(0, self._deviation, self._model_size)
        return effects, replace(opened, weighted_sum=opened.weighted_sum + noise)


class TrustedAggregation(PlainAggregation):
    """A plain server whose sums have noise. Users have clipped their updates."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        """By s(τ) of private sums, to be compared with them."""
        weighing, least = super()._weighing(beginning)
        return replace(weighing, staleness=beginning.config.contributor_weight), least

    def _opening(
        self, beginning: Beginning, weighing: Weighing, store: MemoryStore
    ) -> NoisyOpening:
        return NoisyOpening(beginning.model.size, weighing, store, beginning.config)
