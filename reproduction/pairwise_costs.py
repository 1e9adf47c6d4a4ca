"""SecAgg and SecAgg+ measured: a whole round of the machines with a short vector, then the work on long ones.

Keys, envelopes and shares do not depend on d, so one whole round with a short vector gives them. What does
depend on d is measured on vectors of d elements: a user's masks in full; the server's sum, and the masks that
it takes off for the dropped users, on a part of the rows and streams if there are many, and scaled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from basecagg.maths.prime_field import PrimeField
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import clip_update, quantize
from basecagg.maths.randomness import Words, WordStream
from basecagg.protections.secagg import SecAggParameters
from basecagg.protections.secagg_graph import Graph, choose_degree, complete, random_regular
from basecagg.protections.secagg_masks import add_masks
from basecagg.protections.secagg_server import SumOpened
from basecagg.simulation.secagg_round import CostKey, SecAggRound
from basecagg.simulation.secagg_round import Phase as RoundPhase
from reproduction.costs import PHASES, Cell, Phase, PhaseCost, Row

SHORT = 1000
"""Elements of the vector in the whole round."""
MOST_STREAMS = 48
"""PRG streams of the server that are measured; more are scaled."""
_MOST_ROWS = 12
_PHASE_OF: dict[RoundPhase, Phase] = {
    "keys": "offline",
    "shares": "offline",
    "inputs": "upload",
    "unmasking": "recovery",
}


class Setting(NamedTuple):
    """The graph and the threshold of a cell, and the colluders that it holds against."""

    graph: Graph
    threshold: int
    colluders: int


class ShortRound(NamedTuple):
    """A whole round with a short vector."""

    phases: dict[Phase, PhaseCost]
    exact: bool
    streams: int
    """PRG streams that the server expands."""


@lru_cache(maxsize=256)
def setting_of(cell: Cell) -> Setting:
    """SecAgg: everybody, T as the cell says. SecAgg+: the sparsest graph against N/10 colluders.

    SecAgg+ against N/2 colluders needs a graph that is nearly or fully complete at these N, so it is given the
    weaker aim, which its row prints. Where even that leaves no sparse graph it is SecAgg.
    """
    few = max(1, cell.users // 10)
    sparse = cell.protocol == "secagg+" and choose_degree(cell.users, few, cell.dropouts)
    if sparse:
        degree, threshold = sparse
        return Setting(random_regular(cell.users, degree), threshold, few)
    return Setting(complete(cell.users), cell.colluders + 1, cell.colluders)


def measure_pairwise(cell: Cell) -> Row:
    """The row of a SecAgg or SecAgg+ cell."""
    small = replace(cell, model_size=SHORT)
    setting, short = setting_of(small), _short_round(small)
    phases = {name: replace(cost) for name, cost in short.phases.items()}
    degree = len(setting.graph[0])
    phases["upload"].user_seconds += _user_seconds(cell.model_size, degree)
    phases["upload"].bytes_up += 4 * (cell.model_size - SHORT)
    streams = min(short.streams, MOST_STREAMS)
    phases["recovery"].server_seconds += _server_seconds(cell, streams, short.streams)
    scaled = f"{streams} of the server's {short.streams} PRG streams measured"
    return Row(
        cell,
        setting.threshold,
        setting.colluders,
        degree,
        phases,
        extrapolated=scaled if streams < short.streams else "",
        exact=short.exact,
    )


@lru_cache(maxsize=1)
def _warm_up() -> None:
    """Compile or load the kernels, so that no round is charged for it."""
    inputs = {user: np.zeros(1, np.uint32) for user in range(3)}
    SecAggRound(SecAggParameters(num_holders=3, threshold=2, vector_size=1)).run(
        inputs, {"inputs": {0}}
    )


@lru_cache(maxsize=256)
def _short_round(cell: Cell) -> ShortRound:
    _warm_up()
    setting, users = setting_of(cell), cell.users
    parameters = SecAggParameters(
        num_holders=users, threshold=setting.threshold, vector_size=SHORT, graph=setting.graph
    )
    generator = np.random.default_rng(users)
    inputs = generator.integers(0, PAPER_MODULUS, (users, SHORT), dtype=np.uint32)
    gone = set(generator.choice(users, cell.dropouts, replace=False).tolist())
    round_ = SecAggRound(parameters)
    outcome = round_.run(dict(enumerate(inputs)), {"inputs": gone})
    exact = isinstance(outcome, SumOpened) and np.array_equal(
        outcome.total, _plain_sum(inputs[sorted(set(range(users)) - gone)])
    )
    edges = sum(len(set(setting.graph[user]) - gone) for user in gone)
    survivors = users - len(gone)
    return ShortRound(_phases_of(round_, users, survivors), exact, survivors + edges)


def _plain_sum(rows: Words) -> Words:
    total = rows.astype(np.uint64).sum(axis=0) % np.uint64(PAPER_MODULUS)
    return np.asarray(total, np.uint32)


def _phases_of(round_: SecAggRound, users: int, survivors: int) -> dict[Phase, PhaseCost]:
    """The mean over those who took part: everyone before the upload, the survivors from then on."""
    phases = {name: PhaseCost() for name in PHASES}
    for source, target in _PHASE_OF.items():
        cost, user = phases[target], CostKey("user", source)
        parties = users if target == "offline" else survivors
        cost.user_seconds += round_.seconds[user] / parties
        cost.server_seconds += round_.seconds[CostKey("server", source)]
        cost.bytes_up += round_.sent[user] / parties
    # What the server sends at the end of a phase is received in the next one.
    phases["offline"].bytes_down += round_.sent[CostKey("server", "keys")] / users
    phases["upload"].bytes_down += round_.sent[CostKey("server", "shares")] / users
    phases["recovery"].bytes_down += round_.sent[CostKey("server", "inputs")] / survivors
    return phases


@lru_cache(maxsize=256)
def _user_seconds(size: int, degree: int) -> float:
    """Clip, quantise, and add a private and `degree` pairwise masks."""
    update = np.random.default_rng(1).normal(0, 0.02, size).astype(np.float32)
    seeds = [bytes([index % 256, index // 256]) * 16 for index in range(degree + 1)]

    def work() -> None:
        clipped, _ = clip_update(update, 4.0)
        values = quantize(clipped, 2**16, PAPER_MODULUS, WordStream(seeds[0]).draw(size))
        add_masks(values, seeds[: degree // 2], seeds[degree // 2 :])

    return _seconds(work)


def _server_seconds(cell: Cell, measured: int, streams: int) -> float:
    rows = min(cell.survivors, _MOST_ROWS)
    return _sum_seconds(cell.model_size, rows) * cell.survivors / rows + (
        _stream_seconds(cell.model_size, measured) * streams / measured
    )


@lru_cache(maxsize=256)
def _sum_seconds(size: int, rows: int) -> float:
    """Check and add up so many inputs."""
    inputs = np.random.default_rng(1).integers(0, PAPER_MODULUS, (rows, size), dtype=np.uint32)
    field = PrimeField(PAPER_MODULUS)

    def work() -> None:
        for row in inputs:
            row.max()
        field.weighted_sum(inputs, [1] * rows)

    return _seconds(work)


@lru_cache(maxsize=256)
def _stream_seconds(size: int, streams: int) -> float:
    """Take so many masks off."""
    seeds = [bytes([index, 1]) * 16 for index in range(streams)]
    total = np.zeros(size, np.uint32)
    return _seconds(lambda: add_masks(total, seeds[: streams // 2], seeds[streams // 2 :]))


def _seconds(work: Callable[[], object], repeats: int = 2) -> float:
    """CPU of the better of some repeats."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best
