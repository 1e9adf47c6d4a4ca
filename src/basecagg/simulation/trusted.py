"""Central differential privacy: a server that sees every update is trusted to add noise to their sums.

What is to be compared with sums that nobody has to be trusted with: the noise of σ = z·C is added once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from basecagg.planning.budget import noise_of
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened
from basecagg.protocol.weighing import Weighing
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning
from basecagg.simulation.arithmetic import SummedHere
from basecagg.simulation.purposes import NOISE


class TrustedAggregation(SummedHere):
    """A plain server whose sums have noise. Users have clipped their updates."""

    def _weighing(self, beginning: Beginning) -> tuple[Weighing, int]:
        """By s(τ) of private sums, to be compared with them."""
        weighing, least = super()._weighing(beginning)
        return replace(weighing, staleness=beginning.config.contributor_weight), least

    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[float]) -> Opened:
        """Σ s·Δ + N(0, σ²)."""
        generator = np.random.default_rng((self._config.seed, NOISE, self.server.version))
        total = np.zeros(self.model.size)
        for weight, update in zip(weights, updates.values(), strict=True):
            total += weight * update
        noise = generator.normal(0, noise_of(self._config) * self._config.dp_clip_norm, total.size)
        return Opened(total + noise, tuple(weights))
