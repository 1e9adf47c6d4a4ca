"""Attacks on a run, by name: what contributors that lie send instead of their updates.

Attackers know more here than they could know in a federation, where updates are masked: those that ask for it
see the last K updates of all others in clear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from basecagg.schedules.schedule import Vector


@dataclass(frozen=True)
class Sight:
    """What an attacker goes by."""

    update: Vector
    """Its own, as an honest user would send it."""
    others: Sequence[Vector]
    """The last K updates of honest users; none for an attack that does not look, and at first."""
    strength: np.float32
    generator: np.random.Generator


@dataclass(frozen=True)
class Attack:
    """All that is to be known about one attack."""

    about: str
    lie: Callable[[Sight], Vector] = lambda sight: sight.update
    """What is sent."""
    usual_strength: float | None = None
    """None where there is nothing to strengthen."""
    looks: bool = False
    """Whether it sees other users' updates."""
    flips_labels: bool = False
    """Whether attackers train on labels turned round: c becomes C − 1 − c."""
    tells_newest: bool = False
    """Whether attackers say that they trained from the newest version, however old their model is."""


def _gaussian(sight: Sight) -> Vector:
    noise = sight.generator.standard_normal(sight.update.size).astype(sight.update.dtype)
    return noise * (sight.strength * _length(sight.update) / np.float32(np.sqrt(noise.size)))


def _a_little(sight: Sight) -> Vector:
    """μ − z·σ, element by element: within what honest users spread."""
    others = np.stack(sight.others)
    lie: Vector = others.mean(axis=0) - sight.strength * others.std(axis=0)
    return lie


def _against_the_mean(sight: Sight) -> Vector:
    lie: Vector = -sight.strength * np.stack(sight.others).mean(axis=0)
    return lie


def _length(update: Vector) -> np.float32:
    return np.float32(np.linalg.norm(update))


ATTACKS: dict[str, Attack] = {
    "scaled": Attack(
        "the update times the strength", lambda sight: sight.update * sight.strength, 100.0
    ),
    "sign-flip": Attack(
        "the update turned round, times the strength; without one, and where sums have a bound on their"
        " length, as long as that bound hides",
        lambda sight: sight.update * -sight.strength,
        1.0,
    ),
    "gaussian": Attack("noise, as long as the update times the strength", _gaussian, 100.0),
    "label-flip": Attack("trained on labels turned round", flips_labels=True),
    "alie": Attack(
        "A little is enough (Baruch et al. 2019): the mean of others minus the strength times their"
        " standard deviation, in every element",
        _a_little,
        1.5,
        looks=True,
    ),
    "ipm": Attack(
        "Inner product manipulation (Xie et al. 2020): the mean of others turned round, times the strength",
        _against_the_mean,
        20.0,
        looks=True,
    ),
    "false-staleness": Attack(
        "an honest update that says it is from the newest version", tells_newest=True
    ),
}
"""Every attack there is. What is not here is refused, wherever it is named."""
