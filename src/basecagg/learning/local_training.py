"""Local training between download and upload: E steps on a user's own examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from basecagg.errors import DataError, ParameterError
from basecagg.learning.clients import LOCAL_OPTIMISERS, Client, Work
from basecagg.learning.flat_parameters import FlatModel
from basecagg.learning.record_updates import record_update
from basecagg.learning.task import Task, seeded
from basecagg.maths.randomness import SEED_BYTES
from basecagg.maths.running_statistics import damped
from basecagg.options import Amount, Count, NotNegative, Positive, check
from basecagg.privacy import Privacy

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How users train. Give `steps` or `epochs`, not both."""

    learning_rate: Positive
    """η_l."""
    optimiser: str = "sgd"
    """What takes the steps: a name in `LOCAL_OPTIMISERS`. It begins afresh with every training."""
    client: Client = field(default_factory=Client)
    """What users do besides, such as FedProx or SCAFFOLD."""
    steps: Count | None = None
    """E: steps, however many examples a user has."""
    epochs: Count | None = None
    """Passes over a user's examples instead; E is then this times its number of batches."""
    batch_size: Count = 50
    """Examples in one step; the last batch of a pass may be smaller, but not one example under BatchNorm."""
    weight_decay: Amount = 0.0
    """λ of the L2 regularisation."""
    max_staleness: NotNegative = 0
    """τ_max of the sums that updates go into: BatchNorm's statistics move by 1/(1 + τ_max) of their change."""
    privacy: Privacy | None = None
    """Where records are the unit: one step on a sample of them, each clipped: `batch_size` is the usual. The
    sample follows from the seed of the training, so this is for simulations: a reader of the seed
    knows which records were in it. In a federation call `record_update` without a seed."""

    def __post_init__(self) -> None:
        """Check every rule once, here."""
        check(self)
        given = self.steps, self.epochs
        _require(given.count(None) == 1, "steps, epochs", given, "exactly one number")
        known = f"one of {', '.join(LOCAL_OPTIMISERS)}"
        _require(self.optimiser in LOCAL_OPTIMISERS, "optimiser", self.optimiser, known)
        if self.on_records:
            _require(self.steps == 1, "steps", self.steps, "1 where records are the unit")
            _require(self.weight_decay == 0, "weight_decay", self.weight_decay, "0, too")
            _require(self.optimiser == "sgd", "optimiser", self.optimiser, "sgd, too")
            name = type(self.client).__name__
            _require(type(self.client) is Client, "client", name, "the plain one, too")

    @property
    def on_records(self) -> bool:
        """Whether each record's gradient is clipped by itself."""
        return self.privacy is not None and self.privacy.unit == "record"

    def steps_for(self, num_examples: int) -> int:
        """E of a user with this many examples."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * math.ceil(num_examples / self.batch_size)


@dataclass(frozen=True, eq=False)
class LocalUpdate:
    """What one local training gives: Δ for the server, the rest for the user's eyes and the simulator's."""

    delta: NDArray[np.float32]
    """Δ = x_start − x_end, Eq. (local_update)."""
    mean_loss: float
    """Mean of the batches' losses, without the L2 term; no number where records are the unit."""
    num_examples: int
    """n_i, for weights by number of examples."""
    memory: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """What the user's client keeps for its next training."""


@dataclass(frozen=True)
class Evaluation:
    """A model's mean score (accuracy unless the task says otherwise) and mean loss on the test examples."""

    score: float
    loss: float


def train_locally(
    task: Task,
    model: FlatModel,
    start: NDArray[np.float32],
    indices: NDArray[np.int64],
    training: LocalTraining,
    *,
    seed: int,
    user: int | str,
    memory: Mapping[str, NDArray[np.float32]] | None = None,
) -> LocalUpdate:
    """Train from the model `start` on the examples `indices`, Eqs. (local_update) and (onestep_localSGD).

    `model` is scratch space: one serves all users of a process, whatever it held before. The result depends
    on the arguments alone; `seed` (see `derive_seed`) decides batches and dropout. Another number of torch
    threads or kind of CPU may change the last bits, because sums are then taken in another order.
    Numbers that the client carries stand behind the model, in `start` and in the update; `memory` is what it
    kept after this user's last training.
    """
    if not len(indices):
        raise DataError(f"user {user} has no examples to train on")
    if training.privacy is not None and training.on_records:
        rows, data = torch.tensor(indices), task.dataset
        with seeded(seed):
            delta = record_update(
                model,
                start,
                (data.train_x.index_select(0, rows), data.train_y.index_select(0, rows)),
                task.loss,
                training.privacy,
                step=training.learning_rate / training.batch_size,
                seed=seed.to_bytes(SEED_BYTES, "little"),
            )
        return LocalUpdate(delta, math.nan, len(indices))  # a loss would tell of records
    kept = {
        name: torch.tensor(value, device=model.device) for name, value in (memory or {}).items()
    }
    work = Work(task, model, start, torch.tensor(indices), training, user, kept)
    first = start[: len(start) - training.client.carries(model.num_weights)]
    model.load(first)
    model.module.train()
    try:
        with seeded(seed):
            mean_loss = training.client.train(work)
    except ValueError as error:
        if _normalises_batches(model) and min(len(indices), training.batch_size) == 1:
            raise DataError(
                f"user {user} has {len(indices)} example(s) and batch_size = {training.batch_size}: BatchNorm"
                " cannot normalise one example. Give each user at least 2, in batches of at least 2, or use"
                " GroupNorm"
            ) from error
        raise
    delta = model.difference_from(first)
    statistics = delta[model.num_weights :]
    statistics[:] = damped(statistics, training.max_staleness)
    carried = training.client.after_training(work).cpu().numpy()
    if carried.size:
        delta = np.concatenate([delta, carried])
    if not (math.isfinite(mean_loss) and np.isfinite(delta).all()):
        raise DataError(
            f"training of user {user} diverged (mean loss {mean_loss:g}): lower learning_rate ="
            f" {training.learning_rate:g}, or look for outliers in its examples"
        )
    left = {name: value.detach().cpu().numpy().copy() for name, value in work.memory.items()}
    return LocalUpdate(delta, mean_loss, len(indices), left)


def evaluate(
    task: Task, model: FlatModel, vector: NDArray[np.float32], *, batch_size: int = 100
) -> Evaluation:
    """Score the model `vector` on the task's test examples.

    `batch_size` changes no score: of 100 images what a layer makes stays in the cache, of 500 it does not.
    """
    model.load(vector)
    model.module.eval()
    x, y = task.dataset.test_x, task.dataset.test_y
    batches = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    score = loss = 0.0
    with torch.inference_mode():
        for inputs, wanted in batches:
            outputs, targets = model.module(inputs.to(model.device)), wanted.to(model.device)
            scores = task.score(outputs, targets).float()
            score += float(scores.sum()) * len(targets) / scores.numel()
            loss += float(_loss(task, outputs, targets)) * len(targets)
    return Evaluation(score / len(y), loss / len(y))


def descend(work: Work, before_step: Callable[[Work], None]) -> float:
    """Take E steps; return the mean loss of their batches."""
    task, model, training = work.task, work.model, work.training
    x, y = task.dataset.train_x, task.dataset.train_y
    step = LOCAL_OPTIMISERS[training.optimiser](model, training)
    total = torch.zeros((), device=model.device)
    least = 2 if _normalises_batches(model) else 1
    for batch in _batches(work.examples, training.batch_size, work.steps, least):
        model.gradient.zero_()
        inputs, targets = x.index_select(0, batch), y.index_select(0, batch)
        outputs = model.module(inputs.to(model.device))
        loss = _loss(task, outputs, targets.to(model.device))
        torch.autograd.backward(loss)
        total += loss.detach()
        before_step(work)
        step()
    return float(total) / work.steps


def _loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    loss = task.loss(outputs, targets)
    if loss.numel() != 1:
        raise DataError(
            f"the loss of task '{task.name}' is {tuple(loss.shape)} numbers: return their mean, a single one"
        )
    return loss


def _batches(indices: Tensor, batch_size: int, steps: int, least: int) -> Iterator[Tensor]:
    """Batches of shuffled passes over the examples, `steps` in all.

    A last batch of fewer than `least` examples is left out, unless it is all there is.
    """
    while steps > 0:
        shuffled = indices[torch.randperm(len(indices))]
        whole = torch.split(shuffled, batch_size)
        batches = ([batch for batch in whole if len(batch) >= least] or whole)[:steps]
        yield from batches
        steps -= len(batches)


def _normalises_batches(model: FlatModel) -> bool:
    return any(isinstance(part, _BATCH_NORMS) for part in model.module.modules())


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ParameterError(f"{name} = {value} must be {wanted}", rule=f"{name}: {wanted}")
