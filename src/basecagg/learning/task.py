"""What is learned: a model, a dataset, a loss and a score. Built-in or a user's own, nothing else differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from basecagg.learning.datasets import Dataset, load_dataset
from basecagg.learning.flat_parameters import FlatModel
from basecagg.learning.models import build_model
from basecagg.learning.seeds import seeded

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → their mean loss, a scalar."""
Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one score per example; the report shows the mean."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0."""
    return (outputs.argmax(dim=1) == targets).float()


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A learning problem. `model` is any function that returns a fresh `nn.Module`."""

    name: str
    model: Callable[[], nn.Module]
    dataset: Dataset
    loss: Loss = functional.cross_entropy
    score: Score = accuracy

    def build_model(self, seed: int) -> FlatModel:
        """A new model whose first weights depend on `seed` alone."""
        with seeded(seed):
            return FlatModel(self.model())


def built_in_task(
    model: str, dataset: str, *, data_dir: Path | None = None, download: bool = False
) -> Task:
    """The task of a model and a dataset that have names (`MODELS`, `DATASETS`)."""
    data = load_dataset(dataset, data_dir=data_dir, download=download)
    builder = partial(build_model, model, data.input_shape, data.num_classes)
    return Task(name=f"{model} on {dataset}", model=builder, dataset=data)
