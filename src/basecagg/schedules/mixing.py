"""Schedules that mix models: FedAsync one by one, FedAT by tiers. They sum no updates that could be masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.maths.staleness import StalenessFunction
from basecagg.schedules.schedule import Idle, StartingPoint, Vector


@dataclass(eq=False)
class Immediate:
    """FedAsync: every update moves the model at once, the older the less (Xie, Koyejo and Gupta 2019).

    x ← (1 − α_τ)·x + α_τ·x_i with α_τ = α·s(τ). There is no sum in which an update could hide.
    """

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


def split_by_speed(durations: Sequence[float], tiers: int) -> list[int]:
    """The tier of every user, 0 the fastest, all of nearly the same size."""
    tier_of = [0] * len(durations)
    for rank, user in enumerate(np.argsort(durations, kind="stable")):
        tier_of[user] = rank * tiers // len(durations)
    return tier_of


def tier_weights(steps: Sequence[int]) -> npt.NDArray[np.float64]:
    """T_{M+1−m}/T for every tier m; equal weights before the first step."""
    mirrored = np.asarray(steps[::-1], dtype=np.float64)
    total = mirrored.sum()
    return mirrored / total if total else np.full(len(steps), 1 / len(steps))


class Tiered:
    """FedAT: synchronous rounds within tiers of users of like speed, an asynchronous average across the tiers.

    Slow tiers step rarely, so their models weigh more: tier m has the weight T_{M+1−m}/T, where T_m counts the
    steps of tier m (Chai et al. 2020, Eq. 3).
    """

    def __init__(self, model: Vector, tier_of: Sequence[int], cohort: int) -> None:
        """Each tier takes a step with `cohort` updates, or with all its users if it has fewer."""
        self.version = 0
        self.model = model
        self._tier_of = tier_of
        count = max(tier_of) + 1
        self._cohorts = [min(cohort, tier_of.count(tier)) for tier in range(count)]
        self._steps = [0] * count
        self._models = [model] * count
        self._starts: list[StartingPoint] = [StartingPoint(0, model, 0)] * count
        self._arrived: list[dict[int, Vector]] = [{} for _ in range(count)]

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Complete the cohort of every tier with users that have not been in its round."""
        busy = Counter(self._tier_of[user] for user in running)
        chosen: list[int] = []
        for tier, arrived in enumerate(self._arrived):
            missing = self._cohorts[tier] - len(arrived) - busy[tier]
            chosen += idle.draw(missing, partial(self._is_free, tier))
        return chosen

    def _is_free(self, tier: int, user: int) -> bool:
        return self._tier_of[user] == tier and user not in self._arrived[tier]

    def starting_point(self, user: int) -> StartingPoint:
        """The global model as it was when the tier's round began."""
        return self._starts[self._tier_of[user]]

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """Complete the tier's round if it can be, and average the tiers anew."""
        tier = self._tier_of[user]
        if start.round != self._steps[tier]:
            return
        self._arrived[tier][user] = update
        if len(self._arrived[tier]) == self._cohorts[tier]:
            self._step(tier, start)

    def _step(self, tier: int, start: StartingPoint) -> None:
        mean = np.mean(np.asarray(list(self._arrived[tier].values()), np.float64), axis=0)
        self._models[tier] = start.model - mean
        self._steps[tier] += 1
        self._arrived[tier] = {}
        weights = tier_weights(self._steps)
        average = sum(w * model for w, model in zip(weights, self._models, strict=True))
        self.model = np.asarray(average).astype(start.model.dtype)
        self.version += 1
        self._starts[tier] = StartingPoint(self.version, self.model, self._steps[tier])

    def state(self) -> dict[str, Any]:
        """Every tier's model, steps and present round."""
        return {
            "version": self.version,
            "model": self.model,
            "models": self._models,
            "steps": self._steps,
            "arrived": [[list(each), list(each.values())] for each in self._arrived],
            "starts": [[start.version, start.model, start.round] for start in self._starts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.version, self.model = state["version"], state["model"]
        self._models, self._steps = list(state["models"]), list(state["steps"])
        self._arrived = [dict(zip(*each, strict=True)) for each in state["arrived"]]
        self._starts = [StartingPoint(*start) for start in state["starts"]]
