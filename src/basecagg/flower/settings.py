"""The options of the strategy: each is spelled here, once, with its default, its meaning and its limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from flwr.app import MetricRecord, RecordDict

from basecagg.errors import ParameterError
from basecagg.flower.metrics import Contract
from basecagg.maths.staleness import StalenessFunction, constant, polynomial
from basecagg.parameters import Consistency, Correctness, ProtocolParameters, usual_tolerance
from basecagg.planning.budget import Budget, in_parameters, spend
from basecagg.privacy import Privacy
from basecagg.protocol.step_rule import OPTIMISERS, Optimiser, StepRule
from basecagg.protocol.weighing import Weighing

MetricsFunction: TypeAlias = Callable[[list[RecordDict], str], MetricRecord]
Options = ParamSpec("Options")
_USUAL_BUFFER = 10
"""K of FedBuff's paper."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How `BufferedSecAgg` trains and protects. Everything has a default that works."""

    # --- training ---
    buffer_size: int | None = None
    """K, the updates in one sum. Without it, half of the nodes that are there at the start, from 2 (certified:
    3) to 10."""
    concurrency: int | None = None
    """C, the nodes that train at the same time. Without it, what FedAvg would sample by `fraction_train` and
    `min_train_nodes`."""
    max_staleness: int = 10
    """τ_max: the oldest update that is admitted, in versions."""
    staleness: StalenessFunction | None = None
    """s(τ): how weight falls with age. Without it polynomial(), and with `privacy` constant()."""
    server_optimiser: Optimiser = "sgd"
    """How the mean update moves the model, in clear and masked alike: "sgd", "momentum" (FedAvgM) or "adam"
    (FedAdam). BatchNorm's running statistics move by the mean update itself under momentum and adam."""
    global_rate: float | None = None
    """η_g of the server's optimiser. Without it 0.5 for sgd, 0.05 for momentum, 0.003 for adam."""
    server_momentum: float = 0.9
    """β₁ of momentum and adam."""
    server_second_momentum: float = 0.99
    """β₂ of adam."""
    server_epsilon: float = 1e-3
    """τ of adam."""
    examples_per_node: float | None = None
    """Updates count alike; with this, each counts n_i / examples_per_node times, n_i being the app's
    `weighted_by_key`. It is multiplied in on a node and never sent; over many buffers it is FedAvg's
    weighting."""

    # --- protection ---
    protection: Literal["basecagg", "none"] = "basecagg"
    """With "basecagg" updates are hidden in sums of K. "none" is FedBuff in clear, which needs no mod
    (and with the mod, that each node is told so: basecagg-protection="none" in its config or the run's)."""
    holders: int | Sequence[int] | None = None
    """None for everyone who is there at the start (the paper), a number for a committee, or node ids."""
    holders_train: bool = True
    """False keeps the holders free for answering."""
    recovery_threshold: int | None = None
    """U. Without it, the largest that fits."""
    max_colluders: int | None = None
    """T. Without it, the largest up to 8 that fits."""
    max_dropouts: int | None = None
    """D. Without it, 30 % of the holders."""
    consistency: Consistency = "honest-server"
    """With "certified" a quorum of the holders endorses every sum before it opens."""
    correctness: Correctness | None = None
    """With "agreed" a sum opens when U + T answers agree, so that T lying holders cannot write it; with
    "honest-holders" from any U (the paper). Without it, "agreed" if `consistency` is "certified"."""
    liars: int = 0
    """E: with correctness="agreed", lying holders that cannot stop a sum either."""
    min_per_version: int | None = None
    """m, the members that each version in a sum must have. Without it 3 if `consistency` is "certified",
    else 1."""
    clip: float = 4.0
    """B: the largest magnitude of a number in an update."""
    update_levels: int = 2**16
    """c_l"""
    weight_levels: int = 2**6
    """c_g"""
    privacy: Budget | None = None
    """ε, δ, k_max and C of all that a node ever uploads. Nodes then clip updates to C in the 2-norm, weigh
    them, add noise, keep their own ledgers and stop when their budget is spent; z and c_l are chosen for it.
    Metrics, evaluations on nodes and `examples_per_node` are refused with it."""
    max_colluding_contributors: int | None = None
    """T_c: nodes that may tell the server their noise, so that it does not count. Without it, T."""

    # --- metrics ---
    train_metrics: Mapping[str, float] | None = None
    """What is averaged inside the secure sum, each with the largest value it can have, e.g.
    {"train_loss": 10.0}; anything else that a client reports stays there. Every member of a buffer counts alike
    (times s(τ)), and the epoch binds names and limits."""
    evaluate_metrics: Mapping[str, float] | None = None
    """The same for evaluations."""
    fraction_evaluate: float = 0.0
    """Above 0, every node evaluates the model it is about to train, so K nodes in each version: a sum in which
    only some had would be about them alone."""
    min_evaluate_nodes: int = 2
    """At most K."""
    weighted_by_key: str = "num-examples"
    """What the app calls n_i."""
    train_metrics_aggr_fn: MetricsFunction | None = None
    """Flower's own, with protection="none" only; else refused, for the server has nothing to aggregate."""
    evaluate_metrics_aggr_fn: MetricsFunction | None = None
    """The same for evaluations."""

    # --- nodes ---
    training: Literal["detached", "attached"] = "detached"
    """Where: "detached" in a process beside the SuperNode's, which can answer meanwhile, or "attached" within
    the message. On the simulation engine training is always attached."""
    collect_interval: float = 5.0
    """Seconds between two questions whether detached training is over, once it may be, judging by the node's
    last one."""
    fraction_train: float = 1.0
    """The part of the nodes that train at the same time, unless `concurrency` is given."""
    min_train_nodes: int = 2
    """At least so many train at the same time, unless `concurrency` is given."""
    min_available_nodes: int = 2
    """Nodes that must be there before anything begins."""
    max_failures: int = 5
    """Failures in a row (trainings, whatever it does well between them, or messages) after which a node trains
    no more until it reconnects. What it fails at is dropped, counted and named in the log, and it is asked
    again after a pause; when fewer than K nodes are left the run ends."""
    arrayrecord_key: str = "arrays"
    """Where the app's model is in a message."""
    configrecord_key: str = "config"
    """Where the app's config is in a message."""

    # --- time and state ---
    answer_timeout: float = 60.0
    """Seconds after which silent holders are asked the same again, for as long as it takes."""
    retries: int = 20
    """How often they are asked again before a sum is given up whose answers disagree."""
    max_burns: int = 1
    """How often another sum may take the place of one that was given up, in each version, for each tells of the
    same model; then the run ends, and says so."""
    server_state: str | Path | None = None
    """A file that a restarted ServerApp goes on from."""
    erase_state: bool = True
    """False keeps what nodes have stored when the run is over."""
    poll_interval: float | None = None
    """Seconds between two looks for replies. Without it 0.1 on the simulation engine, and 1 on the deployment
    engine, where the SuperLink pays for each."""
    seed: int | None = None
    """Makes the choice of nodes repeatable (never the masks)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work before any node is asked."""
        for name, kind in get_type_hints(Settings).items():
            if not _fits(getattr(self, name), kind):
                wanted = _in_words(kind)
                raise ParameterError(
                    f"{name} = {getattr(self, name)!r} must be {wanted}", rule=f"{name} is {wanted}"
                )
        for name, fits, wanted in self._rules():
            if not fits:
                raise ParameterError(
                    f"{name} = {getattr(self, name.split()[0])!r} must be {wanted}",
                    rule=f"{name} is {wanted}",
                )
        _ = self.step, self.contract  # whatever is wrong in them is said now
        if self.privacy is not None:
            size, silent = self.buffer_size or _USUAL_BUFFER, self.max_colluding_contributors or 1
            spend(self.privacy, size, silent, 1, self._weight)
        if self.protection == "basecagg" and self.committee_size and self.buffer_size:
            self.parameters(self.committee_size, model_size=1)

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Each option that has limits, whether it keeps to them, and what would."""
        for name, choices in _CHOICES.items():
            yield name, getattr(self, name) in choices, f"one of {choices}"
        for name in _AT_LEAST_ONE:
            value = getattr(self, name.split()[0])
            yield name, value is None or value >= 1, "at least 1, or None to let it be chosen"
        examples, size = self.examples_per_node, self.buffer_size
        positive = examples is None or 0 < examples < float("inf")
        named = not self.evaluate or self.protection == "none" or bool(self.evaluate_metrics)
        few = not self.evaluate or size is None or self.min_evaluate_nodes <= size
        if self.protection != "none":
            for name in _IN_CLEAR:
                yield name, getattr(self, name) is None, _NOTHING_TO_AGGREGATE
        yield "max_burns", 0 <= self.max_burns < 2**16, "from 0 to 65535"
        yield "fraction_train", 0 < self.fraction_train <= 1, "above 0 and at most 1"
        yield "fraction_evaluate", 0 <= self.fraction_evaluate <= 1, "between 0 and 1"
        yield "examples_per_node", positive, "positive, or None for updates that count alike"
        yield "fraction_evaluate", named, _UNNAMED
        yield "min_evaluate_nodes", few, f"at most K = {size}: so many evaluate in a version"
        if self.privacy is not None:
            yield "privacy", self.privacy.unit == "user", _USERS
            for name, wanted in _WITH_PRIVACY.items():
                yield name, getattr(self, name) == getattr(Settings, name), wanted

    # --- what follows from them ---

    @cached_property
    def step(self) -> StepRule:
        """The server's optimiser."""
        known, rate = OPTIMISERS.get(self.server_optimiser), self.global_rate
        if known is not None and rate is None:
            rate = known.usual_rate
        return StepRule(
            self.server_optimiser,
            rate=1.0 if rate is None else rate,
            momentum=self.server_momentum,
            second_momentum=self.server_second_momentum,
            epsilon=self.server_epsilon,
        )

    @cached_property
    def contract(self) -> Contract:
        """What every node puts behind its update."""
        named = self.train_metrics, self.evaluate_metrics if self.evaluate else None
        trained, evaluated = (
            {name: float(limit) for name, limit in (limits or {}).items()} for limits in named
        )
        examples, weight = self.examples_per_node or 0.0, self.weighted_by_key
        return Contract(trained, evaluated, examples, weight, tells_cuts=self.privacy is None)

    @property
    def evaluate(self) -> bool:
        """Whether every member of a buffer evaluates, or none."""
        return self.fraction_evaluate > 0

    def concurrency_among(self, present: int) -> int:
        """C: as told, or as many as FedAvg would sample."""
        sampled = max(int(present * self.fraction_train), self.min_train_nodes)
        return self.concurrency or sampled

    @property
    def committee_size(self) -> int | None:
        """N, when it does not depend on who is there."""
        if self.holders is None or isinstance(self.holders, int):
            return self.holders
        return len(self.holders)

    @property
    def chosen_buffer_size(self) -> int:
        """K, once it is known."""
        assert self.buffer_size is not None
        return self.buffer_size

    def fitting(self, contributors: int) -> Settings:
        """These settings with a K: half of the nodes that train, so that nobody waits for all of them."""
        if self.buffer_size is not None:
            return self
        least = 3 if self.consistency == "certified" else 2
        return replace(self, buffer_size=min(_USUAL_BUFFER, max(least, -(-contributors // 2))))

    @property
    def weighing(self) -> Weighing:
        """FedBuff's own weights, without levels."""
        return Weighing(self.max_staleness, self._weight, None)

    @property
    def _weight(self) -> StalenessFunction:
        return self.staleness or (polynomial() if self.privacy is None else constant())

    def promises(self, privacy: Privacy | None) -> bool:
        """Whether an epoch with this privacy is what these settings ask for."""
        if self.privacy is None or privacy is None:
            return self.privacy is None and privacy is None
        same = all(getattr(privacy, name) == getattr(self.privacy, name) for name in _PROMISED)
        return same and privacy.staleness == self._weight

    def parameters(self, num_holders: int, model_size: int) -> ProtocolParameters:
        """The epoch's parameters for so many holders; what was left open gets the largest T and U that fit."""
        dropouts, colluders, threshold = usual_tolerance(
            num_holders,
            self.chosen_buffer_size,
            self.consistency,
            self.correctness,
            max_dropouts=self.max_dropouts,
            max_colluders=self.max_colluders,
            recovery_threshold=self.recovery_threshold,
            liars=self.liars,
        )
        kept = ("clip", "update_levels", "weight_levels")
        numbers = {name: getattr(self, name) for name in kept} | {"staleness": self._weight}
        if self.privacy is not None:  # nodes weigh their updates, and the least noise is chosen
            size, silent = self.chosen_buffer_size, self.max_colluding_contributors or colluders
            numbers = in_parameters(spend(self.privacy, size, silent, model_size, self._weight))
        return ProtocolParameters(
            num_holders=num_holders,
            recovery_threshold=threshold,
            max_colluders=colluders,
            max_dropouts=dropouts,
            buffer_size=self.chosen_buffer_size,
            model_size=model_size,
            max_staleness=self.max_staleness,
            max_colluding_contributors=self.max_colluding_contributors,
            **numbers,
            consistency=self.consistency,
            correctness=self.correctness,
            liars=self.liars,
            min_per_version=self.min_per_version,
        )


_CHOICES = {"protection": ("basecagg", "none"), "training": ("detached", "attached")}
_AT_LEAST_ONE = (
    *("buffer_size K", "concurrency C", "max_colluders T", "max_colluding_contributors T_c"),
    *("recovery_threshold U", "min_per_version m", "max_failures"),
)
_PROMISED = ("epsilon", "delta", "max_uses", "clip_norm")
_CHOSEN = "left out with privacy: it follows from the budget"
_USERS = (
    "a budget of users: that an app clips every record in its training cannot be seen from here"
)
_WITH_PRIVACY = {
    "protection": "'basecagg' with privacy: noise hides nobody while updates leave one by one",
    "examples_per_node": "None with privacy: how many examples a node has is not under the budget's clip",
    "train_metrics": "None with privacy: a metric would have to share the clip and the noise of the update."
    " Look at the model with evaluate_fn, on data of the server's own: that costs nothing",
    "fraction_evaluate": "0 with privacy: what nodes find would have to be paid from the same budget. Look at"
    " the model with evaluate_fn, on data of the server's own: that costs nothing",
    "clip": _CHOSEN,
    "update_levels": _CHOSEN,
    "weight_levels": _CHOSEN,
}
"""What has to be as it is unless told, with `privacy`."""
_IN_CLEAR = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
_NOTHING_TO_AGGREGATE = (
    "left out unless protection='none': the server sees no node's metrics that it could aggregate. Name in"
    " train_metrics and evaluate_metrics what is averaged inside the sum"
)
_UNNAMED = "0 unless evaluate_metrics names what is to be averaged inside the sum, e.g. {'eval_loss': 10.0}"


_NUMBERS = {int: Integral, float: Real}
"""numpy has numbers of its own."""


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type that an option was declared with."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if origin is Sequence and isinstance(value, str):
        return False
    return isinstance(value, origin or kind)


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        *others, last = (_in_words(each) for each in get_args(kind))
        return f"{', '.join(others)} or {last}"
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    return "None" if kind is NoneType else str((get_origin(kind) or kind).__name__)


def _require_known(options: Iterable[str]) -> None:
    known = [each.name for each in fields(Settings)]
    for name in options:
        if name not in known:
            like = get_close_matches(name, known, n=1)
            hint = f"did you mean {like[0]}?" if like else "help(BufferedSecAgg) lists them."
            raise TypeError(
                f"BufferedSecAgg has no option '{name}': {hint} When a run ends, num_rounds of start() says"
            )


def as_keywords(
    settings: Callable[Options, Settings],
) -> Callable[[Callable[[Any, Settings], None]], Callable[Concatenate[Any, Options], None]]:
    """Let an `__init__` take the fields of the settings as keywords, for type checkers and `help` alike."""

    def decorate(
        init: Callable[[Any, Settings], None],
    ) -> Callable[Concatenate[Any, Options], None]:
        def made(self: Any, /, *none: Options.args, **options: Options.kwargs) -> None:
            _require_known(options)
            init(self, settings(*none, **options))

        own, fields = inspect.signature(init), inspect.signature(settings)
        parameters = [own.parameters["self"], *fields.parameters.values()]
        made.__name__, made.__doc__ = init.__name__, init.__doc__
        made.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return made

    return decorate
