"""Everything that a simulated run depends on: one schema for the library, TOML files and `--set key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec

from basecagg.errors import DataError, ParameterError
from basecagg.maths.staleness import SHAPES, StalenessFunction, of_shape
from basecagg.parameters import Consistency, ProtocolParameters, usual_tolerance
from basecagg.planning.budget import in_parameters, private_sums
from basecagg.privacy import Privacy, Unit
from basecagg.protocol.step_rule import OPTIMISERS, StepRule
from basecagg.simulation.config_rules import rules_for
from basecagg.simulation.protections import Pair, preset, require_compatible

Measure = Literal["versions", "updates", "seconds"]
Speed = Literal["constant", "uniform", "half-normal", "log-normal"]
_USUAL_CONCURRENCY = 20


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """A federation to simulate. Every number has a default; `method` is what most people change."""

    # --- what is compared
    method: str = "basecagg"
    """A well-known name for the next two."""
    schedule: str = ""
    """When updates meet; '' is as the method has it."""
    protection: str = ""
    """How updates are protected; '' is as the method has it."""
    cryptography: Literal["full", "arithmetic"] = "full"
    """The whole protocol, sealed and signed, or only its field arithmetic (for sweeps)."""

    # --- what is learned
    dataset: str = "digits"
    """The examples: digits lie inside scikit-learn, others are official files in `data_dir`."""
    model: str = "mlp"
    """What is trained."""
    data_dir: str = "data"
    """Where the data sets lie: mnist/, fashion-mnist/ and cifar-10-batches-bin/ below it."""
    download: bool = False
    """Fetch the files of the data set that are missing."""
    partition: Literal["iid", "dirichlet", "shards"] = "iid"
    """How the examples are dealt to the users: evenly, unevenly by label, or a few labels to each."""
    dirichlet_alpha: float = 0.5
    """α of the Dirichlet partition: the smaller, the less even."""
    shards_per_user: int = 2
    """Of the shards partition: about as many labels has a user."""

    # --- the federation
    users: int = 100
    """Contributors."""
    concurrency: int = 0
    """C: users that train at the same time; 0 means 20, or all users if they are fewer."""
    buffer_size: int = 10
    """K: updates in one step."""
    versions: int = 60
    """Steps of the global model to simulate, unless `until` says when to end."""
    until: str = ""
    """updates=600 or seconds=120 (simulated): the first version to reach it is the last; '' counts versions."""
    max_staleness: int = 10
    """τ_max: an update made from an older model is of no use."""
    staleness: str = "polynomial"
    """s(τ): how the weight of an update falls with its age."""
    staleness_a: float = 1.0
    """The first number of s(τ): α of the polynomial, a of the hinge."""
    staleness_b: float = 4.0
    """The second: b of the hinge."""
    server_optimiser: str = "sgd"
    """The server's step."""
    global_rate: float = 0.0
    """η_g; 0 means what is usual for the optimiser. Larger steps of old updates overshoot."""
    server_momentum: float = 0.9
    """β₁, where the optimiser has one."""
    server_second_momentum: float = 0.99
    """β₂, where the optimiser has one."""
    server_epsilon: float = 1e-3
    """τ, where the optimiser has one."""
    fedasync_mixing: float = 0.6
    """α of FedAsync."""
    tiers: int = 5
    """M of FedAT."""

    # --- local training
    local_rate: float = 0.2
    """η_l: the users' learning rate."""
    local_epochs: int = 5
    """Passes over a user's examples; 0 if `local_steps` is given."""
    local_steps: int = 0
    """E, instead of epochs."""
    batch_size: int = 50
    """Examples in one SGD step."""
    weight_decay: float = 0.0
    """λ of the L2 regularisation."""
    weigh_examples: bool = False
    """Scale each update by n_i over the mean n (the paper's w_i)."""

    # --- protection
    holders: int = 0
    """N: size of the committee of holders; 0 means that every user is one (the paper)."""
    max_colluders: int = 0
    """T; 0 chooses the largest that the other numbers allow, at most 8."""
    max_dropouts: int = -1
    """D; -1 means 30 % of the holders."""
    recovery_threshold: int = 0
    """U: right answers that determine a sum; 0 means as many as are sure to come."""
    holder_dropout: float = 0.0
    """Share of the holders that are gone at each recovery."""
    clip: float = 4.0
    """B: every element of an update is clipped to ±B."""
    update_levels: int = 2**16
    """c_l: quantisation levels per unit of an update."""
    weight_levels: int = 2**6
    """c_g: quantisation levels of the staleness weight."""
    modulus: int = 2**32 - 5
    """q: the size of the field."""
    consistency: Consistency = "certified"
    """Whether holders certify a request before they answer (a cheating server), or trust it (the paper)."""
    correctness: Literal["", "agreed", "honest-holders"] = ""
    """Whether a sum opens when U + T answers agree, or from any U (the paper); '' if consistency is to say."""
    liars: int = 0
    """E: holders whose wrong answers must not stop an opening."""
    min_per_version: int = 0
    """m: members that each base version in a sum must have; 0 means 3 if certified, else 1 (the paper)."""
    verify: bool = True
    """Whether every version of a sealed and signed run is made again from its parts, and compared."""
    allow_wraparound: bool = False
    """Sum in the field whatever c_l is, and see what that does: without masks, for no epoch accepts it."""
    auto_tune: bool = False
    """Let the federation find B and c_l: `clip` and `update_levels` are only where it starts."""
    tune_after: int = 10
    """Versions that an epoch lasts at least before B and c_l are chosen anew."""
    dp_clip_norm: float = 1.0
    """C: with differential privacy every update is shortened to this length in the 2-norm."""
    dp_noise: float = -1.0
    """z: σ = z·C of the noise in a sum, or in an update of local DP; -1 means as dp_epsilon says, or 1."""
    dp_epsilon: float = 0.0
    """ε of all that a user sends, from which z follows; 0 means that ε follows from z."""
    dp_delta: float = 1e-5
    """δ that goes with ε."""
    dp_max_uses: int = 10
    """k_max: updates of one user that ε covers; nobody sends more."""
    dp_unit: Unit = "user"
    """Whose ε it is: of all that a user sends, or of each record: then users take one step, on a sample."""
    dp_sampling_rate: float = 1.0
    """With unit record, the probability with which each is in a sample; batch_size is the usual size of one."""
    dp_levels: int = 0
    """c_l of sums with noise; 0 chooses the coarsest at which rounding costs next to nothing."""
    dp_staleness: str = "constant"
    """s(τ) of sums with noise, by which contributors weigh their updates; numbers as staleness has them."""
    max_colluding_contributors: int = -1
    """T_c: contributors that may work with the server, and whose noise does not count; -1 means T."""

    attackers: int = 0
    """Users 0…n−1 lie: they multiply their updates, and neither clip them by their length nor add noise."""
    attack_factor: float = 100.0
    """What they multiply by; 0 means as much as the bound of a private sum hides, and backwards."""

    # --- time
    clock: Literal["devices", "uniform-staleness"] = "devices"
    """Devices with speeds, or the paper's clock: staleness uniform on 0…τ_max."""
    speed: Speed = "half-normal"
    """How compute time per step is distributed over users."""
    seconds_per_step: float = 0.5
    """Compute time of one SGD step on the fastest (half-normal) or typical device."""
    speed_spread: float = 1.0
    """Standard deviation relative to `seconds_per_step`; of the logarithm for log-normal."""
    up_mbps: float = 20.0
    """A user's uplink, in megabits a second."""
    down_mbps: float = 100.0
    """A user's downlink, in megabits a second."""
    latency: float = 0.05
    """Seconds one way."""
    dropout: float = 0.0
    """Probability that a user that started to train never comes back with an update."""
    availability: float = 1.0
    """Probability that a user is there when it is chosen."""
    crypto_time: Literal["prices", "stopwatch"] = "prices"
    """Charge cryptography by a list of measured prices, or as this run takes, which cannot be repeated."""

    # --- the run
    seed: int = 1
    """Everything random comes from it."""
    evaluate_every: int = 1
    """Versions from one evaluation on the test examples to the next."""
    evaluate_last: int = 1
    """So many of the last versions are evaluated one by one: the mean of a few says more than one."""
    checkpoint_every: int = 20
    """Versions from one checkpoint, from which a run can be resumed, to the next."""
    executor: Literal["in-process", "processes", "ray"] = "in-process"
    """Who trains; all give the same result."""
    workers: int = 0
    """Processes or Ray tasks at once; 0 means one per core."""
    ray_address: str = ""
    """An existing Ray cluster; '' starts a local one."""

    def __post_init__(self) -> None:
        """Check what can be checked without data."""
        for name, words in choices().items():
            if getattr(self, name) not in tuple(words):
                raise _misfit(name, getattr(self, name), _one_of(words))
        for name, fits, wanted in rules_for(self):
            if not fits:
                raise _misfit(name, getattr(self, name), wanted)
        if self.pair.guard.masks == "coded":
            self._require_openable(self.protocol_parameters(model_size=1))

    def _require_openable(self, parameters: ProtocolParameters) -> None:
        """With too many holders gone at every recovery no sum would open, and the run would never end."""
        certified = parameters.consistency == "certified"
        needed = max(parameters.answers_needed, parameters.quorum if certified else 0)
        gone = int(self.holder_dropout * parameters.num_holders)
        if parameters.num_holders - gone < needed:
            raise ParameterError(
                f"holder_dropout = {self.holder_dropout:g} leaves {parameters.num_holders - gone} of"
                f" {parameters.num_holders} holders, and a sum needs {needed}: lower it, or"
                " recovery_threshold",
                rule="holders that stay ≥ answers needed and quorum",
            )

    @property
    def pair(self) -> Pair:
        """The schedule and the protection that the method stands for, unless another is named."""
        usual = preset(self.method) if self.method else Pair("", "")
        return require_compatible(
            self.schedule or usual.schedule, self.protection or usual.protection
        )

    @property
    def users_at_once(self) -> int:
        """C, as it is used. What was not given stays so in `concurrency`, for `replace` may change `users`."""
        return self.concurrency or min(_USUAL_CONCURRENCY, self.users)

    @property
    def server_rate(self) -> float:
        """η_g, as it is used; likewise of `global_rate`, for every optimiser has its own."""
        return self.global_rate or OPTIMISERS[self.server_optimiser].usual_rate

    def as_used(self) -> SimulationConfig:
        """The same run, with these two written out: to compare with, and to read."""
        return replace(self, concurrency=self.users_at_once, global_rate=self.server_rate)

    @property
    def ending(self) -> tuple[Measure, float]:
        """What is counted to the end of the run, and how much of it."""
        measure, given, amount = self.until.partition("=")
        return (cast(Measure, measure), float(amount)) if given else ("versions", self.versions)

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        named = self.method and self.pair == preset(self.method)
        return self.method if named else f"{self.pair.schedule}+{self.pair.protection}"

    @property
    def staleness_function(self) -> StalenessFunction:
        """s(τ)"""
        return self._function(self.staleness)

    @property
    def contributor_weight(self) -> StalenessFunction:
        """s(τ̂) of private sums, in which the server weighs nothing."""
        return self._function(self.dp_staleness)

    @property
    def privacy_of_records(self) -> Privacy | None:
        """By what users clip each record; None where users are the unit. Noise is none of their training's."""
        return None if self.dp_unit == "user" else private_sums(self, 1, 1).privacy

    def _function(self, shape: str) -> StalenessFunction:
        numbers = (self.staleness_a, self.staleness_b)
        return of_shape(shape, *numbers[: len(SHAPES[shape].numbers)])

    def step_rule(self, weights: int, size: int) -> StepRule:
        """The server's step for a model of d = `size` numbers; behind the weights it has running statistics."""
        return StepRule(
            self.server_optimiser,
            rate=self.server_rate,
            momentum=self.server_momentum,
            second_momentum=self.server_second_momentum,
            epsilon=self.server_epsilon,
            averaged=((weights, size),) if weights < size else (),
        )

    def protocol_parameters(self, model_size: int) -> ProtocolParameters:
        """The parameters of a BASecAgg epoch for this run, or of LightSecAgg: no staleness, so no weights."""
        holders = self.holders or self.users
        dropouts, colluders, threshold = usual_tolerance(
            holders,
            self.buffer_size,
            self.consistency,
            self.correctness or None,
            max_dropouts=self.max_dropouts if self.max_dropouts >= 0 else None,
            max_colluders=self.max_colluders,
            recovery_threshold=self.recovery_threshold,
            liars=self.liars,
        )
        chosen: dict[str, Any] = {name: getattr(self, name) for name in _AS_THEY_ARE}
        chosen |= {"staleness": self.staleness_function, **self.pair.guard.fixes}
        given, private = self.max_colluding_contributors, self.pair.guard.private
        silent = colluders if given < 0 else given
        if private:
            chosen |= in_parameters(private(self, model_size, silent))
        return ProtocolParameters(
            num_holders=holders,
            recovery_threshold=threshold,
            max_colluders=colluders,
            max_dropouts=dropouts,
            max_colluding_contributors=silent,
            model_size=model_size,
            correctness=self.correctness or None,
            min_per_version=self.min_per_version or None,
            # This clock draws the version of every update by itself, and may draw one twice for a user.
            repeated_versions=self.clock == "uniform-staleness",
            **chosen,
        )


_AS_THEY_ARE = (
    *("buffer_size", "max_staleness", "clip", "update_levels", "weight_levels", "modulus"),
    *("consistency", "liars", "allow_wraparound"),
)
"""Settings that are parameters of an epoch under the same name."""


def read_settings(path: Path | None) -> dict[str, Any]:
    """The settings in a TOML file; none if there is no file."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"cannot read the configuration {path}: {error}") from None


def config_from(values: Mapping[str, Any]) -> SimulationConfig:
    """A configuration from plain values, as TOML and JSON have them."""
    types = get_type_hints(SimulationConfig)
    for name in values:
        if name not in types:
            like = get_close_matches(name, types, n=1)
            hint = f"did you mean {like[0]}? " if like else ""
            raise ParameterError(
                f"unknown setting {name!r}: {hint}`basecagg run --settings` explains them all",
                rule="settings are known",
            )
    return SimulationConfig(**{name: _as(types[name], name, values[name]) for name in values})


def _as(kind: Any, name: str, value: Any) -> Any:
    """The value as the setting's type has it: 4 is a number too, but '4' is text."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        words = choices().get(name)
        raise _misfit(name, value, _one_of(words) if words else _KINDS[kind]) from None


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _misfit(name: str, value: Any, wanted: str) -> ParameterError:
    return ParameterError(f"{name} = {value!r} must be {wanted}", rule=f"{name} {wanted}")


def _one_of(words: Collection[str]) -> str:
    return f"one of {', '.join(words)}"


def choices() -> dict[str, Collection[str]]:
    """The settings that take one of a few words, with these words."""
    return {
        **_literals(),
        "staleness": SHAPES,
        "dp_staleness": SHAPES,
        "server_optimiser": OPTIMISERS,
    }


@cache
def _literals() -> dict[str, Sequence[str]]:
    types = get_type_hints(SimulationConfig).items()
    return {name: get_args(kind) for name, kind in types if get_origin(kind) is Literal}


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` from the command line, the value read as TOML, or as plain text if it is none."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"'{text}' is not key=value", rule="--set key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), _PYTHONIC.get(value.strip(), value.strip())


_PYTHONIC = {"True": True, "False": False}
"""What people write who come from Python."""
