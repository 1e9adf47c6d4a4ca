"""What a strategy was told, checked once, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from basecagg.errors import ParameterError
from basecagg.flower.metrics import Charge
from basecagg.maths.staleness import StalenessFunction
from basecagg.parameters import Consistency, Correctness, ProtocolParameters, usual_tolerance
from basecagg.protocol.step_rule import StepRule
from basecagg.protocol.weighing import Weighing

Protection: TypeAlias = Literal["basecagg", "none"]
Training: TypeAlias = Literal["detached", "attached"]
_USUAL_BUFFER = 10
"""K of FedBuff's paper."""
_AT_LEAST_ONE = {
    "buffer_size": " K",
    "concurrency": " C",
    "max_colluders": " T",
    "recovery_threshold": " U",
    "min_per_version": " m",
    "max_failures": "",
}
_CHOICES = {"protection": ("basecagg", "none"), "training": ("detached", "attached")}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `BufferedSecAgg` that concern the protocol; see there."""

    buffer_size: int | None
    """K; None until the nodes are known that it has to fit."""
    concurrency: int | None
    max_staleness: int
    staleness: StalenessFunction
    step: StepRule
    protection: Protection
    holders: int | Sequence[int] | None
    holders_train: bool
    recovery_threshold: int | None
    max_colluders: int | None
    max_dropouts: int | None
    consistency: Consistency
    correctness: Correctness | None
    liars: int
    min_per_version: int | None
    clip: float
    update_levels: int
    weight_levels: int
    charge: Charge
    evaluate: bool
    training: Training
    collect_interval: float
    answer_timeout: float
    retries: int
    max_burns: int
    max_failures: int
    server_state: Path | None
    erase_state: bool
    min_available_nodes: int
    arrays_key: str
    config_key: str
    weighted_by_key: str

    def __post_init__(self) -> None:
        """Refuse what cannot work before any node is asked."""
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ParameterError(
                    f"{name} = {value!r} must be one of {choices}", rule=f"{name} is known"
                )
        for name, symbol in _AT_LEAST_ONE.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(
                    f"{name}{symbol} = {value} must be at least 1, or None to let it be chosen",
                    rule=f"{name} ≥ 1",
                )
        if not 0 <= self.max_burns < 2**16:
            raise ParameterError(
                f"max_burns = {self.max_burns} must be from 0 to 65535", rule="0 ≤ max_burns < 2¹⁶"
            )
        if self.protection == "basecagg" and self.committee_size and self.buffer_size:
            self.parameters(self.committee_size, model_size=1)

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
        return Weighing(self.max_staleness, self.staleness, None)

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
        return ProtocolParameters(
            num_users=num_holders,
            recovery_threshold=threshold,
            max_colluders=colluders,
            max_dropouts=dropouts,
            buffer_size=self.chosen_buffer_size,
            model_size=model_size,
            max_staleness=self.max_staleness,
            clip=self.clip,
            update_levels=self.update_levels,
            weight_levels=self.weight_levels,
            staleness=self.staleness,
            consistency=self.consistency,
            correctness=self.correctness,
            liars=self.liars,
            min_per_version=self.min_per_version,
        )
