"""Protection basecagg-dp, its field arithmetic only: contributors' ledgers, noise and weights, and the bound.

Every contributor's share of the noise is drawn by itself, by the code that contributors run, so sums have the
distribution that they have in a federation. What opened sums had on top of the updates is measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.baselines.local_noise import clipped
from basecagg.maths.quantization import dequantize
from basecagg.maths.randomness import Words
from basecagg.planning.budget import hidden_lie
from basecagg.protocol.masking import hide, hide_with_noise
from basecagg.protocol.messages import MaskName
from basecagg.protocol.opening import Opened
from basecagg.protocol.recomputation import within_bound
from basecagg.schedules.schedule import Vector
from basecagg.simulation.aggregation import Beginning, seed_of, user_number
from basecagg.simulation.arithmetic import ArithmeticAggregation
from basecagg.simulation.metering import MeteredLoopback
from basecagg.simulation.spending import RunLedgers


class PrivateArithmetic(ArithmeticAggregation):
    """Hides updates as contributors with a budget do. Attackers hide what they like, without noise."""

    def _wire(self, beginning: Beginning) -> MeteredLoopback:
        network, state = super()._wire(beginning), beginning.state
        mechanism = self._parameters.mechanism
        assert mechanism is not None
        self._mechanism = mechanism
        p = self._parameters
        largest = p.room_for_sum / (2 * p.buffer_size * p.update_levels)
        self._unbounded = replace(p, privacy=None, clip=largest)  # what an attacker goes by
        self._ledgers = RunLedgers(mechanism, state)
        self._told: dict[int, int] = dict(state.get("told", {}))
        self.noise: dict[str, float] = {"elements": 0, "squared": 0.0, **state.get("noise", {})}
        """What sums had on top of Σ s·Δ so far, element by element, in units of an update."""
        return network

    def affords(self, user: int) -> bool:
        """As its ledger says."""
        return self._ledgers.affords(user)

    @property
    def epsilon(self) -> float | None:
        """The largest ε that a user has spent so far."""
        return self._ledgers.epsilon

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Pay for the update, then send it; what is too old is not paid for."""
        if self.server.head_of(base_version) is None:
            self.counts["updates too stale"] += 1
            return
        staleness = self.server.version - base_version
        if not self._ledgers.pay(user, staleness):
            self.counts["updates beyond the budget"] += 1
            return
        self._told[user] = staleness
        super().submit(user, update, base_version)

    def _sum_up(self, updates: Mapping[MaskName, Vector], weights: list[float]) -> Opened:
        """Σ s(τ̂)·Δ and noise; not to be applied if a member must have lied."""
        p, total = self._parameters, self._total(updates, weights)
        told = [self._told.pop(user_number(name.contributor)) for name in updates]
        own = tuple(map(self._mechanism.weight, told))
        opened = dequantize(total, p.update_levels, p.modulus)
        if not self._config.attackers:
            noise = opened - self._exact(updates, own)
            self.noise["elements"] += noise.size
            self.noise["squared"] += float((noise**2).sum())
        return Opened(opened, own, applied=within_bound(p, total, told))

    def _exact(
        self, updates: Mapping[MaskName, Vector], weights: tuple[float, ...]
    ) -> npt.NDArray[np.float64]:
        limit = self._mechanism.privacy.longest
        short = np.stack([clipped(update.astype(np.float64), limit) for update in updates.values()])
        exact: npt.NDArray[np.float64] = np.asarray(weights) @ short
        return exact

    def _hide(self, name: MaskName, update: Vector) -> Words:
        seed, user = seed_of(self._config.seed, name), user_number(name.contributor)
        if user < self._config.attackers:
            return hide(self._lie(update), seed, self._unbounded)[0]
        fresh = hashlib.sha256(f"{self._config.seed}/{name.key}/noise".encode()).digest()
        return hide_with_noise(update, seed, self._told[user], fresh, self._parameters)

    def _lie(self, update: Vector) -> Vector:
        """Scaled already, or, with factor 0, as long as a sum's bound hides, and backwards."""
        if self._config.attack_factor:
            return update
        bound = math.sqrt(self._mechanism.squared_change(0)) / self._mechanism.levels
        length = hidden_lie(self._mechanism) * bound
        return update * np.float32(-length / max(float(np.linalg.norm(update)), 1e-30))

    def totals(self, updates: int) -> dict[str, Any]:
        """As others, and the noise that was measured."""
        return super().totals(updates) | {"opened noise": self.noise}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        own = {"told": self._told, "noise": self.noise, **self._ledgers.state()}
        return super().state() | own
