"""What users do in local training: an algorithm of the client, and the optimiser that takes its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from basecagg.errors import DataError
from basecagg.learning.flat_parameters import FlatModel

if TYPE_CHECKING:
    from basecagg.learning.local_training import LocalTraining
    from basecagg.learning.task import Task


# --- algorithms -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Work:
    """One local training of one user."""

    task: Task
    model: FlatModel
    """Holds what was downloaded, then what is trained from it. `model.weights` has its weights as one vector,
    `model.gradient` their gradient."""
    downloaded: NDArray[np.float32]
    """The model as it came from the server, and behind it the numbers that travel with it."""
    examples: Tensor
    """Which training examples the user has."""
    training: LocalTraining
    user: int | str
    memory: dict[str, Tensor]
    """What this user keeps from one training to the next: float32, and replaced rather than changed."""

    @cached_property
    def start(self) -> Tensor:
        """The weights that were downloaded."""
        return torch.tensor(self.downloaded[: self.model.num_weights], device=self.model.device)

    @cached_property
    def carried(self) -> Tensor:
        """The numbers that travel behind the model, as they were downloaded."""
        return torch.tensor(self.downloaded[self.model.size :], device=self.model.device)

    @property
    def steps(self) -> int:
        """E"""
        return self.training.steps_for(len(self.examples))


class Client:
    """The base, called "plain": E steps of the optimiser from the model that was downloaded.

    Replace what differs. One object serves all users, so what is a user's own goes into `work.memory`.
    """

    def carries(self, weights: int) -> int:
        """How many numbers travel behind a model of so many weights, averaged and protected as it is."""
        return 0

    def before_step(self, work: Work) -> None:
        """The gradient of a batch is there, and the optimiser has not taken its step: change it as you like."""

    def train(self, work: Work) -> float:
        """Train `work.model`, and return the mean loss."""
        from basecagg.learning.local_training import descend

        return descend(work, self.before_step)

    def after_training(self, work: Work) -> Tensor:
        """The update of the numbers that travel behind the model: before − after, as all updates."""
        return torch.zeros_like(work.carried)


CLIENTS: dict[str, Callable[[Any], Client]] = {"plain": lambda settings: Client()}
"""Every algorithm of clients there is: each makes one from the settings of a run."""


def make_client(name: str, settings: Any) -> Client:
    """The algorithm of this name."""
    if name not in CLIENTS:
        raise DataError(f"no client is called {name!r}; there are {', '.join(CLIENTS)}")
    return CLIENTS[name](settings)


# --- optimisers -----------------------------------------------------------------------------------

MakeStep: TypeAlias = "Callable[[FlatModel, LocalTraining], Callable[[], object]]"
"""Makes, for each training anew, what takes a step by `model.gradient`: an optimiser's `step`, or yours."""


def _sgd(model: FlatModel, training: LocalTraining) -> Callable[[], object]:
    """x ← x − η_l·(g + λ·x) on whole vectors, with the roundings of `torch.optim.SGD`."""

    def step() -> None:
        if training.weight_decay:
            model.gradient.add_(model.weights, alpha=training.weight_decay)
        model.weights.add_(model.gradient, alpha=-training.learning_rate)

    return step


def _by(kind: type[torch.optim.Optimizer]) -> MakeStep:
    """An optimiser of torch, on all weights as one tensor."""

    def make(model: FlatModel, training: LocalTraining) -> Callable[[], object]:
        rate, decay = training.learning_rate, training.weight_decay
        return kind([model.weights], lr=rate, weight_decay=decay).step  # type: ignore[call-arg]

    return make


LOCAL_OPTIMISERS: dict[str, MakeStep] = {
    "sgd": _sgd,
    "adam": _by(torch.optim.Adam),
    "adamw": _by(torch.optim.AdamW),
}
"""Every optimiser of local training there is."""
