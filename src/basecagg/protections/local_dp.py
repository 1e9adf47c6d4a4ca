"""Local differential privacy: each user clips its update and adds Gaussian noise before anyone sees it.

The guarantee is for the whole update: it is C long at most in the Euclidean norm, and noise of standard
deviation σ = z·C hides whether it was sent, or nothing but noise. Neighbours and accounting are those of
private sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import ParameterError
from basecagg.maths.accounting import epsilon_of


@dataclass(frozen=True)
class LocalDP:
    """Clip to the norm C, then add N(0, (z·C)²) to every element."""

    clip_norm: float
    """C"""
    noise_multiplier: float
    """z"""

    def __post_init__(self) -> None:
        """Check both numbers."""
        for name, value in (("clip_norm", self.clip_norm), ("noise", self.noise_multiplier)):
            if not 0 < value < math.inf:
                raise ParameterError(f"{name} = {value} must be positive", rule=f"{name} > 0")

    def protect(
        self, update: npt.NDArray[np.floating[Any]], generator: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        """The update as it leaves the user. A simulation draws its noise from a seeded generator."""
        noise = generator.normal(0, self.noise_multiplier * self.clip_norm, update.shape)
        return (clipped(update, self.clip_norm) + noise).astype(np.float32)

    def epsilon(self, releases: int, delta: float) -> float:
        """ε at δ after so many releases of one user: ρ = C²/(2σ²) for each."""
        return epsilon_of(releases / (2 * self.noise_multiplier**2), delta)


def clipped(
    update: npt.NDArray[np.floating[Any]], clip_norm: float
) -> npt.NDArray[np.floating[Any]]:
    """The update, shortened to the norm C if it is longer."""
    norm = float(np.linalg.norm(update))
    return update * np.float32(clip_norm / norm) if norm > clip_norm else update
