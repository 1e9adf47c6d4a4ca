"""LightSecAgg and BASecAgg measured: whole federations with few members, honest-server mode, sealed and signed.

Everything is linear in the members of a sum: two federations that differ only in K give what a member costs and
what a sum costs. Shares of large models for many holders do not fit in memory; then d is reduced, and the costs
are extended along the line through two sizes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protections.lightsecagg import IN_ROUNDS
from basecagg.protocol.effects import Released
from basecagg.protocol.messages import (
    Answer,
    Closing,
    Message,
    Parcel,
    Receipt,
    RecoveryRequest,
    Shipment,
    Upload,
    Verdict,
)
from basecagg.simulation.federation import Federation
from basecagg.simulation.loopback import Address, Letter
from basecagg.simulation.metering import MeteredLoopback
from reproduction.costs import BUFFER, Cell, Phase, PhaseCost, Row

FEW_MEMBERS = (2, 8)
"""K of the two federations."""
MOST_SHARE_BYTES = 24 * 2**20
"""All shares of one mask; a larger model is reduced to this."""
_PHASE_OF: dict[type[Message], Phase] = {
    Shipment: "offline",
    Parcel: "offline",
    Receipt: "offline",
    Upload: "upload",
    Verdict: "upload",
    RecoveryRequest: "recovery",
    Answer: "recovery",
    Closing: "recovery",
}
_LEVELS = 2**16
_CYCLES = 2
_BY_AGE: Mapping[str, Any] = {
    "staleness": polynomial(1.0),
    "weight_levels": 64,
    "max_staleness": 10,
}


class Share(NamedTuple):
    """Whose seconds, and in which phase."""

    role: str
    phase: Phase


class PhaseLoopback(MeteredLoopback):
    """A loopback that charges CPU seconds to (role, phase), the phase told by the messages handled."""

    def __init__(self) -> None:
        """Start at nothing."""
        super().__init__()
        self.cpu: defaultdict[Share, float] = defaultdict(float)

    def _handle(self, address: Address, letters: Iterable[Letter]) -> None:
        letters = list(letters)
        started = time.process_time()
        super()._handle(address, letters)
        spent = time.process_time() - started
        self.cpu[Share(address.role, _PHASE_OF[type(letters[0].message)])] += spent

    @contextmanager
    def charged(self, phase: Phase) -> Iterator[None]:
        """Charge the block to the contributors."""
        started = time.process_time()
        yield
        self.cpu[Share("contributor", phase)] += time.process_time() - started


@dataclass(frozen=True)
class Units:
    """Costs of the parts of a round, as functions of the members K of a sum: fixed + K·each."""

    deal: float
    keep: float
    """One holder keeps one share."""
    mask: float
    relay: float
    """The server, for one deal."""
    admit: float
    """The server, for one upload."""
    answer: tuple[float, float]
    """One holder: fixed, and for each member."""
    open: tuple[float, float]
    """The server: fixed, and for each member."""
    sizes: Mapping[str, float]
    request: tuple[float, float] = (0.0, 0.0)
    """Bytes of a request: fixed, and for each member."""
    exact: bool = True


@dataclass
class FewMembers:
    """One federation with K members, run from the first mask to the sum."""

    members: int
    cpu: Mapping[Share, float]
    bytes_sent: Counter[str]
    messages: Counter[str]
    exact: bool

    def mean_size(self, kind: str) -> float:
        """Bytes of a message of this kind."""
        return self.bytes_sent[kind] / max(1, self.messages[kind])


def measure_coded(cell: Cell) -> Row:
    """The row of a LightSecAgg or BASecAgg cell."""
    feasible = largest_size(cell)
    if cell.model_size <= feasible:
        costs, note = (
            _cost(cell, _units(cell.protocol, cell.users, cell.dropout, cell.model_size)),
            "",
        )
    else:
        half = _cost(cell, _units(cell.protocol, cell.users, cell.dropout, feasible // 2))
        full = _cost(cell, _units(cell.protocol, cell.users, cell.dropout, feasible))
        costs = _extend(half, full, feasible // 2, feasible, cell.model_size)
        note = f"measured at d = {feasible // 2:,} and {feasible:,}, extended along the line"
    exact = _units(cell.protocol, cell.users, cell.dropout, min(cell.model_size, feasible)).exact
    return Row(
        cell, cell.survivors, cell.colluders, cell.users - 1, costs, extrapolated=note, exact=exact
    )


def largest_size(cell: Cell) -> int:
    """The largest d whose N shares fit the budget."""
    submasks = cell.survivors - cell.colluders
    return MOST_SHARE_BYTES // (4 * cell.users) * submasks


def _extend(
    low: dict[Phase, PhaseCost], high: dict[Phase, PhaseCost], d_low: int, d_high: int, d: int
) -> dict[Phase, PhaseCost]:
    def line(a: float, b: float) -> float:
        return max(b, b + (b - a) * (d - d_high) / (d_high - d_low))

    return {
        name: PhaseCost(
            *(
                line(a, b)
                for a, b in zip(vars(low[name]).values(), vars(high[name]).values(), strict=True)
            )
        )
        for name in low
    }


def _cost(cell: Cell, units: Units) -> dict[Phase, PhaseCost]:
    """N users deal, N − D upload, and their updates are summed at once or K at a time."""
    members = cell.survivors if cell.protocol == "lightsecagg" else min(BUFFER, cell.survivors)
    sums = cell.survivors / members
    request = sums * _at(units.request, members)
    return {
        "offline": PhaseCost(
            units.deal + cell.users * units.keep,
            cell.users * units.relay,
            units.sizes["Shipment"],
            cell.users * units.sizes["Parcel"],
        ),
        "upload": PhaseCost(units.mask, cell.survivors * units.admit, units.sizes["Upload"], 0.0),
        "recovery": PhaseCost(
            sums * _at(units.answer, members),
            sums * _at(units.open, members),
            sums * units.sizes["Answer"],
            request,
        ),
    }


def _at(line: tuple[float, float], members: int) -> float:
    fixed, each = line
    return fixed + each * members


@lru_cache(maxsize=256)
def _units(protocol: str, users: int, dropout: float, size: int) -> Units:
    cell = Cell("lightsecagg" if protocol == "lightsecagg" else "basecagg", users, dropout, size)
    few, many = (_run(cell, members) for members in FEW_MEMBERS)
    holder = _line(few, many, Share("holder", "recovery"), users)
    server = _line(few, many, Share("server", "recovery"), 1)
    sizes = {kind: many.mean_size(kind) for kind in ("Shipment", "Parcel", "Upload", "Answer")}
    asked = [run.mean_size("RecoveryRequest") for run in (few, many)]
    each = (asked[1] - asked[0]) / (many.members - few.members)
    k = many.members
    return Units(
        deal=many.cpu[Share("contributor", "offline")] / k,
        keep=many.cpu[Share("holder", "offline")] / (k * users),
        mask=many.cpu[Share("contributor", "upload")] / k,
        relay=many.cpu[Share("server", "offline")] / k,
        admit=many.cpu[Share("server", "upload")] / k,
        answer=holder,
        open=server,
        sizes=sizes,
        request=(asked[0] - few.members * each, each),
        exact=few.exact and many.exact,
    )


def _line(few: FewMembers, many: FewMembers, share: Share, parties: int) -> tuple[float, float]:
    """Fixed and per-member seconds of one party; noise must not make either negative."""
    low, high = few.cpu[share] / parties, many.cpu[share] / parties
    each = max(0.0, (high - low) / (many.members - few.members))
    return max(0.0, high - many.members * each), each


def _run(cell: Cell, members: int) -> FewMembers:
    """Some cycles of one federation: for each cost the cheapest cycle counts, for noise only adds."""
    network = PhaseLoopback()
    federation = Federation(
        coded_parameters(cell, members), np.zeros(cell.model_size, np.float32), network=network
    )
    cycles = [_cycle(federation, network, members, cycle) for cycle in range(_CYCLES)]
    cpu = {share: min(cycle.cpu[share] for cycle in cycles) for share in cycles[0].cpu}
    exact = all(cycle.exact for cycle in cycles)
    return FewMembers(members, cpu, network.meter.bytes_sent, network.meter.messages, exact)


class Cycle(NamedTuple):
    """From the first mask to the sum."""

    cpu: defaultdict[Share, float]
    exact: bool


def _cycle(federation: Federation, network: PhaseLoopback, members: int, seed: int) -> Cycle:
    network.cpu = defaultdict(float)
    names = [f"user-{index}" for index in range(members)]
    server, size = federation.server, federation.agreement.parameters.model_size
    for name in names:
        with network.charged("offline"):
            federation.deal(name)
    network.run()
    generator, total = np.random.default_rng(seed), np.zeros(size, np.int64)
    for name in names:
        # Whole multiples of 1/c_l: rounding changes nothing, so the sum must be exact.
        update = np.rint(generator.normal(0, 0.02, size) * _LEVELS)
        total += update.astype(np.int64)
        values = (update / _LEVELS).astype(np.float32)
        with network.charged("upload"):
            federation.submit(name, values, server.version, server.head)
    network.run()
    return Cycle(network.cpu, _opened_exactly(federation, total))


def _opened_exactly(federation: Federation, total: npt.NDArray[np.int64]) -> bool:
    """Whether one sum was opened, and is the plain one bit for bit. Nothing is stale: all weights are c_g."""
    news = [each for each in federation.take_news() if isinstance(each, Released)]
    weight = federation.agreement.parameters.weight_levels
    return len(news) == 1 and np.array_equal(news[0].weighted_sum * _LEVELS, weight * total)


def coded_parameters(cell: Cell, members: int) -> ProtocolParameters:
    """Honest-server mode; U = N − D, T = N/2 or the largest possible."""
    ages = IN_ROUNDS if cell.protocol == "lightsecagg" else _BY_AGE
    return ProtocolParameters(
        num_users=cell.users,
        recovery_threshold=cell.survivors,
        max_colluders=cell.colluders,
        max_dropouts=cell.dropouts,
        buffer_size=members,
        model_size=cell.model_size,
        consistency="honest-server",
        **ages,
    )
