"""Local differential privacy: each user clips its update and adds Gaussian noise before anyone sees it.

The guarantee is for the whole update: two updates of one user differ by 2·C at most in the Euclidean norm, and
noise of standard deviation σ = z·C hides which of them was sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import ParameterError


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
        norm = float(np.linalg.norm(update))
        scale = min(1.0, self.clip_norm / norm) if norm else 1.0
        noise = generator.normal(0, self.noise_multiplier * self.clip_norm, update.shape)
        return (update * scale + noise).astype(np.float32)

    def epsilon(self, releases: int, delta: float) -> float:
        """ε at δ after so many releases of one user: zero-concentrated DP, ρ = (2C)²/(2σ²) for each."""
        rho = releases * 2 / self.noise_multiplier**2
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))
