"""Devices: how fast each user computes and communicates. Whether it comes back is the clock's to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from basecagg.simulation.config import SimulationConfig

_BITS = 8


@dataclass(frozen=True, eq=False)
class Devices:
    """The users' devices. All times are in simulated seconds."""

    config: SimulationConfig
    step_seconds: npt.NDArray[np.float64]

    @classmethod
    def draw(cls, config: SimulationConfig, generator: np.random.Generator) -> Devices:
        """Draw a device for every user."""
        users, spread = config.users, config.speed_spread
        normal = generator.normal(size=users)
        factors = {
            "constant": np.ones(users),
            "uniform": generator.uniform(1, 1 + 2 * spread, users),
            # |N(0, 1)| on top of the fastest device: most are quick, a few are very slow (as in FedBuff).
            "half-normal": 1 + spread * np.abs(normal),
            "log-normal": np.exp(spread * normal),
        }
        return cls(config, config.seconds_per_step * factors[config.speed])

    def training(self, user: int, steps: int) -> float:
        """Time to take so many SGD steps."""
        return float(self.step_seconds[user]) * steps

    def upload(self, size: float) -> float:
        """Time to send so many bytes."""
        return self.config.latency + _BITS * size / (self.config.up_mbps * 1e6)

    def download(self, size: float) -> float:
        """Time to receive so many bytes."""
        return self.config.latency + _BITS * size / (self.config.down_mbps * 1e6)
