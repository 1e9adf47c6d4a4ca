"""What a user does with an update before it sends it, for protections that need no more than that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.protections.local_dp import LocalDP, clipped

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
Randomness: TypeAlias = Callable[[], np.random.Generator]
"""Makes the generator of one update, for whoever needs it. A simulation seeds it."""


class AtUser:
    """Nothing: the update is sent as it is. Kinds that do something say what."""

    uses: float = inf
    """Updates that one user may send."""

    def protect(self, update: Vector, randomness: Randomness) -> Vector:
        """The update as it leaves the user."""
        return update

    def epsilon(self, releases: int) -> float | None:
        """ε when one user has sent as many updates as `releases`; None where nothing is promised."""
        return None

    def totals(self, releases: int) -> dict[str, Any]:
        """What else a run says of it at its end."""
        return {}


@dataclass(frozen=True)
class Noisy(AtUser):
    """Local differential privacy."""

    noise: LocalDP
    delta: float
    """δ"""
    uses: float = inf

    def protect(self, update: Vector, randomness: Randomness) -> Vector:
        """The update, clipped and with noise."""
        return self.noise.protect(update, randomness())

    def epsilon(self, releases: int) -> float | None:
        """ε at δ."""
        return self.noise.epsilon(releases, self.delta)


@dataclass(frozen=True)
class Trusting(Noisy):
    """Clips only: a trusted server adds as much noise to every sum."""

    def protect(self, update: Vector, randomness: Randomness) -> Vector:
        """The update, clipped."""
        return clipped(update, self.noise.clip_norm)
