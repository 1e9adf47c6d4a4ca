"""FedAsync: every update moves the model at once, the older the less (Xie, Koyejo and Gupta 2019)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from basecagg.errors import ParameterError
from basecagg.maths.staleness import StalenessFunction
from basecagg.schedules.schedule import Idle, StartingPoint, Vector


class Immediate:
    """x ← (1 − α_τ)·x + α_τ·x_i with α_τ = α·s(τ). There is no sum in which an update could hide."""

    def __init__(
        self,
        model: Vector,
        concurrency: int,
        mixing: float,
        staleness: StalenessFunction,
        max_staleness: int,
    ) -> None:
        """Keep `concurrency` users busy and mix with α = `mixing`; older than τ_max is dropped."""
        if not 0 < mixing <= 1:
            raise ParameterError(f"mixing α = {mixing} is outside 0…1", rule="0 < α ≤ 1")
        self.version = 0
        self.model = model
        self._concurrency = concurrency
        self._mixing = mixing
        self._staleness = staleness
        self._max_staleness = max_staleness

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Fill up to C."""
        return idle.draw(self._concurrency - len(running))

    def starting_point(self, user: int) -> StartingPoint:
        """The newest model."""
        return StartingPoint(self.version, self.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Mix the user's model x_i = x^(t_i) − Δ into the global one."""
        tau = self.version - start.version
        if tau > self._max_staleness:
            return
        weight = self._mixing * self._staleness(tau)
        local = start.model.astype(np.float64) - update
        mixed = (1 - weight) * self.model.astype(np.float64) + weight * local
        self.model = mixed.astype(self.model.dtype)
        self.version += 1

    def state(self) -> dict[str, Any]:
        """The model and its version."""
        return {"version": self.version, "model": self.model}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.version, self.model = state["version"], state["model"]
