"""A tuned run: a chain of epochs, each with the clip B and levels that the last one's reports gave.

Every update carries a report of its size (`maths.ranges`), summed with it and known only as that sum. When the
sums of an epoch say enough, and its parameters do not fit, the next epoch begins with parameters that do: new
keys, new masks, versions that go on. What was trained in the old epoch and has not been summed is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from basecagg.learning import derive_seed
from basecagg.maths.randomness import Seed
from basecagg.maths.randomness import derive_seed as derive_secret
from basecagg.maths.ranges import REPORT_SIZE, RangeTally, fitting, with_report, without_report
from basecagg.protocol.effects import Released
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig

_EPOCH_SEED = 0xE90C


@dataclass(frozen=True)
class TunedEpoch:
    """The version from which on these parameters were used."""

    first_version: int
    clip: float
    """B"""
    update_levels: int
    """c_l"""


class Tuner:
    """Adds reports to updates, learns from opened sums, and chooses the next epoch's parameters."""

    def __init__(self, config: SimulationConfig, state: Mapping[str, Any]) -> None:
        """Begin with the configuration's B and c_l, or go on from a saved state."""
        self._config = config
        self._secret = Seed(config.seed.to_bytes(32, "big"))
        self._tally = RangeTally(**state.get("tally", {}))
        first = asdict(TunedEpoch(0, config.clip, config.update_levels))
        self.epochs = [TunedEpoch(**epoch) for epoch in state.get("epochs", [first])]

    @property
    def config(self) -> SimulationConfig:
        """The configuration with the present epoch's parameters, and randomness of its own."""
        number, epoch = len(self.epochs) - 1, self.epochs[-1]
        if not number:
            return self._config
        return replace(
            self._config,
            clip=epoch.clip,
            update_levels=epoch.update_levels,
            allow_wraparound=False,
            seed=derive_seed(self._config.seed, _EPOCH_SEED, number),
        )

    def extended(self, model: Vector) -> Vector:
        """The model with room for reports behind it."""
        return np.concatenate([model, np.zeros(REPORT_SIZE, model.dtype)])

    def without_report(self, model: Vector) -> Vector:
        """The model itself."""
        return without_report(model)

    def reported(self, user: int, update: Vector) -> Vector:
        """The update with its report."""
        secret = derive_secret(self._secret, f"user-{user}")
        return with_report(update, self.epochs[-1].update_levels, secret)

    def learn(self, step: Released) -> None:
        """Count the reports in a sum that was opened."""
        self._tally.add(step.weighted_sum, step.weights, self.epochs[-1].update_levels)

    def retune(self, version: int, model_size: int) -> bool:
        """Begin another epoch with this version, if the sums say enough and B and c_l do not fit."""
        octave, present = self._tally.octave(), self.epochs[-1]
        if octave is None or version - present.first_version < self._config.tune_after:
            return False
        parameters = self.config.protocol_parameters(model_size)
        found = fitting(parameters, octave)
        self._tally = RangeTally()
        if found == parameters:
            return False
        self.epochs.append(TunedEpoch(version, found.clip, found.update_levels))
        return True

    def totals(self) -> dict[str, Any]:
        """Which epochs there were."""
        return {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return self.totals() | {"tally": asdict(self._tally)}
