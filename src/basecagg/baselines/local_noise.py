"""Noise at the user: protections that only change an update before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.errors import ParameterError
from basecagg.maths.accounting import epsilon_of

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
Randomness: TypeAlias = Callable[[], np.random.Generator]
"""Makes the random generator of one update. A simulation seeds it."""


class AtUser:
    """The base: the update is sent as it is."""

    uses: float = inf
    """How many updates one user may send."""

    def protect(self, user: int, update: Vector, randomness: Randomness) -> Vector:
        """The update as it leaves the user."""
        return update

    def bytes_of(self, numbers: int) -> int:
        """How long such an update is on the wire, where no mask covers it."""
        return 4 * numbers

    def epsilon(self, releases: int) -> float | None:
        """ε when one user has sent as many updates as `releases`; None where nothing is promised."""
        return None

    def totals(self, releases: int) -> dict[str, Any]:
        """Further numbers for the end of a run."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, where something is kept from one update to the next."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""


@dataclass(frozen=True)
class Noisy(AtUser):
    """Local differential privacy: clip to the norm C, then add N(0, (z·C)²) to every element.

    The guarantee is for the whole update: noise of σ = z·C hides whether it was sent, or nothing but noise.
    Neighbours and accounting are those of private sums.
    """

    clip_norm: float
    """C"""
    noise: float
    """z"""
    delta: float
    """δ"""
    uses: float = inf

    def __post_init__(self) -> None:
        """Refuse numbers that protect nothing."""
        for name in ("clip_norm", "noise"):
            if not 0 < getattr(self, name) < inf:
                value = getattr(self, name)
                raise ParameterError(f"{name} = {value} must be positive", rule=f"{name} > 0")

    def protect(self, user: int, update: Vector, randomness: Randomness) -> Vector:
        """The update, clipped and with noise."""
        noise = randomness().normal(0, self.noise * self.clip_norm, update.shape)
        return (clipped(update, self.clip_norm) + noise).astype(np.float32)

    def epsilon(self, releases: int) -> float | None:
        """ε at δ: ρ = C²/(2σ²) for each release."""
        return epsilon_of(releases / (2 * self.noise**2), self.delta)


class Trusting(Noisy):
    """Clip only: a trusted server adds the noise to every sum."""

    def protect(self, user: int, update: Vector, randomness: Randomness) -> Vector:
        """The update, clipped."""
        return clipped(update, self.clip_norm)


def clipped(update: Vector, clip_norm: float) -> Vector:
    """The update, shortened to the norm C if it is longer."""
    norm = float(np.linalg.norm(update))
    return update * np.float32(clip_norm / norm) if norm > clip_norm else update
