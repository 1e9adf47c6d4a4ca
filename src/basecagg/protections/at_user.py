"""What a user does with an update before it sends it, for protections that need no more than that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.protections.local_dp import LocalDP

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
Randomness: TypeAlias = Callable[[], np.random.Generator]
"""Makes the generator of one update, for whoever needs it. A simulation seeds it."""


class AtUser:
    """Nothing: the update is sent as it is. Kinds that do something say what."""

    def protect(self, update: Vector, randomness: Randomness) -> Vector:
        """The update as it leaves the user."""
        return update

    def totals(self, releases: int) -> dict[str, Any]:
        """What a run says of it at its end, when one user has sent as many updates as `releases`."""
        return {}


@dataclass(frozen=True)
class Noisy(AtUser):
    """Local differential privacy."""

    noise: LocalDP
    delta: float
    """δ"""

    def protect(self, update: Vector, randomness: Randomness) -> Vector:
        """The update, clipped and with noise."""
        return self.noise.protect(update, randomness())

    def totals(self, releases: int) -> dict[str, Any]:
        """ε at δ."""
        return {"epsilon": self.noise.epsilon(releases, self.delta)}
