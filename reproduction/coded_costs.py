"""LightSecAgg and BASecAgg measured: whole federations with few members, honest-server mode, sealed and signed.

Everything is linear in the members of a sum: two federations that differ only in K give what a member costs and
what a sum costs. Shares of large models for many holders do not fit in memory; then d is reduced, and the costs
are extended along the line through two sizes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protections.pairs import IN_ROUNDS
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


Units: TypeAlias = Mapping[str, float]
"""What each part of a round costs one party: seconds of a step, bytes of a message."""
_STEPS: Mapping[str, Share] = {
    "deal": Share("contributor", "offline"),
    "keep": Share("holder", "offline"),
    "relay": Share("server", "offline"),
    "mask": Share("contributor", "upload"),
    "admit": Share("server", "upload"),
    "answer": Share("holder", "recovery"),
    "open": Share("server", "recovery"),
}
"""Who does each step: once for every member, but answering and opening once for all."""
_MESSAGES = ("Shipment", "Parcel", "Upload", "Answer", "RecoveryRequest")
_ONCE = ("answer", "open", "RecoveryRequest")


def measure_coded(cell: Cell) -> Row:
    """The row of a LightSecAgg or BASecAgg cell."""
    sizes, note = [cell.model_size], ""
    if cell.model_size > (most := largest_size(cell)):
        sizes = [most // 2, most]
        note = f"measured at d = {sizes[0]:,} and {sizes[1]:,}, extended along the line"
    measured = [_cost(replace(cell, model_size=size)) for size in sizes]
    phases = measured[0] if len(sizes) == 1 else _extended(measured, sizes, cell.model_size)
    exact = all(_units(replace(cell, model_size=size))[1] for size in sizes)
    return Row(
        cell, cell.survivors, cell.colluders, cell.users - 1, phases, extrapolated=note, exact=exact
    )


def largest_size(cell: Cell) -> int:
    """The largest d whose N shares fit the budget."""
    submasks = cell.survivors - cell.colluders
    return MOST_SHARE_BYTES // (4 * cell.users) * submasks


Phases: TypeAlias = dict[Phase, PhaseCost]


def _extended(measured: Sequence[Phases], sizes: Sequence[int], size: int) -> Phases:
    """Every cost along the line through two sizes; noise must not make a larger model cheaper."""

    def extend(low: float, high: float) -> float:
        return max(high, _on_line(sizes, (low, high), size))

    low, high = measured
    return {
        name: PhaseCost(*map(extend, vars(low[name]).values(), vars(high[name]).values()))
        for name in low
    }


def _on_line(x: Sequence[int], y: Sequence[float], at: int) -> float:
    return y[1] + (y[1] - y[0]) * (at - x[1]) / (x[1] - x[0])


def _cost(cell: Cell) -> Phases:
    """N users deal, N − D upload, and their updates are summed at once or K at a time."""
    members = cell.survivors if cell.protocol == "lightsecagg" else min(BUFFER, cell.survivors)
    sums, (each, _) = cell.survivors / members, _units(cell)
    once = {name: sums * _at(cell, name, members) for name in _ONCE}
    n = cell.users
    return {
        "offline": PhaseCost(
            each["deal"] + n * each["keep"], n * each["relay"], each["Shipment"], n * each["Parcel"]
        ),
        "upload": PhaseCost(each["mask"], cell.survivors * each["admit"], each["Upload"], 0.0),
        "recovery": PhaseCost(
            once["answer"], once["open"], sums * each["Answer"], once["RecoveryRequest"]
        ),
    }


def _at(cell: Cell, name: str, members: int) -> float:
    """What is done once for all members, on the line through two numbers of them; no part is negative."""
    low, high = (_federation(cell, few)[0][name] for few in FEW_MEMBERS)
    slope = max(0.0, (high - low) / (FEW_MEMBERS[1] - FEW_MEMBERS[0]))
    return max(0.0, high - FEW_MEMBERS[1] * slope) + slope * members


def _units(cell: Cell) -> tuple[Units, bool]:
    """The larger of the two federations, and whether both opened exact sums."""
    found = [_federation(cell, members) for members in FEW_MEMBERS]
    return found[1][0], all(exact for _, exact in found)


@lru_cache(maxsize=256)
def _federation(cell: Cell, members: int) -> tuple[Units, bool]:
    """Some cycles of one federation: for each step the cheapest cycle counts, for noise only adds."""
    network = PhaseLoopback()
    federation = Federation(
        coded_parameters(cell, members), np.zeros(cell.model_size, np.float32), network=network
    )
    exact = True
    cpu: list[Mapping[Share, float]] = []
    for seed in range(_CYCLES):
        network.cpu = defaultdict(float)
        exact &= _cycle(federation, network, members, seed)
        cpu.append(network.cpu)
    units = {}
    for step, share in _STEPS.items():
        parties = cell.users if share.role == "holder" else 1
        times = 1 if step in _ONCE else members
        units[step] = min(cycle[share] for cycle in cpu) / (parties * times)
    meter = network.meter
    for kind in _MESSAGES:
        units[kind] = meter.bytes_sent[kind] / max(1, meter.messages[kind])
    return units, exact


def _cycle(federation: Federation, network: PhaseLoopback, members: int, seed: int) -> bool:
    """From the first mask to the sum; whether that is exact."""
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
    return _opened_exactly(federation, total)


def _opened_exactly(federation: Federation, total: npt.NDArray[np.int64]) -> bool:
    """Whether one sum was opened, and is the plain one bit for bit. Nothing is stale: all weights are c_g."""
    news = [each for each in federation.take_news() if isinstance(each, Released)]
    weight = federation.agreement.parameters.weight_levels
    return len(news) == 1 and np.array_equal(news[0].weighted_sum * _LEVELS, weight * total)


def coded_parameters(cell: Cell, members: int) -> ProtocolParameters:
    """Honest-server mode; U = N − D, T = N/2 or the largest possible."""
    ages = IN_ROUNDS if cell.protocol == "lightsecagg" else _BY_AGE
    return ProtocolParameters(
        num_holders=cell.users,
        recovery_threshold=cell.survivors,
        max_colluders=cell.colluders,
        max_dropouts=cell.dropouts,
        buffer_size=members,
        model_size=cell.model_size,
        consistency="honest-server",
        **ages,
    )
