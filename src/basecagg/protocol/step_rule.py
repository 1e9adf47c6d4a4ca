"""The step from one version of the global model to the next: the server's optimiser, as one object.

It travels as a whole, so that everybody who has the last model, its optimiser state and the opened sum can take
the same step. Therefore it works element by element in float64, with + − × ÷ √ alone, which IEEE 754 rounds in
one way on every machine and with any number of threads; each result is rounded once more, into the model's own
precision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from basecagg.errors import LocalProtocolError, ParameterError, StorageError
from basecagg.options import OptimiserOptions
from basecagg.protocol.global_model import Model, model_bytes
from basecagg.protocol.messages import Message

Optimiser: TypeAlias = Annotated[str, Meta(max_length=32)]
"""A name in `OPTIMISERS`."""
OptimiserState: TypeAlias = tuple[Model, ...]
"""() of sgd, (m,) of momentum, (m, v) of adam: each as long and as precise as the model."""
Reals: TypeAlias = npt.NDArray[np.float64]
_Position: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
_Decay: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
_SEGMENT = 1 << 20
"""Elements that are stepped at a time: what float64 takes of a large model."""


class StepRule(Message, frozen=True, tag="StepRule"):
    """How the mean update Δ̄ = Σ s·Δ / Σ s moves the model x; each Δ is before − after, so it is subtracted.

    sgd is the paper's step (Eq. global_update), momentum is FedAvgM (Hsu, Qi and Brown 2019), adam is FedAdam
    (Reddi et al. 2021, Algorithm 2: without bias correction, and v begins with τ²).
    """

    optimiser: Optimiser = "sgd"
    rate: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """η_g"""
    momentum: _Decay = 0.9
    """β₁ of momentum and adam"""
    second_momentum: _Decay = 0.99
    """β₂ of adam"""
    epsilon: Annotated[float, Meta(ge=1e-12, le=1e6)] = 1e-3
    """τ of adam"""
    averaged: Annotated[tuple[tuple[_Position, _Position], ...], Meta(max_length=65_536)] = ()
    """Where the model has averages, such as BatchNorm's running statistics: from … up to, in ascending order.

    They have no direction to gather speed in, and no scale to be freed of. Momentum and adam leave them alone:
    they move by the mean update itself. sgd treats all alike.
    """

    def __post_init__(self) -> None:
        """Hold everybody to the bounds above; msgspec itself looks only at what it decodes."""
        for name, kind in _kinds().items():
            value = getattr(self, name)
            try:
                msgspec.structs.force_setattr(self, name, msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                raise ParameterError(
                    f"{name} = {value!r} of the step: {error}",
                    rule=f"{name} of the step is in range",
                ) from None
        if self.optimiser not in OPTIMISERS:
            raise ParameterError(
                f"optimiser = {self.optimiser!r} of the step is unknown; there are {', '.join(OPTIMISERS)}",
                rule="optimiser of the step is known",
            )
        ends = [position for span in self.averaged for position in span]
        if any(later <= earlier for earlier, later in zip(ends[::2], ends[1::2], strict=True)) or (
            ends != sorted(ends)
        ):
            raise ParameterError(
                "averaged of the step: the parts are empty, overlap or descend",
                rule="averaged parts ascend",
            )

    @classmethod
    def of(cls, options: OptimiserOptions, averaged: tuple[tuple[int, int], ...] = ()) -> StepRule:
        """The step that these settings ask for; not set, η_g is what suits the optimiser."""
        known = OPTIMISERS.get(options.server_optimiser)
        usual = known.usual_rate if known else 1.0  # `cls` refuses an unknown one
        return cls(
            options.server_optimiser,
            rate=usual if options.global_rate is None else options.global_rate,
            momentum=options.server_momentum,
            second_momentum=options.server_second_momentum,
            epsilon=options.server_epsilon,
            averaged=averaged,
        )

    def fresh_state(self, model: Model) -> OptimiserState:
        """The state before the first step."""
        self.require_fits(model.size)
        return tuple(np.full_like(model, value) for value in self.moves_by.first(self))

    @property
    def moves_by(self) -> ServerOptimiser:
        """The optimiser itself."""
        return OPTIMISERS[self.optimiser]

    def step(
        self, model: Model, state: OptimiserState, weighted_sum: Reals, total_weight: float
    ) -> tuple[Model, OptimiserState]:
        """The next model and the next state, from Σ s·Δ and Σ s."""
        _require_small_numbers()
        stepped, after = np.empty_like(model), tuple(np.empty_like(each) for each in state)
        for here, move in self._segments(model.size):
            before = [each[here].astype(np.float64) for each in state]
            way, moved = move(self, weighted_sum[here], total_weight, before)
            stepped[here] = np.subtract(model[here], way, out=way)
            for each, values in zip(after, moved, strict=True):
                each[here] = values
        return stepped, after

    def require_fits(self, size: int) -> None:
        """Refuse averages that lie beyond a model of d = `size` numbers."""
        if self.averaged and self.averaged[-1][-1] > size:
            raise ParameterError(
                f"averaged of the step goes up to {self.averaged[-1][1]}, the model has d = {size} numbers",
                rule="averaged parts lie within d",
            )

    def _segments(self, size: int) -> Iterator[tuple[slice, _Move]]:
        """All of the model in pieces, each with how it moves."""
        self.require_fits(size)
        by = self.moves_by
        move, apart = by.move, () if by.moves_averages else self.averaged
        at = 0
        for start, stop in (*apart, (size, size)):
            yield from ((here, move) for here in _slices(at, start))
            yield from ((here, _move_by_mean) for here in _slices(start, stop))
            at = stop


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(StepRule, include_extras=True)


def _require_small_numbers() -> None:
    """A library may have told the processor to take the smallest numbers for zero: that is another step."""
    if not np.multiply(_SMALLEST, 1.0).all():
        raise LocalProtocolError(
            "this process takes very small numbers for zero, so it would come to another model: do not let"
            " a library flush subnormal numbers (torch.set_flush_denormal, -ffast-math)"
        )


_SMALLEST = np.array([5e-324])
"""Subnormal numbers."""


def _slices(start: int, stop: int) -> Iterator[slice]:
    for at in range(start, stop, _SEGMENT):
        yield slice(at, min(at + _SEGMENT, stop))


_Move: TypeAlias = Callable[
    [StepRule, Reals, float, Sequence[Reals]], tuple[Reals, Sequence[Reals]]
]
"""From Σ s·Δ, Σ s and the state: what is subtracted from the model, and the next state."""


def _move_by_sgd(
    rule: StepRule, weighted_sum: Reals, total_weight: float, state: Sequence[Reals]
) -> tuple[Reals, Sequence[Reals]]:
    """η_g·Δ̄"""
    return weighted_sum * (rule.rate / total_weight), state


def _move_by_momentum(
    rule: StepRule, weighted_sum: Reals, total_weight: float, state: Sequence[Reals]
) -> tuple[Reals, Sequence[Reals]]:
    """m ← β₁·m + Δ̄; η_g·m"""
    m = rule.momentum * state[0] + weighted_sum / total_weight
    return rule.rate * m, (m,)


def _move_by_adam(
    rule: StepRule, weighted_sum: Reals, total_weight: float, state: Sequence[Reals]
) -> tuple[Reals, Sequence[Reals]]:
    """m ← β₁·m + (1 − β₁)·Δ̄; v ← β₂·v + (1 − β₂)·Δ̄²; η_g·m / (√v + τ)"""
    mean = weighted_sum / total_weight
    m = rule.momentum * state[0] + (1 - rule.momentum) * mean
    v = rule.second_momentum * state[1] + (1 - rule.second_momentum) * (mean * mean)
    return rule.rate * m / (np.sqrt(v) + rule.epsilon), (m, v)


def _move_by_mean(
    rule: StepRule, weighted_sum: Reals, total_weight: float, state: Sequence[Reals]
) -> tuple[Reals, Sequence[Reals]]:
    """Δ̄"""
    return weighted_sum / total_weight, state


@dataclass(frozen=True)
class ServerOptimiser:
    """All that is to be known about one optimiser."""

    about: str
    """Who it is by, in a word or two."""
    move: _Move
    usual_rate: float
    """η_g where nobody chose one: whole steps of updates that are some versions old overshoot."""
    first: Callable[[StepRule], tuple[float, ...]] = lambda rule: ()
    """What its arrays are filled with before the first step, a number for each; it may have none."""
    uses: tuple[str, ...] = ()
    """The numbers of a `StepRule` that it asks for, besides the rate."""
    moves_averages: bool = False
    """Whether it treats averages like all the rest."""


OPTIMISERS: dict[str, ServerOptimiser] = {
    "sgd": ServerOptimiser("the paper", _move_by_sgd, 0.5, moves_averages=True),
    "momentum": ServerOptimiser(
        "FedAvgM", _move_by_momentum, 0.05, lambda rule: (0.0,), ("momentum",)
    ),
    "adam": ServerOptimiser(
        "FedAdam",
        _move_by_adam,
        0.003,
        lambda rule: (0.0, rule.epsilon * rule.epsilon),
        ("momentum", "second_momentum", "epsilon"),
    ),
}
"""Every optimiser there is. What is not here is refused, wherever it is named."""
PAPER_STEP = StepRule()
"""η_g = 1: the model moves by the mean update."""
USUAL_RATES: dict[str, float] = {name: each.usual_rate for name, each in OPTIMISERS.items()}


def state_hash(version: int, state: OptimiserState) -> bytes:
    """The state that goes with a version of the model: every number of it; zeros where there is none."""
    if not state:
        return bytes(32)
    dtype = state[0].dtype.newbyteorder("<").str
    header = f"basecagg/optimiser/{version}/{len(state)}/{dtype}/".encode()
    digest = hashlib.sha256(header)
    for each in state:
        digest.update(model_bytes(each))
    return digest.digest()


def state_bytes(state: OptimiserState) -> bytes:
    """All numbers as little-endian bytes, one array after the other."""
    return b"".join(map(model_bytes, state))


def state_from(data: bytes, rule: StepRule, dtype: str, size: int) -> OptimiserState:
    """Read the state of a model of d = `size` numbers of this type."""
    count, found = len(rule.moves_by.first(rule)), len(data)
    expected = count * size * np.dtype(dtype).itemsize
    if found != expected:
        raise StorageError(
            f"the stored state of the server's optimiser has {found} bytes, that of {rule.optimiser} for"
            f" d = {size} has {expected}: go on with the optimiser that was stored, or begin anew"
        )
    return tuple(np.frombuffer(data, dtype).reshape(count, size))
