"""Everything that a simulated run depends on: one class for the library, TOML files and `--set key=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from basecagg import options
from basecagg.errors import DataError, ParameterError
from basecagg.maths.staleness import StalenessFunction, written
from basecagg.options import Count, Range, Seconds
from basecagg.parameters import ProtocolParameters, fields_from
from basecagg.planning.budget import in_parameters, private_sums
from basecagg.privacy import Privacy
from basecagg.protocol.step_rule import OPTIMISERS, StepRule
from basecagg.simulation.config_rules import rules_for
from basecagg.simulation.protections import Pair, preset, require_compatible
from basecagg.simulation.timing import CLOCKS

Measure = Literal["versions", "updates", "seconds"]
_USUAL_CONCURRENCY, _USUAL_EPOCHS = 20, 5


@dataclass(frozen=True, kw_only=True)
class SimulationConfig(
    # The fields of the last group come first.
    options.ExecutionOptions,
    options.TimeOptions,
    options.RunProtectionOptions,
    options.BucketOptions,
    options.BudgetOptions,
    options.VerifyOptions,
    options.FieldOptions,
    options.LevelOptions,
    options.TrustOptions,
    options.CommitteeOptions,
    options.LocalOptions,
    options.OptimiserOptions,
    options.ExampleOptions,
    options.WeightOptions,
    options.MaskOptions,
    options.SumOptions,
    options.ConcurrencyOptions,
    options.LengthOptions,
    options.TaskOptions,
    options.MethodOptions,
):
    """A federation to simulate. Every setting has a default; `method` is what most people change."""

    buffer_size: Count = 10
    """As in the paper."""
    holders: Annotated[int, Range(2)] | None = None
    verify: Literal["always", "never"] = "always"
    """No samples here: the parts of all versions are in memory, unless those of one take more than 256 MB; then
    none is made again. Arithmetic runs have nothing to verify."""
    max_uses: Count = 10
    """A simulated user uploads more than once."""
    answer_timeout: Seconds = 10.0
    """Simulated devices answer within seconds."""

    def __post_init__(self) -> None:
        """Check what can be checked without data."""
        options.check(self)
        for name, fits, wanted in rules_for(self):
            if not fits:
                raise ParameterError(
                    f"{name} = {getattr(self, name)!r} must be {wanted}", rule=f"{name} {wanted}"
                )
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
        usual = preset(self.method)
        return require_compatible(
            self.schedule or usual.schedule, self.protection or usual.protection
        )

    @property
    def draws_versions(self) -> bool:
        """Whether the clock has no seconds, and draws by itself from which version each update is."""
        return CLOCKS[self.clock].draws_versions

    @property
    def users_at_once(self) -> int:
        """C, as it is used. What was not given stays so in `concurrency`, for `replace` may change `users`."""
        return self.concurrency or min(_USUAL_CONCURRENCY, self.users)

    @property
    def epochs(self) -> int | None:
        """Passes over a user's examples, as they are used; None if the run counts steps."""
        return None if self.local_steps else self.local_epochs or _USUAL_EPOCHS

    @property
    def server_rate(self) -> float:
        """η_g, as it is used. `global_rate` stays unset if not given, since each optimiser has its own."""
        return self.global_rate or OPTIMISERS[self.server_optimiser].usual_rate

    def as_used(self) -> SimulationConfig:
        """The same run, with these two written out: to compare with, and to read."""
        return replace(self, concurrency=self.users_at_once, global_rate=self.server_rate)

    @property
    def num_attackers(self) -> int:
        """How many users attack: at least one if there are to be any."""
        return max(1, round(self.attackers * self.users)) if self.attackers else 0

    @property
    def bucket_size(self) -> int:
        """b = K/g"""
        return self.buffer_size // self.buckets

    @property
    def ending(self) -> tuple[Measure, float]:
        """What is counted to the end of the run, and how much of it."""
        if self.until is None:
            return "versions", self.versions
        measure, _, amount = self.until.partition("=")
        return cast(Measure, measure), float(amount)

    @property
    def label(self) -> str:
        """A short name for tables and plots."""
        named = self.pair == preset(self.method)
        return self.method if named else f"{self.pair.schedule}+{self.pair.protection}"

    @property
    def staleness_function(self) -> StalenessFunction:
        """s(τ)"""
        return written(self.staleness)

    @property
    def privacy_of_records(self) -> Privacy | None:
        """How users clip each record in training, without the noise; None where users are the unit."""
        return None if self.unit == "user" else private_sums(self, 1, 1).privacy

    def step_rule(self, weights: int, size: int) -> StepRule:
        """The server's step for a model of d = `size` numbers; behind the weights it has running statistics."""
        return StepRule.of(self, ((weights, size),) if weights < size else ())

    def protocol_parameters(self, model_size: int) -> ProtocolParameters:
        """The parameters of a BASecAgg epoch for this run, or of LightSecAgg: no staleness, so no weights."""
        holders = self.holders or self.users
        chosen = fields_from(self, holders)
        chosen |= {"staleness": self.staleness_function, **self.pair.guard.fixes}
        if self.auto_tune:
            # What it reports are counts of one step each: the errors of masks from keys would hide them.
            chosen["masks"] = "long"
        if private := self.pair.guard.private:
            chosen |= in_parameters(private(self, model_size, self.max_colluding_contributors))
        return ProtocolParameters(
            model_size=model_size,
            # This clock draws the version of every update by itself, and may draw one twice for a user.
            repeated_versions=self.draws_versions,
            **chosen,
        )


_RENAMED = {
    **{
        f"dp_{name}": name
        for name in ("epsilon", "delta", "max_uses", "clip_norm", "noise", "unit")
    },
    **{"dp_sampling_rate": "sampling_rate", "dp_levels": "private_levels"},
    **{"dp_staleness": "staleness", "staleness_a": "staleness", "staleness_b": "staleness"},
}
"""Settings of 0.2.0 that have another name now."""


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
    known = [each.name for each in fields(SimulationConfig)]
    for name in values:
        if name not in known:
            like = [_RENAMED[name]] if name in _RENAMED else get_close_matches(name, known, n=1)
            hint = f"did you mean {like[0]}? " if like else ""
            raise ParameterError(
                f"unknown setting {name!r}: {hint}`basecagg run --settings` explains them all",
                rule="settings are known",
            )
    return SimulationConfig(**values)


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` from the command line, the value read as TOML, or as plain text if it is none."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"'{text}' is not key=value", rule="--set key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), _WORDS.get(value.strip(), value.strip())


_WORDS = {"True": True, "False": False, "None": None, "none": None}
"""What people write who come from Python, and what TOML has no word for."""
