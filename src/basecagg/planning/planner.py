"""Choose parameters for a federation, or say why none work and which wishes to change.

Pure: the same wishes give the same plan on every machine. The rules are those of `ProtocolParameters`; the
planner only searches among what they allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import count
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, get_args

from basecagg.costs import Network, Phase, phases, storage_per_holder, wire_seconds
from basecagg.errors import ParameterError
from basecagg.maths.approved_rings import KEY_MODULI, KEY_SIZE
from basecagg.maths.staleness import StalenessFunction, exact_value, polynomial
from basecagg.options import (
    Consistency,
    Count,
    MaskOptions,
    Masks,
    SumOptions,
    TrustOptions,
    WeightOptions,
    Weights,
)
from basecagg.parameters import ProtocolParameters, usual_correctness
from basecagg.planning.buckets import Buckets, choose_buckets
from basecagg.planning.budget import Budget, in_parameters, spend
from basecagg.printing import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

Cpu: TypeAlias = Mapping[int, Mapping[str, float]]
"""Predicted seconds: U → step → seconds. The chosen U has all steps; empty if nothing was measured."""
VARYING = ("encode", "decode")
"""The steps that the table over U shows."""
DEFAULT_BUFFER = 10
"""K of the paper's experiments."""
DEFAULT_NETWORK = Network(up=10.0, down=50.0)
"""A phone on an ordinary mobile line."""
ENOUGH_LEVELS = 2**15
"""c_l for which words of three bytes are narrow enough; where they leave fewer, words have four."""
COARSEST_WEIGHT = 4
"""c_g·s(τ_max) is at least this, so that rounding changes no weight by more than a quarter."""
TABLE_ROWS = 6
"""Rows in the table of how cost changes with U, the chosen one aside."""
_AS_WISHED = (
    *("num_holders", "max_dropouts", "liars", "model_size", "max_staleness"),
    *("consistency", "correctness", "min_per_version", "max_colluding_contributors", "masks"),
)
"""Wishes that are parameters by the same name, without a choice."""
_LARGEST_DELTA = 1e-3
"""A δ above it promises too little to be proposed."""


@dataclass(frozen=True, kw_only=True)
class Wishes(SumOptions, TrustOptions):
    """What the federation is, and what it wants to withstand. None lets the planner choose."""

    num_holders: int
    """N: holders of shares."""
    max_dropouts: int = field()
    """A plan has to say it."""
    model_size: int
    """d: numbers in one update."""
    contributors: int | None = None
    """Users who send updates. Not set: N."""
    update_levels: Count | None = None
    """c_l. Not set: the largest power of two with which no sum wraps around; with a budget, by the noise."""
    staleness: StalenessFunction = field(default_factory=polynomial)
    weights: Weights = WeightOptions.weights
    masks: Masks | None = MaskOptions.masks
    network: Network = DEFAULT_NETWORK
    """A user's line."""
    budget: Budget | None = None
    """What each contributor is to be promised about its privacy, if anything."""
    liars_among_contributors: float | None = None
    """The share of contributors that may send bad updates. The plan then tells what several sums for one
    version would take; so far only simulations have them."""

    @property
    def agreed(self) -> bool:
        """Whether answers have to agree."""
        return (self.correctness or usual_correctness(self.consistency)) == "agreed"

    def largest_threshold(self, colluders: int) -> int:
        """The largest U.

        If answers have to agree: N − D − E right answers are sure to come, minus T because U + T have to agree.
        Otherwise (honest holders): N − D.
        """
        margin = colluders + self.liars if self.agreed else 0
        return self.num_holders - self.max_dropouts - margin

    @property
    def all_contributors(self) -> int:
        """`contributors` with its default filled in: in the paper every user is holder and contributor."""
        return self.num_holders if self.contributors is None else self.contributors


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """Parameters that fulfil the wishes, and what they cost. It prints as `basecagg plan` does."""

    wishes: Wishes
    """What was asked for."""
    parameters: ProtocolParameters
    """What to run a federation with."""
    phases: tuple[Phase, ...]
    """Bytes of one user, phase by phase."""
    options: tuple[ProtocolParameters, ...]
    """The same with other U, so that one sees how cost changes with it."""
    modes: Mapping[Consistency, str]
    """Why a consistency mode does not work with the chosen N, D, T and K; empty if it does."""
    cpu: Cpu = field(default_factory=dict)
    """Processor time, if it was measured."""
    buckets: Buckets | None = None
    """What would withstand attackers among the contributors, if there are to be any."""

    def measured(self) -> Plan:
        """The same plan with processor time, predicted from small pieces of the work on this machine."""
        # Imported here: an impossible wish is answered before numpy and numba are loaded.
        from basecagg.planning.calibration import predict

        cpu = {p.recovery_threshold: predict(p, VARYING) for p in self.options}
        chosen = {self.parameters.recovery_threshold: predict(self.parameters)}
        return replace(self, cpu=cpu | chosen)

    def __rich__(self) -> RenderableType:
        from basecagg.planning.rendering import render

        return render(self)

    @property
    def why_masks(self) -> str:
        """Why masks grow from keys, or why they are as long as the model."""
        p = self.parameters
        if self.wishes.masks is not None:
            return "as asked for"
        if p.masks == "keys":
            return f"the model has d = {p.model_size:,} numbers, more than a key, n = {KEY_SIZE:,}"
        if p.weights == "field":
            return "weights are in the field: a sum of errors with different weights would tell the keys"
        if p.model_size <= KEY_SIZE:
            return (
                f"the model has d = {p.model_size:,} numbers, no more than a key, n = {KEY_SIZE:,}"
            )
        return "more than 2³⁰ words must not grow from one key"

    @property
    def spare_bits(self) -> float:
        """log₂ of how much larger a sum could become before it wraps around."""
        return math.log2(self.parameters.room_for_sum / self.parameters.largest_sum)

    @property
    def holder_bytes(self) -> int:
        """What a holder stores at most."""
        return self.storage_with(self.parameters)

    def storage_with(self, parameters: ProtocolParameters) -> int:
        """The same with other parameters, such as one of the `options`."""
        return storage_per_holder(parameters, self.wishes.all_contributors)


def choose(wishes: Wishes) -> Plan:
    """Choose parameters. If there are none, raise the reason and the nearest wishes that are possible."""
    try:
        skeleton = _skeleton(wishes)
        parameters = _cheapest_threshold(_levelled(skeleton, wishes), wishes.network)
    except ParameterError as error:
        raise ParameterError(f"{error}{_ways_out(wishes)}", rule=error.rule) from None
    share = wishes.liars_among_contributors
    return Plan(
        buckets=None if share is None else choose_buckets(parameters, share),
        wishes=wishes,
        parameters=parameters,
        phases=phases(parameters),
        options=tuple(_options(parameters, wishes)),
        modes={name: _reason_against(name, parameters) for name in get_args(Consistency)},
    )


_Fields = ParamSpec("_Fields")


def _with_the_fields_of(wish: Callable[_Fields, Wishes]) -> Callable[_Fields, Plan]:
    """A function whose arguments are the fields of `Wishes`, so that they are written down once."""

    def plan(*args: _Fields.args, **kwargs: _Fields.kwargs) -> Plan:
        """Choose parameters for a federation, and say what they cost; `print` shows it all.

        The arguments are the fields of `Wishes`: what the federation is, and what it must withstand. If
        they cannot be met, `ParameterError` gives the reason and the nearest wishes that can.
        """
        return choose(wish(*args, **kwargs))

    fields = signature(wish).replace(return_annotation="Plan")
    setattr(plan, "__signature__", fields)  # noqa: B010 - a function's type does not declare it
    return plan


plan = _with_the_fields_of(Wishes)


# Choosing: first what the wishes fix, then the levels, then U.


def _skeleton(wishes: Wishes) -> ProtocolParameters:
    """Parameters that follow from the wishes alone, with the largest U and the coarsest c_l."""
    colluders = _colluders(wishes)
    top = wishes.largest_threshold(colluders)
    if top < colluders + 1:
        sure = f"{wishes.num_holders} − {wishes.max_dropouts}"
        agreed = f"N − D − T − E = {sure} − {colluders} − {wishes.liars}"
        raise ParameterError(
            f"U must be at least T + 1 = {colluders + 1}, or T = {colluders} holders could read masks, and at"
            f" most {agreed if wishes.agreed else f'N − D = {sure}'} = {top}, or a sum might never open",
            rule="T + 1 ≤ U ≤ N − D − T − E" if wishes.agreed else "T + 1 ≤ U ≤ N − D",
        )
    return ProtocolParameters(
        **{name: getattr(wishes, name) for name in _AS_WISHED},
        **_numbers(wishes),
        recovery_threshold=top,
        max_colluders=colluders,
        buffer_size=_buffer_size(wishes),
        mask_lifetime=max(ProtocolParameters.mask_lifetime, 2 * wishes.max_staleness),
    )


def _numbers(wishes: Wishes) -> dict[str, Any]:
    """How updates become numbers: clip, levels and weights; with a budget also noise."""
    if wishes.budget is None:
        weighing: dict[str, Any] = {"staleness": wishes.staleness, "weights": wishes.weights}
        if wishes.weights == "field":
            weighing["weight_levels"] = _weight_levels(wishes)
        return weighing | {"clip": wishes.clip, "update_levels": wishes.update_levels or 1}
    members, silent = _buffer_size(wishes), wishes.max_colluding_contributors
    size, levels = wishes.model_size, wishes.update_levels
    mechanism = spend(wishes.budget, members, silent, size, wishes.staleness, levels=levels)
    return in_parameters(mechanism) | {"clip": max(wishes.clip, mechanism.privacy.longest)}


def _levelled(skeleton: ProtocolParameters, wishes: Wishes) -> ProtocolParameters:
    """The finest c_l, unless it is chosen already, and the narrowest q that leaves enough of them."""
    if skeleton.privacy or wishes.update_levels:
        return skeleton
    moduli = [q for q in KEY_MODULI if q >= skeleton.field_size]
    if skeleton.masks == "long":
        moduli = [skeleton.field_size]
    fine = [replace(skeleton, modulus=q).clipped_to(wishes.clip) for q in moduli]
    return next((p for p in fine if p.update_levels >= ENOUGH_LEVELS), fine[-1])


def _colluders(wishes: Wishes) -> int:
    """T: as wished; else as many as K − 2 contributors, half of U and the certificate's quorum allow."""
    if wishes.max_colluders is not None:
        return wishes.max_colluders
    buffer_size = wishes.buffer_size or DEFAULT_BUFFER
    sure = wishes.largest_threshold(0)
    limits = [buffer_size - 2, sure // 3 if wishes.agreed else sure // 2]
    if wishes.consistency == "certified":
        limits.append(wishes.num_holders - 2 * wishes.max_dropouts - 1)
    return max(1, wishes.liars, min(limits))


def _buffer_size(wishes: Wishes) -> int:
    """K: as wished. Otherwise the paper's 10, or more if needed: at least m, and T_c + 2 if certified.

    With T_c + 2, colluders cannot surround one honest update. With a budget K is also at least 2T_c, if there
    are that many contributors: then at most half of the noise is lost with the silent ones.
    """
    if wishes.buffer_size is not None:
        return wishes.buffer_size
    silent = wishes.max_colluding_contributors
    surrounded = silent + 2 if wishes.consistency == "certified" else 2
    least = max(DEFAULT_BUFFER, surrounded, wishes.min_per_version or 1)
    return max(least, min(2 * silent, wishes.all_contributors)) if wishes.budget else least


def _weight_levels(wishes: Wishes) -> int:
    """c_g: the smallest power of two that leaves the smallest weight exact or not too coarse.

    s falls from s(0) = 1, so s(τ_max) = 1 means that every weight is 1.
    """
    smallest = exact_value(wishes.staleness, wishes.max_staleness)
    if smallest == 1:
        return 1
    return next(1 << bits for bits in count() if (1 << bits) * smallest >= COARSEST_WEIGHT)


def _cheapest_threshold(parameters: ProtocolParameters, network: Network) -> ProtocolParameters:
    """U: the least time on the wire; of equals the smallest, which waits for fewer."""
    thresholds = range(parameters.max_colluders + 1, parameters.recovery_threshold + 1)
    candidates = (replace(parameters, recovery_threshold=u) for u in thresholds)
    return min(candidates, key=lambda candidate: wire_seconds(candidate, network))


# Showing: how cost changes with U, and what else would be possible.


def _options(chosen: ProtocolParameters, wishes: Wishes) -> Iterator[ProtocolParameters]:
    """Rows over the whole range of U; U − T grows by a constant factor, because cost goes as 1/(U − T)."""
    most = wishes.largest_threshold(chosen.max_colluders) - chosen.max_colluders
    pieces = {round(most ** (row / (TABLE_ROWS - 1))) for row in range(TABLE_ROWS)}
    for submasks in sorted(pieces | {chosen.submasks}):
        yield replace(chosen, recovery_threshold=chosen.max_colluders + submasks)


def _reason_against(mode: Consistency, parameters: ProtocolParameters) -> str:
    try:
        replace(parameters, consistency=mode)
    except ParameterError as error:
        return str(error)
    return ""


# Impossible wishes: change one of them at a time, as little as possible, until it works.


def _ways_out(wishes: Wishes) -> str:
    """Name, for each wish, the nearest value that alone would make a plan possible."""
    relaxed = replace(wishes, max_colluders=None, buffer_size=None)
    if found := _possible_changes(wishes):
        return f". Possible instead: {found}"
    if found := _possible_changes(relaxed):
        return f". Possible instead, with T and K left to the planner: {found}"
    return ""


def _possible_changes(wishes: Wishes) -> str:
    found = []
    for symbol, name, values in _knobs(wishes):
        value = next((each for each in values if _is_possible(wishes, name, each)), None)
        if value is not None:
            found.append(f"{symbol} = {value}")
    return " or ".join(found)


def _is_possible(wishes: Wishes, name: str, value: object) -> bool:
    """Whether a plan exists with another value for one wish, or for one field of the budget."""
    change: dict[str, Any] = {name: value}
    if wishes.budget is not None and hasattr(wishes.budget, name):
        change = {"budget": replace(wishes.budget, **change)}
    try:
        _skeleton(replace(wishes, **change))
    except ParameterError:
        return False
    return True


def _knobs(w: Wishes) -> Iterator[tuple[str, str, Iterable[object]]]:
    """Each wish by symbol and name, with other values for it: the nearest first."""
    # With N = 2T + 2D + E + 2 or more, both U and the quorum have room.
    colluders = max(w.max_colluders or 1, w.liars)
    enough = max(w.num_holders, 2 * (colluders + w.max_dropouts) + w.liars + 2)
    largest_buffer = max(w.min_per_version or 0, (w.max_colluders or 0) + 2)
    yield "T", "max_colluders", _nearby(w.max_colluders, 1, w.num_holders)
    yield "D", "max_dropouts", _nearby(w.max_dropouts, 0, w.num_holders)
    yield "E", "liars", _nearby(w.liars, 0, w.liars)
    yield "correctness", "correctness", ("honest-holders", "agreed")
    yield "N", "num_holders", _nearby(w.num_holders, 2, enough)
    yield "K", "buffer_size", _nearby(w.buffer_size, 2, largest_buffer)
    yield "m", "min_per_version", _nearby(w.min_per_version, 1, w.buffer_size or 1)
    yield "B", "clip", _halves(w.clip)
    silent, most = w.max_colluding_contributors, (w.buffer_size or DEFAULT_BUFFER) - 2
    yield "T_c", "max_colluding_contributors", _nearby(silent, 1, most)
    if w.budget is not None:
        deltas = _rising(w.budget.delta, 10)
        yield "ε", "epsilon", _rising(w.budget.epsilon, 1.1)
        yield "δ", "delta", (delta for delta in deltas if delta <= _LARGEST_DELTA)
        yield "k_max", "max_uses", _falling(w.budget.max_uses)
        yield "C", "clip_norm", _halves(w.budget.clip_norm)
    yield "τ_max", "max_staleness", map(int, _halves(w.max_staleness))
    yield "consistency", "consistency", ("honest-server", "certified")


def _nearby(value: int | None, low: int, high: int) -> Iterator[int]:
    """Whole numbers in low…high, nearest first; nothing if there is no wish to move."""
    if value is not None:
        yield from sorted(range(low, high + 1), key=lambda other: abs(other - value))


def _rising(value: float, factor: float) -> Iterator[float]:
    """Larger and larger numbers, of two digits."""
    return (float(f"{value * factor**n:.2g}") for n in range(1, 100))


def _falling(value: int) -> Iterator[int]:
    """Smaller and smaller whole numbers."""
    while value > 1:
        value = min(value - 1, int(value / 1.1))
        yield value


def _halves(value: float) -> Iterator[float]:
    """value/2, value/4, … while it is worth asking."""
    return (value / 2**n for n in range(1, 64)) if 0 < value < math.inf else iter(())
