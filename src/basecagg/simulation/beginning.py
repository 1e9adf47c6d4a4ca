"""What a run begins with: random streams, the users' names and devices, the first model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.maths.randomness import Seed, WordStream, derive_seed
from basecagg.protocol.messages import MaskName
from basecagg.protocol.step_rule import StepRule
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig
from basecagg.simulation.metering import Meter
from basecagg.storage.in_memory import MemoryStore, Snapshot

PARTITION, DEVICES, SCHEDULE, TRAINING, NOISE, LIES = range(6)
"""Purposes of a run's random streams, each its own child of the seed."""
_BITS = 8


def user_name(user: int) -> str:
    """The name of a simulated user."""
    return f"user-{user}"


def user_number(name: str) -> int:
    """The simulated user of this name."""
    return int(name.rpartition("-")[2])


@dataclass(frozen=True, eq=False)
class Devices:
    """How fast each user computes and communicates. All times are in simulated seconds."""

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
        """Time that a user takes for this number of SGD steps."""
        return float(self.step_seconds[user]) * steps

    def upload(self, size: float) -> float:
        """Time to send this number of bytes."""
        return self.config.latency + _BITS * size / (self.config.up_mbps * 1e6)

    def download(self, size: float) -> float:
        """Time to receive this number of bytes."""
        return self.config.latency + _BITS * size / (self.config.down_mbps * 1e6)


class Stores:
    """The stores of all parties, by name. Those of a checkpoint are opened when their party is needed."""

    def __init__(self, saved: Mapping[str, Snapshot]) -> None:
        """Go on from these."""
        self._saved = saved
        self._open: dict[str, MemoryStore] = {}

    def open(self, name: str) -> MemoryStore:
        """The store of a party, as it was saved."""
        self._open[name] = MemoryStore(self._saved.get(name))
        return self._open[name]

    def state(self) -> dict[str, Snapshot]:
        """For a checkpoint."""
        return {**self._saved, **{name: store.snapshot() for name, store in self._open.items()}}


@dataclass(frozen=True, eq=False)
class Beginning:
    """What an epoch of a run begins with; `state` is that of a checkpoint, or empty."""

    config: SimulationConfig
    model: Vector
    step: StepRule
    devices: Devices
    state: Mapping[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """What happened in the run, all epochs together."""
    meter: Meter = field(default_factory=Meter)
    """What it cost, all epochs together."""

    @cached_property
    def stores(self) -> Stores:
        """The stores of all parties."""
        return Stores(self.state.get("stores", {}))


class SeededEntropy:
    """Every key and mask of a repeatable run, from the run's seed. Only for simulations.

    Give it to a `Federation` as `entropy`, and two runs send the same bytes.
    """

    def __init__(self, seed: int, drawn: Mapping[str, int], first: int = 1) -> None:
        """Go on after the masks that were drawn before; keys are drawn once, and so again the same.

        first: the number of the first draw for anybody's masks.
        """
        self._first = first
        self._root = Seed(seed.to_bytes(32, "big"))
        self.drawn = Counter({key: n for key, n in drawn.items() if key.startswith("masks/")})

    def __call__(self, purpose: str) -> Callable[[int], bytes]:
        """A source of bytes for one purpose."""

        def draw(count: int) -> bytes:
            number = self.drawn[purpose] + (self._first if purpose.startswith("masks/") else 1)
            self.drawn[purpose] += 1
            child = derive_seed(self._root, f"{purpose}/{number}")
            return WordStream(child).draw(-(-count // 4)).tobytes()[:count]

        return draw


def seed_of(run: int, name: MaskName) -> bytes:
    """The seed of one mask in a run without contributors: the same in every run with this seed."""
    return hashlib.sha256(f"{run}/{name.key}".encode()).digest()
