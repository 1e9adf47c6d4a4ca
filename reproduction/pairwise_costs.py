"""SecAgg and SecAgg+ measured: a whole round of the machines at full size.

One user masks all d elements, and the server sums all inputs and takes all masks off. The other users mask the
first elements of theirs alone: all arithmetic is element by element, so the sum of these must be exact, and the
server does the same work whatever follows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from basecagg.baselines.secagg import Delivery, MaskedInput, SecAggParameters, ToUser
from basecagg.baselines.secagg_client import SecAggClient
from basecagg.baselines.secagg_graph import Graph, choose_degree, complete, random_regular
from basecagg.baselines.secagg_server import SumOpened
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import Reals, clip_update, quantize
from basecagg.maths.randomness import Words, WordStream
from basecagg.simulation.secagg_round import CostKey, SecAggRound
from basecagg.simulation.secagg_round import Phase as RoundPhase
from reproduction.costs import PHASES, Cell, Once, Phase, PhaseCost, Phases, Row, Setting, measured

HEAD = 1000
"""Elements that every user masks."""
_PHASE_OF: dict[RoundPhase, Phase] = {
    "keys": "offline",
    "shares": "offline",
    "inputs": "upload",
    "unmasking": "recovery",
}


class Neighbours(NamedTuple):
    """Who masks with whom, the threshold, and the colluders that it holds against."""

    graph: Graph
    threshold: int
    colluders: int


@lru_cache(maxsize=256)
def neighbours_of(cell: Cell) -> Neighbours:
    """SecAgg: everybody, T as the cell says. SecAgg+: the sparsest graph against N/10 colluders.

    SecAgg+ against N/2 colluders needs a graph that is nearly or fully complete at these N, so it is given the
    weaker aim, which its row prints. Where even that leaves no sparse graph it is SecAgg.
    """
    few = max(1, cell.users // 10)
    sparse = cell.protocol == "secagg+" and choose_degree(cell.users, few, cell.dropouts)
    if sparse:
        degree, threshold = sparse
        return Neighbours(random_regular(cell.users, degree), threshold, few)
    return Neighbours(complete(cell.users), cell.colluders + 1, cell.colluders)


def measure_pairwise(cell: Cell) -> Row:
    """The row of a SecAgg or SecAgg+ cell."""
    graph, threshold, colluders = neighbours_of(cell)
    return measured(cell, Setting(threshold, colluders, len(graph[0])), aggregate)


def aggregate(cell: Cell) -> Once:
    """One round: N users share keys, D of them drop out, and the sum of the others is opened."""
    users, size = cell.users, cell.model_size
    generator = np.random.default_rng(users)
    gone = set(generator.choice(users, cell.dropouts, replace=False).tolist())
    survivors = sorted(set(range(users)) - gone)
    heads = generator.integers(0, PAPER_MODULUS, (users, min(HEAD, size)), dtype=np.uint32)
    update = generator.normal(0, 0.02, size).astype(np.float32)
    heads[survivors[0]] = _quantized(update)[:HEAD]
    graph, threshold, _ = neighbours_of(cell)
    parameters = SecAggParameters(
        num_holders=users, threshold=threshold, vector_size=size, graph=graph
    )
    round_ = LongRound(parameters, survivors[0])
    outcome = round_.run(
        lambda user: _quantized(update) if user == survivors[0] else heads[user], {"inputs": gone}
    )
    exact = isinstance(outcome, SumOpened) and np.array_equal(
        outcome.total[:HEAD], _plain_sum(heads[survivors])
    )
    return Once(_phases_of(round_, users, len(survivors)), exact)


def _quantized(update: Reals) -> Words:
    clipped, _ = clip_update(update, 4.0)
    return quantize(clipped, 2**16, PAPER_MODULUS, WordStream(bytes(32)).draw(update.size))


def _plain_sum(rows: Words) -> Words:
    total = rows.astype(np.uint64).sum(axis=0) % np.uint64(PAPER_MODULUS)
    return np.asarray(total, np.uint32)


class HeadClient(SecAggClient):
    """A user that masks the first elements of its input; what follows is as random as masked elements are."""

    tail = b""

    def mask(self, delivery: Delivery, values: Words) -> MaskedInput:
        """As long as the others'."""
        head = super().mask(delivery, values)
        return MaskedInput(head.round, head.user, head.words + self.tail)


class LongRound(SecAggRound):
    """A round in which one user does all its work and is charged for its input; the others mask the head."""

    def __init__(self, parameters: SecAggParameters, whole: int) -> None:
        """Replace all users but one."""
        super().__init__(parameters)
        self._whole = whole
        size = min(HEAD, parameters.vector_size)
        short = replace(parameters, vector_size=size)
        tail = np.random.default_rng(1).integers(
            0, PAPER_MODULUS, parameters.vector_size - size, dtype="<u4"
        )
        words = tail.tobytes()
        for user in self.clients.keys() - {whole}:
            client = self.clients[user] = HeadClient(short, self.id, user)
            client.tail = words

    def _answer(
        self, phase: RoundPhase, user: int, message: ToUser | None, read: Callable[[int], Words]
    ) -> None:
        before = self.seconds[CostKey("user", phase)]
        super()._answer(phase, user, message, read)
        if phase == "inputs" and user != self._whole:
            self.seconds[CostKey("user", phase)] = before


def _phases_of(round_: SecAggRound, users: int, survivors: int) -> Phases:
    """Means over everyone before the upload and over the survivors after it; the upload is of one user."""
    phases = {name: PhaseCost() for name in PHASES}
    for source, target in _PHASE_OF.items():
        cost, user = phases[target], CostKey("user", source)
        parties = users if target == "offline" else survivors
        cost.user_seconds += round_.seconds[user] / (1 if target == "upload" else parties)
        cost.server_seconds += round_.seconds[CostKey("server", source)]
        cost.bytes_up += round_.sent[user] / parties
    # What the server sends at the end of a phase is received in the next one.
    phases["offline"].bytes_down += round_.sent[CostKey("server", "keys")] / users
    phases["upload"].bytes_down += round_.sent[CostKey("server", "shares")] / users
    phases["recovery"].bytes_down += round_.sent[CostKey("server", "inputs")] / survivors
    return phases
