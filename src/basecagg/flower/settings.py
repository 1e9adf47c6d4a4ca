"""The options of the strategy: those of `options` that go with Flower, and Flower's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeAlias

import numpy as np
from flwr.app import MetricRecord, RecordDict

from basecagg import options
from basecagg.errors import ParameterError
from basecagg.flower.contract import Contract
from basecagg.maths.staleness import StalenessFunction, polynomial
from basecagg.options import Consistency, Count, Fraction, Masks, Positive, Range, Seconds, Weights
from basecagg.parameters import ProtocolParameters, fields_from
from basecagg.planning.budget import Budget, in_parameters, spend
from basecagg.privacy import Privacy
from basecagg.protocol.step_rule import StepRule
from basecagg.protocol.weighing import Weighing

MetricsFunction: TypeAlias = Callable[[list[RecordDict], str], MetricRecord]
Options = ParamSpec("Options")
_USUAL_BUFFER = 10
"""K of FedBuff's paper."""


@dataclass(frozen=True, kw_only=True)
class Settings(
    # The fields of the last group come first.
    options.BurnOptions,
    options.AnswerOptions,
    options.LevelOptions,
    options.TrustOptions,
    options.CommitteeOptions,
    options.ExampleOptions,
    options.OptimiserOptions,
    options.ConcurrencyOptions,
    options.SumOptions,
):
    """How `BufferedSecAgg` trains and protects. Everything has a default that works."""

    # --- another default or type than elsewhere ---
    buffer_size: Count | None = None
    """On Flower, not set: half of the nodes that are there at the start, from 2 (certified: 3) to 10."""
    concurrency: Count | None = None
    """On Flower, not set: what FedAvg would sample by `fraction_train` and `min_train_nodes`."""
    masks: Masks | None = options.MaskOptions.masks
    weights: Weights | None = None
    """On Flower, not set: own, but field where training is attached and there is no `privacy`. A node that
    trains within a message hears of no newer version before it replies, and takes every update for fresh."""
    staleness: StalenessFunction | None = None
    """On Flower as an object. Not set: polynomial()."""
    weigh_examples: Positive | None = None
    """On Flower n_i is the app's `weighted_by_key`. It is multiplied in on a node and never sent; over many
    buffers that is FedAvg's weighting."""
    holders: int | Sequence[int] | None = None
    """On Flower also the ids of nodes; everyone counts who is there at the start."""
    consistency: Consistency = "honest-server"
    """Certified takes every holder another visit before a sum opens, and Flower's server asks when it likes."""
    answer_timeout: Annotated[float, Range(0, above=True), "SECONDS"] = 60.0
    """A node answers when its SuperNode next fetches its messages, for as long as it takes."""
    seed: int | None = None
    """On Flower it makes the choice of nodes repeatable. Not set: another choice in each run."""

    # --- training ---
    protection: Literal["basecagg", "none"] = "basecagg"
    """With "basecagg" updates are hidden in sums of K. "none" is FedBuff in clear, which needs no mod
    (and with the mod, that each node is told so: basecagg-protection="none" in its config or the run's)."""
    holders_train: bool = True
    """False keeps the holders free for answering."""
    privacy: Budget | None = None
    """ε, δ, k_max and C of all that a node ever uploads. Nodes then clip updates to C in the 2-norm, weigh
    them, add noise, keep their own ledgers and stop when their budget is spent; z and c_l are chosen for it.
    Metrics, evaluations on nodes and `weigh_examples` are refused with it."""

    # --- metrics ---
    train_metrics: Mapping[str, float] | None = None
    """What is averaged inside the secure sum, each with the largest value it can have, e.g.
    {"train_loss": 10.0}; anything else that a client reports stays there. Every member of a buffer counts alike
    (times s(τ)), and the epoch binds names and limits."""
    evaluate_metrics: Mapping[str, float] | None = None
    """The same for evaluations."""
    fraction_evaluate: Annotated[float, Range(0, 1)] = 0.0
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
    collect_interval: Seconds = 5.0
    """Seconds between two questions whether detached training is over, once it may be, judging by the node's
    last one."""
    fraction_train: Fraction = 1.0
    """The part of the nodes that train at the same time, unless `concurrency` is given."""
    min_train_nodes: int = 2
    """At least this many train at the same time, unless `concurrency` is given."""
    min_available_nodes: int = 2
    """Nodes that must be there before anything begins."""
    max_failures: Count = 5
    """Failures in a row (trainings, whatever it does well between them, or messages) after which a node trains
    no more until it reconnects. What it fails at is dropped, counted and named in the log, and it is asked
    again after a pause; when fewer than K nodes are left the run ends."""
    arrayrecord_key: str = "arrays"
    """Where the app's model is in a message."""
    configrecord_key: str = "config"
    """Where the app's config is in a message."""

    # --- state ---
    server_state: str | Path | None = None
    """A file that a restarted ServerApp goes on from."""
    erase_state: bool = True
    """False keeps what nodes have stored when the run is over."""
    poll_interval: Seconds | None = None
    """Seconds between two looks for replies. Not set: 0.1 on the simulation engine, and 1 on the deployment
    engine, where the SuperLink pays for each."""

    def __post_init__(self) -> None:
        """Refuse what cannot work before any node is asked."""
        options.check(self)
        for name, fits, wanted in self._rules():
            if not fits:
                raise ParameterError(
                    f"{name} = {getattr(self, name)!r} must be {wanted}", rule=f"{name} is {wanted}"
                )
        _ = self.step, self.contract  # whatever is wrong in them is said now
        if self.privacy is not None:
            size = self.buffer_size or _USUAL_BUFFER
            spend(self.privacy, size, self.max_colluding_contributors, 1, self._weight)
        if self.protection == "basecagg" and self.committee_size and self.buffer_size:
            self.parameters(self.committee_size, model_size=1)

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """What options must obey together: a name, whether it does, and what would."""
        size = self.buffer_size
        named = not self.evaluate or self.protection == "none" or bool(self.evaluate_metrics)
        few = not self.evaluate or size is None or self.min_evaluate_nodes <= size
        for name in _IN_CLEAR:
            fits = self.protection == "none" or getattr(self, name) is None
            yield name, fits, _NOTHING_TO_AGGREGATE
        yield "fraction_evaluate", named, _UNNAMED
        yield "min_evaluate_nodes", few, f"at most K = {size}: that many evaluate in a version"
        if self.privacy is not None:
            yield "privacy", self.privacy.unit == "user", _USERS
            yield "weights", self.weights != "field", _WEIGHED_NOISE
            for name, wanted in _WITH_PRIVACY.items():
                yield name, getattr(self, name) == getattr(Settings, name), wanted

    # --- what follows from them ---

    @cached_property
    def step(self) -> StepRule:
        """The server's optimiser."""
        return StepRule.of(self)

    @cached_property
    def contract(self) -> Contract:
        """What every node puts behind its update."""
        named = self.train_metrics, self.evaluate_metrics if self.evaluate else None
        trained, evaluated = (
            {name: float(limit) for name, limit in (limits or {}).items()} for limits in named
        )
        examples, weight = self.weigh_examples or 0.0, self.weighted_by_key
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

    def placed(self, *, simulated: bool) -> Settings:
        """These settings with who weighs, once it is known where training is."""
        attached = simulated or self.training == "attached"
        told = not attached or self.privacy is not None
        return replace(self, weights=self.weights or ("own" if told else "field"))

    @property
    def weighing(self) -> Weighing:
        """FedBuff's own weights, without levels."""
        return Weighing(self.max_staleness, self._weight, "field")

    @property
    def _weight(self) -> StalenessFunction:
        return self.staleness or polynomial()

    def promises(self, privacy: Privacy | None) -> bool:
        """Whether an epoch with this privacy is what these settings ask for."""
        if self.privacy is None or privacy is None:
            return self.privacy is None and privacy is None
        return all(getattr(privacy, name) == getattr(self.privacy, name) for name in _PROMISED)

    def parameters(self, num_holders: int, model_size: int) -> ProtocolParameters:
        """The epoch's parameters for so many holders; what was left open gets the largest T and U that fit."""
        weighing = {"staleness": self._weight, "weights": self.weights or "own"}
        chosen = fields_from(self, num_holders) | weighing | {"privacy": None}
        if self.privacy is not None:  # nodes weigh their updates, and the least noise is chosen
            size, silent = self.chosen_buffer_size, self.max_colluding_contributors
            chosen |= in_parameters(spend(self.privacy, size, silent, model_size, self._weight))
        return ProtocolParameters(model_size=model_size, **chosen)


_PROMISED = ("epsilon", "delta", "max_uses", "clip_norm")
_CHOSEN = "left out with privacy: it follows from the budget"
_WEIGHED_NOISE = "'own' with privacy: server and holders would weigh the noise as well"
_USERS = (
    "a budget of users: that an app clips every record in its training cannot be seen from here"
)
_WITH_PRIVACY = {
    "protection": "'basecagg' with privacy: noise hides nobody while updates leave one by one",
    "weigh_examples": "None with privacy: how many examples a node has is not under the budget's clip",
    "train_metrics": "None with privacy: a metric would have to share the clip and the noise of the update."
    " Look at the model with evaluate_fn, on data of the server's own: that costs nothing",
    "fraction_evaluate": "0 with privacy: what nodes find would have to be paid from the same budget. Look at"
    " the model with evaluate_fn, on data of the server's own: that costs nothing",
    "clip": _CHOSEN,
    "update_levels": _CHOSEN,
    "weight_levels": _CHOSEN,
}
"""What has to be as it is unless told, with `privacy`."""
_RENAMED = {"examples_per_node": "weigh_examples"}
"""Options of 0.2.0 that have another name now."""
_IN_CLEAR = ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
_NOTHING_TO_AGGREGATE = (
    "left out unless protection='none': the server sees no node's metrics that it could aggregate. Name in"
    " train_metrics and evaluate_metrics what is averaged inside the sum"
)
_UNNAMED = "0 unless evaluate_metrics names what is to be averaged inside the sum, e.g. {'eval_loss': 10.0}"


def _require_known(names: Iterable[str]) -> None:
    known = [each.name for each in fields(Settings)]
    for name in names:
        if name not in known:
            like = get_close_matches(_RENAMED.get(name, name), known, n=1)
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
        def made(self: Any, /, *none: Options.args, **given: Options.kwargs) -> None:
            _require_known(given)
            plain: Any = {name: _plain(value) for name, value in given.items()}
            init(self, settings(*none, **plain))

        own, fields = inspect.signature(init), inspect.signature(settings)
        parameters = [own.parameters["self"], *fields.parameters.values()]
        made.__name__, made.__doc__ = init.__name__, init.__doc__
        made.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return made

    return decorate


def _plain(value: object) -> object:
    """numpy has numbers of its own."""
    return value.item() if isinstance(value, np.generic) else value
