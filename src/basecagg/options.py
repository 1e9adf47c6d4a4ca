"""Every setting, once: its name, type, limits, default and meaning. `check` holds values to types and limits.

Each class below is a group of settings that belong together. What a driver takes is a class that inherits some
of these groups (`VIEWS` lists them): a simulated run, the strategy on Flower, a command. A field that such a
class declares again has another default or type there, and the string below it says why.

None always means "not set", and the meaning says what is used then. In a TOML file a setting that is left out
is not set; on the command line `--set name=none` takes one back.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from itertools import pairwise
from math import inf
from types import ModuleType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from basecagg.errors import ParameterError


class Range(NamedTuple):
    """The limits of a number, as a note in its type. `above` and `below` leave out the limit itself."""

    least: float = -inf
    most: float = inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number keeps to them; NaN does not."""
        high = value > self.least if self.above else value >= self.least
        return high and (value < self.most if self.below else value <= self.most)

    @property
    def words(self) -> str:
        """The limits for an error and for the table of settings."""
        low = f"above {self.least:g}" if self.above else f"at least {self.least:g}"
        high = f"below {self.most:g}" if self.below else f"at most {self.most:g}"
        if self.most == inf:
            return f"{low} and finite" if self.below else low
        both = not self.above and not self.below
        return f"between {self.least:g} and {self.most:g}" if both else f"{low}, {high}"


Count: TypeAlias = Annotated[int, Range(1)]
NotNegative: TypeAlias = Annotated[int, Range(0)]
Positive: TypeAlias = Annotated[float, Range(0, inf, above=True, below=True)]
Amount: TypeAlias = Annotated[float, Range(0, inf, below=True)]
Seconds: TypeAlias = Annotated[float, Range(0, inf, below=True), "SECONDS"]
Fraction: TypeAlias = Annotated[float, Range(0, 1, above=True)]
Odds: TypeAlias = Annotated[float, Range(0, 1, below=True)]
Delta: TypeAlias = Annotated[float, Range(0, 1, above=True, below=True)]
Days: TypeAlias = Annotated[float, Range(0, inf, above=True, below=True), "DAYS"]

Consistency = Literal["certified", "honest-server"]
Weights = Literal["own", "field"]
Masks = Literal["long", "keys"]
Protection = Literal["basecagg", "none"]
Correctness = Literal["agreed", "honest-holders"]
Unit = Literal["user", "record"]
Speed = Literal["constant", "uniform", "half-normal", "log-normal"]
Verify: TypeAlias = Literal["auto", "always", "sample", "never"]


# --- sums and who is trusted: runs, Flower, epochs, plans --------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SumOptions:
    """What a sum is made of."""

    buffer_size: Count | None = None
    """K: updates in one sum. Not set: 10, or more if T and m ask for it."""
    max_staleness: NotNegative = 10
    """τ_max: versions that an update may be old. One made from an older model is refused."""
    clip: Positive = 4.0
    """B: every number of an update is clipped to ±B."""


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """How the numbers of an update become whole numbers."""

    update_levels: Count = 2**16
    """c_l: quantisation levels per unit of an update."""
    weight_levels: Count | None = None
    """c_g: quantisation levels of the staleness weight in the field. Not set: 64; own weights are not in the
    field, so there it is 1."""


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """The field in which updates are added."""

    modulus: int | None = None
    """q: the size of the field, a prime. Not set: 2³² − 5 with long masks; with keys 2²⁴ − 16383, or
    2³² − 12287 where a sum needs more room. Below 2²⁴ a word takes three bytes on the wire, above it four."""
    allow_wraparound: bool = False
    """Sum in the field even if the sum may wrap around, to see what that does. No epoch accepts it."""


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """What a federation withstands."""

    max_colluders: Count | None = None
    """T: holders that may pool all they know and still learn nothing. Not set: the largest that fits; runs and
    Flower choose at most 8."""
    max_dropouts: NotNegative | None = None
    """D: holders that may be gone when a sum is opened. Not set: 30 % of the holders."""
    liars: NotNegative = 0
    """E: holders whose wrong answers must not stop an opening, even while D others are gone."""
    consistency: Consistency = "certified"
    """"certified": a quorum of holders endorses every sum before it opens, so that the server may cheat.
    "honest-server": holders trust it to follow the protocol, as the paper does."""
    correctness: Correctness | None = None
    """"agreed": a sum opens when U + T answers agree, so that T lying holders cannot write it.
    "honest-holders": any U answers open it, as in the paper. Not set: agreed if certified."""
    min_per_version: Count | None = None
    """m: members that each base version in a sum must have, so that no version singles a user out. Not set:
    T_c + 2 if certified, from 3 to K; else 1."""
    max_colluding_contributors: NotNegative = 1
    """T_c: contributors that may work with the server; with differential privacy their noise does not count."""


@dataclass(frozen=True, kw_only=True)
class CommitteeOptions:
    """Who holds shares."""

    holders: Annotated[int, Range(2)] | Sequence[int] | None = None
    """N: size of the committee of holders. Not set: every user is one, as in the paper."""
    recovery_threshold: Count | None = None
    """U: right answers that determine a sum. Not set: as many as are sure to come."""


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """How much an update counts by its age."""

    staleness: str = "polynomial"
    """s(τ): the weight of an update made τ versions ago: constant, polynomial:α or hinge:a:b, such as
    polynomial:0.5. Numbers that are left out are α = 1, a = 10 and b = 4."""
    weights: Weights = "own"
    """Who multiplies by it. "own": each contributor its own update, by 2^−t with t = ⌊log₂ 1/s(τ)⌋, so that all
    weigh the same in the field. "field": server and holders, by c_g·s(τ), as in the paper; one opened sum then
    tells more about a member than the sum of numbers does."""


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """What hides an update."""

    masks: Masks | None = None
    """"long": a mask as long as the model, shared whole, as in the paper; sums are exact. "keys": a mask that
    grows from a key of 2048 words. Only the key is shared, so an upload with its shares is hardly longer than
    the model. Every opened number has an error of about 2.83·√K steps of 1/c_l; weights are own, and that keys
    stay secret rests on ring-LWE. Not set: keys where the model is longer than a key and weights are own,
    else long."""


@dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """How much an update counts by the data behind it."""

    weigh_examples: Positive | Literal["mean"] | None = None
    """An update counts n_i / this number times, n_i being how many examples its user has. Not set: all updates
    count alike."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Differential privacy: what a contributor is promised."""

    epsilon: Positive | None = None
    """ε of all that one user ever uploads, or of each record of its data. Not set: no promise."""
    delta: Delta = 1e-6
    """δ that goes with ε: well below one over the number of users."""
    max_uses: Count = 1
    """k_max: uploads of one user that ε covers; nobody sends more."""
    clip_norm: Positive = 1.0
    """C: the 2-norm to which an update is clipped, or what each record adds to it."""
    unit: Unit = "user"
    """Whose ε it is: of all that a user uploads, or of each record of its data (hospitals)."""
    sampling_rate: Fraction = 1.0
    """P: with unit record, the probability with which a record is in an upload."""


@dataclass(frozen=True, kw_only=True)
class PromiseOptions(BudgetOptions):
    """What a budget has to know of the data."""

    records: Count = 1
    """With unit record: how many records one contributor has, about."""


# --- the server's step, asking holders: runs, Flower, the service ------------------------------------


@dataclass(frozen=True, kw_only=True)
class OptimiserOptions:
    """How the mean update moves the model."""

    server_optimiser: str = "sgd"
    """The server's step: sgd, momentum (FedAvgM) or adam (FedAdam)."""
    global_rate: Annotated[float, Range(0, 1e6, above=True)] | None = None
    """η_g: the server's learning rate. Not set: 0.5 for sgd, 0.05 for momentum, 0.003 for adam. Large steps of
    old updates overshoot."""
    server_momentum: Odds = 0.9
    """β₁ of momentum and adam."""
    server_second_momentum: Odds = 0.99
    """β₂ of adam."""
    server_epsilon: Annotated[float, Range(1e-12, 1e6)] = 1e-3
    """τ of adam."""


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How long the server waits for holders."""

    answer_timeout: Annotated[float, Range(0, inf, above=True, below=True), "SECONDS"] = 30.0
    """Seconds to wait for the holders' answers before silent ones are asked again."""
    retries: Count = 20
    """How often they are asked again before a sum whose answers disagree is given up."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Who checks the server's work."""

    verify: Verify = "auto"
    """Which versions of the model are made again from their parts, and compared. With auto always, or samples
    where the parts of a version take more than 64 MB."""


@dataclass(frozen=True, kw_only=True)
class BurnOptions:
    """How many sums may be tried."""

    max_burns: Annotated[int, Range(0, 2**16 - 1)] = 1
    """How often another sum may take the place of one that was given up, in each version. Each of them might
    have been opened and tells of the same model, so few are better."""


# --- a simulated run ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """What is compared."""

    method: str = "basecagg"
    """A well-known name for a schedule and a protection."""
    schedule: str | None = None
    """When updates meet. Not set: as the method has it."""
    protection: str | None = None
    """How updates are protected. With "none" the server sees every update: plain FedBuff. In a run, if not set:
    as the method has it."""
    cryptography: Literal["full", "arithmetic"] = "full"
    """The whole protocol, sealed and signed, or only its field arithmetic (for sweeps)."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is learned."""

    dataset: str = "digits"
    """The examples: digits lie inside scikit-learn, others are official files in `data_dir`."""
    model: str = "mlp"
    """What is trained."""
    data_dir: str = "data"
    """Where the data sets lie: mnist/, fashion-mnist/ and cifar-10-batches-bin/ below it."""
    download: bool = False
    """Fetch the files of the data set that are missing."""
    partition: str = "iid"
    """How the examples are dealt to the users: evenly (iid), unevenly by label (dirichlet), a few labels to
    each (shards), or as the data set says (owners)."""
    dirichlet_alpha: Positive = 0.5
    """α of the Dirichlet partition: the smaller, the less even."""
    shards_per_user: Count = 2
    """With `partition=shards`: shards per user, which is about the number of labels a user has."""


@dataclass(frozen=True, kw_only=True)
class ConcurrencyOptions:
    """How many train at a time."""

    concurrency: Count | None = None
    """C: users that train at the same time. Not set: 20, or all users if they are fewer."""


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How many users, and how long."""

    users: Count = 100
    """Contributors."""
    versions: Count = 60
    """Steps of the global model to simulate, unless `until` says when to end."""
    until: str | None = None
    """updates=600 or seconds=120 (simulated): the first version to reach it is the last. Not set: `versions`
    says when to end."""
    fedasync_mixing: Fraction = 0.6
    """α of FedAsync."""
    tiers: Count = 5
    """M of FedAT."""


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Local training."""

    client: str = "plain"
    """What users do in training besides taking steps. There is only "plain" until you add your own."""
    local_optimiser: str = "sgd"
    """What takes their steps: sgd, adam or adamw. It begins afresh with every training."""
    local_rate: Positive = 0.2
    """η_l: the users' learning rate. Adam and AdamW want a smaller one, such as 0.001."""
    local_epochs: Count | None = None
    """Passes over a user's examples. Not set: 5, unless `local_steps` is given."""
    local_steps: Count | None = None
    """E: steps of local training, instead of epochs."""
    batch_size: Count = 50
    """Examples in one step."""
    weight_decay: Amount = 0.0
    """λ of the L2 regularisation; AdamW takes it off the weights themselves."""


@dataclass(frozen=True, kw_only=True)
class RunProtectionOptions:
    """What only a simulation can do with a protection: missing holders, noise of a chosen strength, liars."""

    holder_dropout: Odds = 0.0
    """The fraction of the holders that are gone at each recovery."""
    auto_tune: bool = False
    """Let the federation find B and c_l: `clip` and `update_levels` are only where it starts."""
    tune_after: Count = 10
    """Versions that an epoch lasts at least before B and c_l are chosen anew."""
    noise: Amount | None = None
    """z: σ = z·C of the noise in a sum, or in an update of local DP. Not set: as epsilon says, or 1."""
    private_levels: Count | None = None
    """c_l of sums with noise. Not set: the coarsest at which rounding costs next to nothing."""
    attack: str | None = None
    """What some contributors do: they send something else than their updates. Not set: nobody does."""
    attackers: Odds = 0.0
    """The share of the users that do it, users 0…n−1; at least one if it is above 0. They do not clip their
    updates by their length and add no noise."""
    attack_strength: float | None = None
    """How strong the attack is, where that can be chosen. Not set: as usual for it; and where sums have a bound
    on their length, sign-flip is as long as that bound hides."""


@dataclass(frozen=True, kw_only=True)
class BucketOptions:
    """How many sums a version is made of."""

    buckets: Count = 1
    """g: a version is made of this many sums, of K/g members each. So far in simulations only."""
    robust_mean: str = "centred-clipping"
    """How one update of the model is made of the means of several buckets."""


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """The clock of a simulated run."""

    clock: str = "devices"
    """Devices with speeds, or the paper's clock: staleness uniform on 0…τ_max."""
    speed: Speed = "half-normal"
    """How compute time per step is distributed over users."""
    seconds_per_step: Positive = 0.5
    """Compute time of one SGD step on the fastest (half-normal) or typical device."""
    speed_spread: Amount = 1.0
    """Standard deviation relative to `seconds_per_step`; of the logarithm for log-normal."""
    up_mbps: Positive = 20.0
    """A user's uplink, in megabits a second."""
    down_mbps: Positive = 100.0
    """A user's downlink, in megabits a second."""
    latency: Amount = 0.05
    """Seconds one way."""
    dropout: Odds = 0.0
    """Probability that a user that started to train never comes back with an update."""
    availability: Fraction = 1.0
    """Probability that a user is there when it is chosen."""
    crypto_time: Literal["prices", "stopwatch"] = "prices"
    """Charge cryptography by a list of measured prices, or as this run takes, which cannot be repeated."""


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """How a simulated run is carried out."""

    seed: NotNegative = 1
    """Makes all random choices repeatable but those of secrets."""
    evaluate_every: Count = 1
    """Versions from one evaluation on the test examples to the next."""
    evaluate_last: Count = 1
    """This many of the last versions are evaluated one by one: the mean of a few says more than one."""
    checkpoint_every: Count = 20
    """Versions from one checkpoint, from which a run can be resumed, to the next."""
    executor: Literal["in-process", "processes", "ray"] = "in-process"
    """Who trains; all give the same result."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where users train and models are scored. "cuda" was never tried: our machines have none. Its
    results differ from the CPU's in the last bits."""
    workers: Count | None = None
    """Processes or Ray tasks at once. Not set: one per core."""
    ray_address: str | None = None
    """An existing Ray cluster. Not set: a local one is started."""


# --- the service --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(AnswerOptions):
    """What the operator of a server decides about sums."""

    keep_versions: Count = 2
    """R: versions of the model whose parts are kept, for members who make them again."""


@dataclass(frozen=True, kw_only=True)
class ServingOptions(ServiceOptions):
    """What else the operator of a server decides."""

    database: Annotated[str | None, "URL"] = None
    """Where to keep everything: postgresql+psycopg://user@host/name. Not set: SQLite in the server's folder."""
    standby: bool = False
    """While another server has the database, wait; take over when it is gone."""
    host: str = "0.0.0.0"  # noqa: S104 - users call from elsewhere
    """The address to listen at."""
    port: Annotated[int, Range(0, 65535)] = 8443
    """The port to listen at."""
    tls: Annotated[bool, "--tls/--no-tls"] = True
    """TLS with tls.pem and tls.key of the server's folder; off only behind a proxy that does it."""
    member_rate: Positive = 50.0
    """Requests per second of one participant; beyond that it gets 429."""
    evaluate: Annotated[str | None, "MODULE:FUNCTION"] = None
    """Your own test of a model, f(vector, info) → number; shown on the page."""
    open_here: bool = False
    """Show the page on this machine, called localhost, without its token; not behind a proxy."""


@dataclass(frozen=True, kw_only=True)
class EpochOptions(BurnOptions):
    """How long an epoch lasts."""

    epoch_days: Annotated[Days, "--days"] = 365.0
    """How long the epoch may last. After that no agent answers in it, by its own clock: rotate before."""
    key_timeout: Annotated[Seconds, "--wait"] = 60.0
    """How long to wait for holders whose sealing key is missing."""


@dataclass(frozen=True, kw_only=True)
class InvitationOptions:
    """How long an invitation lasts."""

    invitation_days: Annotated[Days, "--days"] = 14.0
    """How long an invitation admits somebody; after that invite again."""


@dataclass(frozen=True, kw_only=True)
class MemberOptions(VerifyOptions):
    """What a user's agent insists on, and how it works."""

    max_epsilon: Annotated[Positive | None, "ε"] = None
    """Join only epochs with differential privacy of this ε or less, for all that this user ever uploads."""
    max_delta: Annotated[Delta, "δ"] = 1e-5
    """The largest δ that goes with `max_epsilon`."""
    verify_fraction: Fraction = 0.5
    """The fraction of the versions, where samples are taken."""
    pause: Seconds = 0.0
    """Rest between two updates."""
    longest_wait: Annotated[float, Range(0.1), "SECONDS"] = 30.0
    """The longest time between two attempts to reach the server."""


VIEWS = {
    "run": "basecagg.simulation.config:SimulationConfig",
    "Flower": "basecagg.flower.settings:Settings",
    "parameters": "basecagg.parameters:ProtocolParameters",
    "planner": "basecagg.planning.planner:Wishes",
    "budget": "basecagg.planning.budget:Budget",
    "`plan`": "basecagg.commands.plan:_PlanOptions",
    "`operator start`": "basecagg.commands.operator.epochs:_StartOptions",
    "`operator invite`": "basecagg.commands.operator.people:_InviteOptions",
    "`serve`": "basecagg.commands.serve:_ServeOptions",
    "`join`": "basecagg.commands.join:_JoinOptions",
}
"""Where settings are given: a name for tables, and the class whose fields they are."""


# --- types and limits ---------------------------------------------------------------------------------

_WORDS = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "text"},
    NoneType: "none",
}


def check(view: Any, whose: str = "") -> None:
    """Refuse the first field whose value has another type than it says, or lies beyond its limits."""
    own: Any = type(view)
    for name, kind in hints(own).items():
        value = getattr(view, name)
        if type(value) is not kind and (wanted := misfit(value, kind)):
            rule = f"{name}{whose} is {wanted}"
            raise ParameterError(f"{name} = {value!r}{whose} must be {wanted}", rule=rule)


@cache
def hints(view: type) -> dict[str, Any]:
    """The type of each field, with its limits and what else is noted in it."""
    return get_type_hints(view, include_extras=True)


def misfit(value: object, kind: Any) -> str:
    """What the value would have to be; nothing if it is that. A whole number is a number, but True is none."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = (note for note in arguments[1:] if isinstance(note, Range))
        beyond = (each.words for each in limits if not each.holds(value))  # type: ignore[arg-type]
        return misfit(value, arguments[0]) or ", ".join(beyond)
    if origin in (Union, UnionType):
        wanted = [misfit(value, each) for each in arguments]
        return " or ".join(wanted) if all(wanted) else ""
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(arguments)}"
    plain = origin or kind
    if isinstance(value, bool | str):  # True would be a number, and text a sequence
        fits = isinstance(value, plain) and plain in (bool, str)
    else:
        fits = isinstance(value, int | float if plain is float else plain)
    return "" if fits else _WORDS.get(plain, plain.__name__)


# --- what is said about them --------------------------------------------------------------------------


class Setting(NamedTuple):
    """One field of a view, or of a group."""

    name: str
    default: Any
    """`REQUIRED` if there is none."""
    kind: Any
    """Its type, with its limits."""
    meaning: str
    why: str
    """What this view adds, such as why its default is another one."""


REQUIRED = object()


def settings_of(view: type) -> list[Setting]:
    """All settings that a view has, in the order of this file, and then its own."""
    known, own = _meanings(), dict[str, str]()
    for each in reversed(view.__mro__[:-1]):
        if each.__module__ != __name__:
            own |= strings_below(each)
    found = hints(view)
    names = [name for name in known if name in found] + [
        name for name in found if name not in known
    ]
    return [
        Setting(name, _default(view, name), found[name], known.get(name, ""), own.get(name, ""))
        for name in names
    ]


def _default(view: type, name: str) -> Any:
    field = vars(view).get("__dataclass_fields__", {}).get(name)
    if field is None:
        return getattr(view, name, REQUIRED)
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED if field.default is MISSING else field.default


def groups() -> list[type]:
    """The groups of this file, in its order."""
    return [each for each in globals().values() if hasattr(each, "__dataclass_fields__")]


@cache
def _meanings() -> dict[str, str]:
    return {name: text for group in groups() for name, text in strings_below(group).items()}


@cache
def strings_below(source: type | ModuleType) -> dict[str, str]:
    """The string below each name of a class or module that has one."""
    tree = ast.parse(inspect.getsource(source))
    top = tree.body[0]
    body = top.body if inspect.isclass(source) and isinstance(top, ast.ClassDef) else tree.body
    return dict(_documented(body))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                yield name, " ".join(doc.split())


def limits_in_words(kind: Any) -> str:
    """The limits that are noted in a type, or the words that it allows."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(arguments)
    return "; ".join(
        filter(
            None,
            (
                each.words if isinstance(each, Range) else limits_in_words(each)
                for each in arguments
            ),
        )
    )
