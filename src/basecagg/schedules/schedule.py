"""What a schedule decides: who starts to train, from which model, and what becomes of a finished update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """The model that a user downloads: its version t_i, its numbers, and which round or tier it belongs to."""

    version: int
    model: Vector
    round: int = 0


class Aggregation(Protocol):
    """K updates become one step of the global model, by whatever protection."""

    @property
    def version(self) -> int:
        """t, as published at present."""

    @property
    def model(self) -> Vector:
        """x^(t), as published at present."""

    @property
    def is_opening(self) -> bool:
        """Whether K updates have met, and the version that they make is not published yet."""

    def submit(self, user: int, update: Vector, base_version: int) -> None:
        """Take the update of a user that trained from version t_i."""

    def waiting(self) -> set[int]:
        """The users whose updates wait to be summed."""


class Idle(Protocol):
    """The users that do not train at present."""

    def draw(self, count: int, allowed: Callable[[int], bool] = ...) -> list[int]:
        """Draw `count` of them at random; fewer if fewer are allowed and there."""


class Schedule(Protocol):
    """The driver calls these; a schedule knows no clock."""

    @property
    def version(self) -> int:
        """Steps that the global model has taken."""

    @property
    def model(self) -> Vector:
        """The global model."""

    def choose(self, idle: Idle, running: Collection[int]) -> list[int]:
        """Which idle users start to train now."""

    def starting_point(self, user: int) -> StartingPoint:
        """What a user that starts now downloads."""

    def finish(self, user: int, update: Vector, start: StartingPoint) -> None:
        """A user's update, its model before − after training, has arrived."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs besides the aggregation."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        return  # an empty body would make it abstract
