"""How much an update counts by its age. Server and holders use the same code, so they cannot disagree."""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.errors import StaleUpdate, WrongVersion
from basecagg.maths.staleness import Rounding, StalenessFunction, quantized_weight
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.messages import RecoveryRequest, Ticket, coin_of


@dataclass(frozen=True)
class Weighing:
    """How much an update counts by its age: s(τ), with τ at most τ_max."""

    max_staleness: int
    staleness: StalenessFunction
    weight_levels: int | None
    """c_g, or None for the real-valued s(τ) of plain FedBuff."""
    rounding: Rounding = "stochastic"
    by_contributors: bool = False
    """Whether contributors weigh their own updates, by an age τ̂ that their tickets tell."""

    @classmethod
    def of(cls, parameters: ProtocolParameters) -> Weighing:
        """The weighing of an epoch."""
        p = parameters
        own = p.privacy is not None
        return cls(p.max_staleness, p.staleness, p.weight_levels, p.weight_rounding, own)

    def require_fresh(self, version: int, base_version: int) -> None:
        """Refuse τ = t − t_i outside 0…τ_max."""
        if base_version > version:
            raise WrongVersion(f"trained from version {base_version}, the model is at {version}")
        if version - base_version > self.max_staleness:
            raise StaleUpdate(
                f"trained from version {base_version}, more than {self.max_staleness} before"
                f" {version}: download the model again"
            )

    def require_told(self, version: int, base_version: int, told: int) -> None:
        """Refuse an age τ̂ that the update cannot have had when its contributor weighed it."""
        most = self.max_staleness if self.by_contributors else 0
        if told > most:
            raise WrongVersion(f"its ticket tells an age of {told}, at most {most} is possible")
        if base_version + told > version:
            raise WrongVersion(
                f"weighed at version {base_version} + {told}, the model is at {version}"
            )

    def require_timely(self, version: int, ticket: Ticket) -> None:
        """Refuse a ticket that is too old for a sum of this version, or tells an age that cannot be."""
        self.require_fresh(version, ticket.base_version)
        self.require_told(version, ticket.base_version, ticket.staleness)

    def weights(self, request: RecoveryRequest) -> list[int]:
        """s̄ of every member."""
        t, epoch = request.version, request.epoch
        return [
            int(self.weight(t, ticket.base_version, coin_of(epoch, ticket.mask)))
            for ticket in request.tickets
        ]

    def weight(self, version: int, base_version: int, coin: bytes) -> int | float:
        """s̄(t − t_i), or s(t − t_i) without levels."""
        tau = version - base_version
        if self.weight_levels is None:
            return self.staleness(tau)
        return quantized_weight(self.staleness, tau, self.weight_levels, coin, self.rounding)
