"""One training step in which each record's gradient is clipped: for privacy whose unit is the record.

Each record is in the step by a coin of its own, its gradient is clipped to C by itself, and they are added up.
Nothing else may depend on a record: not how long it takes, and not whether it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from basecagg.errors import DataError, ParameterError
from basecagg.learning.flat_parameters import FlatModel
from basecagg.learning.task import Loss
from basecagg.maths.norm_bounds import most_sampled
from basecagg.maths.randomness import SEED_BYTES, WordStream, system_entropy
from basecagg.maths.running_statistics import MEAN
from basecagg.privacy import Privacy

_MARGIN = 2.0**-7
"""Of C: more than all errors of floating point between here and the machine that adds the noise."""
_ERRORS = 2.0**-21
"""Bound on float32 errors for a model of length 1, with and without a record: three roundings each and room."""
_NUMBERS = 2**20
"""Numbers of gradients in memory at a time: they stay in the processor's cache."""


def record_update(
    model: FlatModel,
    start: NDArray[np.float32],
    records: tuple[Tensor, Tensor],
    loss: Loss,
    privacy: Privacy,
    *,
    step: float,
    seed: bytes | None = None,
) -> NDArray[np.float32]:
    """Δ = Σ clip(step·g, C) over a sample of the records (inputs, targets), g a record's gradient at `start`.

    To be taken off the model: `start - record_update(…)` is the trained one. `step` is public: a learning rate
    over the usual number of records in a sample. Without a seed the sample is the operating system's.
    """
    _require_fit(model, start, privacy)
    model.load(start)
    model.module.train()
    x, y = records
    chosen = _sample(len(x), privacy.sampling_rate, seed or system_entropy(SEED_BYTES))
    limit = privacy.clip_norm * (1 - _MARGIN)
    total = torch.zeros(model.size, dtype=torch.float64)
    for rows, real in _padded(chosen, most_sampled(len(x), privacy.sampling_rate), model.size):
        gradients = _gradients(model.module, loss, x[rows], y[rows])
        finite = torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0).double()
        total += _clipped(gradients, step, limit) * real @ finite
    return total.to(torch.float32).numpy()


def require_separable(module: nn.Module) -> None:
    """Refuse, by name, layers in which the examples of a batch meet, or that remember them."""
    for name, part in module.named_modules():
        meets = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if meets or getattr(part, MEAN, None) is not None:
            raise DataError(
                f"layer {name or 'of the model'} is a {type(part).__name__}: it mixes the records of a batch,"
                " so no record's own part can be clipped; use GroupNorm or LayerNorm"
            )


def _require_fit(model: FlatModel, start: NDArray[np.float32], privacy: Privacy) -> None:
    if privacy.unit != "record":
        raise ParameterError(
            "the unit of this privacy is the user: train as usual, the contributor clips the whole update",
            rule="records are clipped where the unit is the record",
        )
    require_separable(model.module)
    length = float(np.linalg.norm(start.astype(np.float64)))
    if (length + 1.25 * privacy.longest) * _ERRORS > _MARGIN * privacy.clip_norm:
        raise ParameterError(
            f"the model is {length:.3g} long and an update up to M·C = {privacy.longest:.3g}: float32 is too"
            f" coarse for C = {privacy.clip_norm:.3g}. Raise C and the local rate alike and lower the server's,"
            " or lower M",
            rule="‖x‖ + 1.25·M·C ≤ 2¹⁴·C",
        )


def _sample(records: int, rate: float, seed: bytes) -> NDArray[np.int64]:
    """Every record by a coin of its own, with a probability of `rate`, or up to 2⁻³² less."""
    coins = WordStream(seed).draw(records).astype(np.uint64)
    return np.flatnonzero(coins < int(rate * 2**32))


def _padded(
    chosen: NDArray[np.int64], usual_most: int, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The sample in equal pieces, as many as it nearly always fits into: rows, and which of them are real.

    So time does not tell how many there are.
    """
    piece = max(1, min(usual_most, _NUMBERS // size))
    places = -(-max(len(chosen), usual_most) // piece) * piece
    rows, real = np.zeros(places, np.int64), np.zeros(places)
    rows[: len(chosen)], real[: len(chosen)] = chosen, 1.0
    for at in range(0, places, piece):
        here = slice(at, at + piece)
        yield torch.from_numpy(rows[here]), torch.from_numpy(real[here])


def _gradients(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """One row for each record: the gradient of its own loss, as if it were alone."""
    weights = {name: w.detach() for name, w in module.named_parameters() if w.requires_grad}

    def loss_of_one(parameters: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        outputs: Any = functional_call(module, parameters, (one.unsqueeze(0),))
        return loss(outputs, target.unsqueeze(0))

    alone = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    rows = alone(weights, x, y).values()
    return torch.cat([row.reshape(len(x), -1) for row in rows], dim=1)


def _clipped(gradients: Tensor, step: float, limit: float) -> Tensor:
    """What to multiply each gradient by, so that none is longer than the limit; 0 for what is no number."""
    lengths = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64) * step
    factors = step * (limit / lengths).clamp(max=1.0)
    return torch.where(torch.isfinite(lengths), factors, 0.0)
