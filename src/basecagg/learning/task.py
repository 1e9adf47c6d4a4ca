"""A learning task: model, dataset, loss and score, built-in or a user's own; and the seeds of experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from basecagg.errors import DataError
from basecagg.learning.datasets import Dataset, load_dataset
from basecagg.learning.flat_parameters import FlatModel
from basecagg.learning.models import build_model

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → their mean loss, a scalar."""
Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one score per example, or per place of one; the report shows the mean, by this name."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0; in sequences at every place."""
    if not isinstance(outputs, Tensor):
        raise DataError(
            f"the model gives a {type(outputs).__name__}, which is no tensor: give the task a loss= and a"
            " score= of its own, which take what they need, such as outputs.logits"
        )
    guesses = outputs.argmax(dim=1)
    if guesses.shape != targets.shape:
        raise DataError(
            f"accuracy compares the largest output with the label, and of outputs {tuple(outputs.shape)} and"
            f" targets {tuple(targets.shape)} it cannot: give the task a score= of its own"
        )
    return (guesses == targets).float()


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A learning problem. `model` is any function that returns a fresh `nn.Module`."""

    name: str
    model: Callable[[], nn.Module]
    dataset: Dataset
    loss: Loss = functional.cross_entropy
    score: Score = accuracy

    def __post_init__(self) -> None:
        """Accuracy of real numbers would be 0 without a word."""
        targets = self.dataset.train_y
        if self.score is accuracy and targets.is_floating_point():
            raise DataError(
                f"task '{self.name}': targets are {targets.dtype}, and accuracy compares labels. Give a score="
                " of its own, such as minus the distance, or make labels of the targets (.long())"
            )

    @property
    def score_name(self) -> str:
        """What the score is called in reports: as its function, if that has a name."""
        name = getattr(self.score, "__name__", "score")
        return "score" if name == "<lambda>" else name

    def build_model(self, seed: int, device: str = "cpu") -> FlatModel:
        """A new model whose first weights depend on `seed` alone."""
        with seeded(seed):
            return FlatModel(self.model(), device)


def built_in_task(
    model: str, dataset: str, *, data_dir: Path | None = None, download: bool = False
) -> Task:
    """The task of a model and a dataset that have names (`MODELS`, `DATASETS`)."""
    data = load_dataset(dataset, data_dir=data_dir, download=download)
    builder = partial(build_model, model, data.input_shape, data.num_classes)
    return Task(name=f"{model} on {dataset}", model=builder, dataset=data)


# --- seeds ----------------------------------------------------------------------------------------


def derive_seed(root: int, *key: int) -> int:
    """A seed for one purpose of a run, such as (user, version): equal keys give equal seeds in every process.

    For experiments; never for anything secret.
    """
    words = np.random.SeedSequence(root, spawn_key=key).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))  # torch takes seeds below 2⁶³


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make torch's randomness a function of `seed` inside the block; outside it goes on as before.

    Dropout and initialisation draw from torch's global generators, so they are borrowed rather than replaced.
    """
    used = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=list(used)):
        torch.default_generator.manual_seed(seed)
        if used:
            torch.cuda.manual_seed_all(seed)
        yield
