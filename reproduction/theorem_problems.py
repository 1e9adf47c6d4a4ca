"""Problems whose constants are known: quadratics, and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reproduction.theorem_bounds import Constants

Reals = npt.NDArray[np.float64]
Users = npt.NDArray[np.int64]
_NEWTON_STEPS = 30


class Problem(Protocol):
    """F = (1/N)·Σ F_i. Points have any shape that ends with d; `users` has the shape before it."""

    @property
    def users(self) -> int:
        """N"""
        ...

    @property
    def start(self) -> Reals:
        """x⁰"""
        ...

    def gradient(self, users: Users, points: Reals) -> Reals:
        """∇F_i at each point, of the user that belongs to it."""
        ...

    def noise(self, users: Users, points: Reals, generator: np.random.Generator) -> Reals:
        """g_i − ∇F_i at each point."""
        ...

    def constants(self, seen: Seen) -> Constants:
        """What the assumptions ask for; where no number holds on all of ℝ^d, the largest that was seen."""
        ...


@dataclass
class Seen:
    """The largest on the path of a run."""

    gradient_bound: float = 0.0
    """Of ‖∇F_i‖²."""
    global_variance: float = 0.0
    """Of (1/N)·Σ ‖∇F_i − ∇F‖²."""

    def look(self, gradients: Reals) -> Reals:
        """Note all users' gradients, an array [..., N, d]; return ∇F."""
        mean: Reals = gradients.mean(axis=-2)
        spread = ((gradients - mean[..., None, :]) ** 2).sum(axis=-1).mean(axis=-1)
        self.global_variance = max(self.global_variance, float(spread.max()))
        self.look_at_members(gradients)
        return mean

    def look_at_members(self, gradients: Reals) -> None:
        """Note the gradients of users on their way."""
        self.gradient_bound = max(
            self.gradient_bound, float((gradients**2).sum(axis=-1).max(initial=0.0))
        )


@dataclass(frozen=True, eq=False)
class Quadratic:
    """F_i(x) = ½·Σ_j a_ij·(x_j − b_ij)², with noise of length σ_l in a random direction."""

    curvatures: Reals
    """a: float[N, d], positive."""
    centres: Reals
    """b: float[N, d]"""
    start: Reals
    noise_length: float = 0.0
    """σ_l"""

    @property
    def users(self) -> int:
        """N"""
        return len(self.centres)

    def gradient(self, users: Users, points: Reals) -> Reals:
        """a_i·(x − b_i)"""
        return self.curvatures[users] * (points - self.centres[users])

    def noise(self, users: Users, points: Reals, generator: np.random.Generator) -> Reals:
        """A vector on the sphere, so that its squared length is σ_l² every time."""
        direction = generator.standard_normal(points.shape)
        length = np.linalg.norm(direction, axis=-1, keepdims=True)
        noise: Reals = self.noise_length * direction / length
        return noise

    def value(self, point: Reals) -> float:
        """F"""
        return float((self.curvatures * (point - self.centres) ** 2).sum(axis=1).mean() / 2)

    @property
    def minimum(self) -> Reals:
        """x*"""
        best: Reals = (self.curvatures * self.centres).sum(axis=0) / self.curvatures.sum(axis=0)
        return best

    def constants(self, seen: Seen) -> Constants:
        """L and σ_l² by construction. A quadratic has no G; its σ_g² is fixed where all a_i are the same."""
        return Constants(
            smoothness=float(self.curvatures.max()),
            local_variance=self.noise_length**2,
            global_variance=seen.global_variance,
            gradient_bound=seen.gradient_bound,
            gap=self.value(self.start) - self.value(self.minimum),
            size=self.start.size,
        )


@dataclass(frozen=True, eq=False)
class Logistic:
    """F_i(x) = mean over examples of log(1 + e^(v·x)) − y_i·v·x: the users know the same v, and differ in y.

    So ∇F_i − ∇F does not depend on x, and σ_g² is known; |p − y| ≤ 1 bounds the rest.
    """

    features: Reals
    """v: float[n, d]"""
    labels: Reals
    """y: float[N, n], 0 or 1."""
    start: Reals

    @property
    def users(self) -> int:
        """N"""
        return len(self.labels)

    def _errors(self, users: Users, points: Reals) -> Reals:
        """p − y of every example."""
        chances: Reals = 1 / (1 + np.exp(-points @ self.features.T))
        return chances - self.labels[users]

    def gradient(self, users: Users, points: Reals) -> Reals:
        """The mean over a user's examples."""
        mean: Reals = self._errors(users, points) @ self.features / len(self.features)
        return mean

    def noise(self, users: Users, points: Reals, generator: np.random.Generator) -> Reals:
        """One example, drawn at random, instead of all."""
        errors = self._errors(users, points)
        drawn = generator.integers(0, len(self.features), users.shape)
        one = np.take_along_axis(errors, drawn[..., None], axis=-1) * self.features[drawn]
        return one - self.gradient(users, points)

    def value(self, point: Reals) -> float:
        """F"""
        scores = self.features @ point
        return float((np.logaddexp(0, scores) - self.labels.mean(axis=0) * scores).mean())

    @cached_property
    def minimum(self) -> Reals:
        """x*, by Newton's method."""
        point, count = self.start.copy(), len(self.features)
        for _ in range(_NEWTON_STEPS):
            chances = 1 / (1 + np.exp(-self.features @ point))
            slope = (chances - self.labels.mean(axis=0)) @ self.features / count
            curves = self.features.T @ (self.features * (chances * (1 - chances))[:, None]) / count
            point = point - np.linalg.solve(curves, slope)
        return point

    def constants(self, seen: Seen) -> Constants:
        """All of them hold everywhere; nothing needs to be seen."""
        lengths = np.linalg.norm(self.features, axis=1)
        moments = self.features.T @ self.features / len(self.features)
        away = (self.labels - self.labels.mean(axis=0)) @ self.features / len(self.features)
        return Constants(
            smoothness=float(np.linalg.eigvalsh(moments)[-1] / 4),
            local_variance=float((lengths**2).mean()),
            global_variance=float((away**2).sum(axis=1).mean()),
            gradient_bound=float(lengths.mean() ** 2),
            gap=self.value(self.start) - self.value(self.minimum),
            size=self.start.size,
        )


def quadratic(
    *, users: int = 20, size: int = 10, spread: float = 1.0, noise: float = 1.0, seed: int = 1
) -> Quadratic:
    """Curvatures from 0.1 to L = 1, the same for all; centres so that σ_g is `spread`; x⁰ at distance 1."""
    generator = np.random.default_rng((seed, users, size))
    curvatures = np.tile(np.geomspace(0.1, 1.0, size), (users, 1))
    centres = generator.standard_normal((users, size))
    centres -= centres.mean(axis=0)
    own = np.sqrt((curvatures**2 * centres**2).sum(axis=1).mean())
    return Quadratic(curvatures, centres * (spread / own), _unit(size), noise)


def round_quadratic(*, users: int = 10, size: int = 4, noise: float = 0.0) -> Quadratic:
    """F_i = ½·‖x‖² for all users; x⁰ at distance 1."""
    return Quadratic(np.ones((users, size)), np.zeros((users, size)), _unit(size), noise)


def uneven_quadratic(*, users: int = 10) -> Quadratic:
    """Steep functions on one side and flat ones on the other: local steps pull towards the steep ones."""
    curvatures = np.geomspace(0.05, 1.0, users)[:, None]
    return Quadratic(curvatures, np.linspace(-1.0, 1.0, users)[:, None], _unit(1))


def from_the_minimum(problem: Quadratic) -> Quadratic:
    """The same with x⁰ = x*, so that F* = 0 and only what keeps the model away from x* is left."""
    return replace(problem, start=problem.minimum)


def logistic(*, users: int = 20, size: int = 5, examples: int = 40, seed: int = 1) -> Logistic:
    """Gaussian features; labels by one true model, each user with mistakes of its own."""
    generator = np.random.default_rng((seed, users, size))
    features = generator.standard_normal((examples, size))
    truth = features @ generator.standard_normal(size) > 0
    wrong = generator.random((users, examples)) < 0.2
    return Logistic(features, (truth ^ wrong).astype(np.float64), np.zeros(size))


def _unit(size: int) -> Reals:
    return np.full(size, 1 / np.sqrt(size))
