"""A model as one vector: the x of the paper, which users download, train and send back as a difference.

The module's parameters are *views* into one flat buffer, and their gradients into another. Loading a
global model is one copy of memory, an SGD step two operations on whole vectors, and one module serves every
user that a process simulates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from basecagg.errors import DataError
from basecagg.maths.running_statistics import MEAN, VARIANCE, below_zero, readable


class FlatModel:
    """A module whose shared state is one float32 vector x: weights, then means, then variances.

    Means and variances are the buffers `running_mean` and `running_var` of BatchNorm and its kin. They travel
    inside the vector: an update carries their change, the mask hides it and the server averages it like the
    rest (docs/explanation/batchnorm.md says why). All other buffers, such as BatchNorm's count of batches,
    stay at home: `load` sets them back to what they were at first, so that what a module does after `load(x)`
    depends on x alone and not on the user before.
    """

    def __init__(self, module: nn.Module, device: str | torch.device = "cpu") -> None:
        """Take over `module`: it moves to the device, its parameters become views, its values the first x."""
        self.device = torch.device(device)
        """Where it trains; what goes in and comes out is numpy's."""
        module.to(self.device)
        weights = {path: w for path, w in module.named_parameters() if w.requires_grad}
        means, variances = _buffers(module, MEAN), _buffers(module, VARIANCE)
        parts = weights | means | variances
        self.names = tuple(parts)
        """What the parts of x are called in a state_dict, in their order."""
        _require_float32(parts.values())
        self.module = module
        self.num_weights = _count(weights.values())
        """Trainable numbers: the part of x that SGD moves."""
        self._state = _gather([*parts.values()])
        self._numbers: NDArray[np.float32] = self._state.cpu().numpy()
        self._apart = self._numbers.ctypes.data != self._state.data_ptr()
        """Whether the state is on another device, and `_numbers` are a copy of it."""
        self._variances = slice(self.num_weights + _count(means.values()), None)
        self.weights = self._state[: self.num_weights]
        """The trainable part of x; the module sees every change."""
        self.gradient = torch.zeros(self.num_weights, device=self.device)
        """What `backward` adds to; zero it before each step."""
        self.weights.grad = self.gradient  # so an optimiser may take all weights as one tensor
        trained = [*weights.values()]
        for weight, piece in zip(trained, _pieces(self.gradient, trained), strict=True):
            weight.grad = piece
        shared = set(map(id, parts.values()))
        self._kept = [(b, b.clone()) for b in module.buffers() if id(b) not in shared]

    @property
    def size(self) -> int:
        """d: numbers in x, and so in every update."""
        return self._state.numel()

    def load(self, vector: NDArray[np.float32]) -> None:
        """Become the model x. A variance below zero is read as zero."""
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise DataError(
                f"{vector.dtype}{list(vector.shape)} does not fit this model of float32[{self.size}]"
                f" ({self.num_weights} weights and {self.size - self.num_weights} running statistics)"
            )
        np.copyto(self._numbers, vector)
        self._numbers[self._variances] = readable(vector[self._variances])
        if self._apart:
            self._state.copy_(torch.from_numpy(self._numbers))
        for buffer, first in self._kept:
            buffer.copy_(first)

    def below_zero(self, vector: NDArray[np.floating[Any]]) -> int:
        """How many variances of the model x are below zero."""
        return below_zero(vector[self._variances])

    def vector(self) -> NDArray[np.float32]:
        """A copy of x."""
        return self._read().copy()

    def difference_from(self, start: NDArray[np.float32]) -> NDArray[np.float32]:
        """Δ = x_start − x, the sign of Eq. (local_update)."""
        return start - self._read()

    def _read(self) -> NDArray[np.float32]:
        """x as it is now."""
        if self._apart:
            torch.from_numpy(self._numbers).copy_(self._state)
        return self._numbers


def _buffers(module: nn.Module, name: str) -> dict[str, Tensor]:
    """The buffers called `name` in the module and all its parts, by their paths."""
    return {path: b for path, b in module.named_buffers() if path.rpartition(".")[2] == name}


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _pieces(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat buffer into views with the shapes of `like`."""
    cuts = torch.split(flat, [tensor.numel() for tensor in like])
    return [cut.view(tensor.shape) for cut, tensor in zip(cuts, like, strict=True)]


def _gather(tensors: Sequence[Tensor]) -> Tensor:
    """Move the tensors' values into one buffer and make the tensors views of it."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    for tensor, piece in zip(tensors, _pieces(flat, tensors), strict=True):
        tensor.data = piece
    return flat


def _require_float32(tensors: Collection[Tensor]) -> None:
    if not tensors:
        raise DataError("the model has no trainable parameters, so there is nothing to learn")
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            raise DataError(
                f"a trainable parameter of the model is {tensor.dtype}; updates are float32: make those that"
                " train so, with .float(), and set requires_grad_(False) on the others"
            )
