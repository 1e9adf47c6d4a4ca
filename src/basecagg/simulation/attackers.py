"""The contributors of a simulated run that lie, and what they know of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError
from basecagg.learning import Task
from basecagg.schedules.schedule import Vector
from basecagg.simulation.attacks import ATTACKS, Attack, Sight
from basecagg.simulation.config import SimulationConfig


@dataclass(eq=False)
class Attackers:
    """The contributors of a run that lie: users 0…n−1, all by the same attack."""

    config: SimulationConfig
    _seen: deque[Vector] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._count = self.config.num_attackers
        self._attack = ATTACKS[self.config.attack or ""] if self._count else Attack("nothing")
        self._seen = deque(maxlen=self.config.buffer_size)

    def __contains__(self, user: int) -> bool:
        return user < self._count

    def sent(self, user: int, update: Vector, seed: Sequence[int]) -> Vector:
        """What the user sends: its update, or the lie in its place."""
        if user not in self:
            if self._attack.looks:
                self._seen.append(update)
            return update
        if self._attack.looks and not self._seen:
            return update
        chosen = self.config.attack_strength
        strength = np.float32(self._attack.usual_strength if chosen is None else chosen)
        sight = Sight(update, self._seen, strength, np.random.default_rng(seed))
        return self._attack.lie(sight).astype(update.dtype, copy=False)

    def told(self, user: int, base_version: int, newest: int) -> int:
        """The version that the user says it trained from."""
        return newest if self._attack.tells_newest and user in self else base_version

    def task(self, task: Task, examples: Sequence[npt.NDArray[np.int64]]) -> Task:
        """What users train on: the task, with labels of attackers turned round if they are to be."""
        if not self._attack.flips_labels:
            return task
        if not task.dataset.has_labels:
            raise DataError(f"attack 'label-flip' needs labels, and '{task.name}' has none")
        labels = task.dataset.train_y.clone()
        turned = np.concatenate(examples[: self._count])
        labels[turned] = task.dataset.num_classes - 1 - labels[turned]
        return replace(task, dataset=replace(task.dataset, train_y=labels))

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"seen": list(self._seen)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._seen.extend(state["seen"])
