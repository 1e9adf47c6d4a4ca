"""How much an update counts by its age. Server and holders use the same code, so they cannot disagree.

With own weights a contributor multiplies its update by 2^−t before it is rounded; t is the tier of the age τ̂
that it knows and tells in its ticket, and in the field all updates weigh 1. With field weights, the paper's, it
tells nothing, and server and holders weigh by the age at which the sum is opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from basecagg.errors import LocalProtocolError, StaleUpdate, WrongVersion
from basecagg.maths.staleness import Rounding, StalenessFunction, quantized_weight
from basecagg.options import Weights
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import RecoveryRequest, coin_of


class Aged(Protocol):
    """An update with what it tells of its age: a ticket, or what the server stores of it."""

    @property
    def base_version(self) -> int:
        """t_i: the version it was made from."""

    @property
    def staleness(self) -> int:
        """τ̂: its age when its contributor weighed it; 0 with field weights."""


@dataclass(frozen=True)
class Weighing:
    """How much an update counts by its age: s(τ), with τ at most τ_max."""

    max_staleness: int
    staleness: StalenessFunction
    by: Weights = "own"
    """Who multiplies: each contributor its own update, or server and holders."""
    weight_levels: int | None = None
    """c_g of field weights, or None for the real-valued s(τ) of plain FedBuff."""
    rounding: Rounding = "stochastic"

    @classmethod
    def of(cls, parameters: ProtocolParameters) -> Weighing:
        """The weighing of an epoch."""
        p = parameters
        levels = p.weight_levels if p.is_masked else None
        return cls(p.max_staleness, p.staleness, p.weights, levels, p.weight_rounding)

    def require_fresh(self, version: int, base_version: int) -> None:
        """Refuse τ = t − t_i outside 0…τ_max."""
        if base_version > version:
            raise WrongVersion(f"trained from version {base_version}, the model is at {version}")
        if version - base_version > self.max_staleness:
            raise StaleUpdate(
                f"trained from version {base_version}, more than {self.max_staleness} before"
                f" {version}: download the model again"
            )

    def require_told(self, version: int, update: Aged) -> None:
        """Refuse an age τ̂ that the update cannot have had when its contributor weighed it."""
        most = self.max_staleness if self.by == "own" else 0
        told, base = update.staleness, update.base_version
        if told > most:
            raise WrongVersion(f"its ticket tells an age of {told}, at most {most} is possible")
        if base + told > version:
            raise WrongVersion(f"weighed at version {base} + {told}, the model is at {version}")

    def require_timely(self, version: int, update: Aged) -> None:
        """Refuse an update that is too old for a sum of this version, or tells an age that cannot be."""
        self.require_fresh(version, update.base_version)
        self.require_told(version, update)

    def age_to_tell(self, version: int, base_version: int) -> int:
        """τ̂ of an update that its contributor weighs now, at `version`; 0 with field weights.

        One that is too old is refused before anything is paid for it or leaves.
        """
        if self.by == "field":
            return 0
        age, most = version - base_version, self.max_staleness
        if not 0 <= age <= most:
            raise LocalProtocolError(
                f"trained from version {base_version}, the model is at {version}: an update may be {most}"
                " versions old at most; download the model again"
            )
        return age

    def tier(self, update: Aged) -> int:
        """t of the age that it tells; 0 with field weights."""
        return self.staleness.tier(update.staleness) if self.by == "own" else 0

    def kinds(self, updates: Iterable[Aged]) -> list[tuple[int, int]]:
        """The base version and tier of each: members of one version must have the same tier."""
        return [(each.base_version, self.tier(each)) for each in updates]

    def in_field(self, request: RecoveryRequest) -> list[int]:
        """By what server and holders multiply: s̄ of every member, or 1."""
        version, epoch = request.version, request.epoch
        return [self.factor(version, t, coin_of(epoch, t.mask)) for t in request.tickets]

    def factor(self, version: int, update: Aged, coin: bytes) -> int:
        """The same for one update."""
        return 1 if self.by == "own" else int(self.weight(version, update, coin))

    def weights(self, request: RecoveryRequest) -> list[float]:
        """How much every member counts in the sum."""
        version, epoch = request.version, request.epoch
        return [self.weight(version, t, coin_of(epoch, t.mask)) for t in request.tickets]

    def weight(self, version: int, update: Aged, coin: bytes) -> float:
        """How much an update counts: 2^−t of its tier, or s̄(t − t_i), or s(t − t_i) without levels."""
        if self.by == "own":
            return 2.0 ** -self.tier(update)
        tau = version - update.base_version
        if self.weight_levels is None:
            return self.staleness(tau)
        return quantized_weight(self.staleness, tau, self.weight_levels, coin, self.rounding)
