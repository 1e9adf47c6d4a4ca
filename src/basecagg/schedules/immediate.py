"""FedAsync: every update moves the model at once, the older the less (Xie, Koyejo and Gupta 2019)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from basecagg.maths.staleness import StalenessFunction
from basecagg.schedules.schedule import Idle, StartingPoint, Vector


@dataclass(eq=False)
class Immediate:
    """x ← (1 − α_τ)·x + α_τ·x_i with α_τ = α·s(τ). There is no sum in which an update could hide."""

    model: Vector
    concurrency: int
    """C"""
    mixing: float
    """α"""
    staleness: StalenessFunction
    max_staleness: int
    """τ_max: what is older is dropped."""
    version: int = 0

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Fill up to C."""
        return idle.draw(self.concurrency - len(running))

    def starting_point(self, user: int) -> StartingPoint:
        """The newest model."""
        return StartingPoint(self.version, self.model)

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Mix the user's model x_i = x^(t_i) − Δ into the global one."""
        tau = self.version - start.version
        if tau > self.max_staleness:
            return
        weight = self.mixing * self.staleness(tau)
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
