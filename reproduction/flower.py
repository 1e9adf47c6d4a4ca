"""`basecagg reproduce flower`: total processor time of one aggregation, side by side with Flower's SecAgg+.

Flower's code and ours share N, d, the number n of shares of a secret and the threshold ⌈2n/3⌉: n = N is SecAgg,
n < N SecAgg+ on a sparse graph. BASecAgg sums K = N updates with U = ⌈2N/3⌉ in certified mode, sealed and
signed, with honest holders as in the paper; every party pays for all its own checks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from basecagg.errors import DecodingError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import clip_update, quantize
from basecagg.maths.randomness import Words, WordStream, new_seed
from basecagg.parameters import ProtocolParameters
from basecagg.protections.secagg import SecAggParameters
from basecagg.protections.secagg_graph import random_regular
from basecagg.protections.secagg_server import SumOpened
from basecagg.reports.plots import COLOURS
from basecagg.simulation.federation import Federation
from basecagg.simulation.secagg_round import SecAggRound
from reproduction import plot
from reproduction.cycle import Vector, run_cycle
from reproduction.experiment import Experiment, Results
from reproduction.flower_peer import run_flower_round
from reproduction.jobs import Job, Order, Size
from reproduction.report import Publication, select

SETTINGS = ((10, 10), (20, 20), (50, 15), (50, 50))
"""N, and shares of each secret: N for the complete graph."""
MODEL_SIZES = (100_000, 1_000_000)
BAR = 20.0
"""BASecAgg must need this much less total CPU than Flower at N = 50, d = 10⁶."""
_CELLS: Mapping[Size, tuple[Sequence[tuple[int, int]], Sequence[int]]] = {
    "full": (SETTINGS, MODEL_SIZES),
    "quick": (SETTINGS[:2], MODEL_SIZES),
    "smoke": (((8, 5),), (500,)),
}
_CYCLES = 4
_SUMMARY = (
    "users",
    "shares",
    "model_size",
    "threshold",
    "colluders",
    "flower_total",
    "secagg_total",
    "basecagg_total",
    "flower / our secagg, per user",
    "flower / our secagg, server",
    "flower / basecagg, total",
)


class Comparison(NamedTuple):
    """CPU seconds of one aggregation, for each of the three."""

    users: int
    shares: int
    model_size: int
    threshold: int
    colluders: int
    """T of BASecAgg."""
    flower_user: float
    flower_server: float
    flower_total: float
    secagg_user: float
    secagg_server: float
    secagg_total: float
    basecagg_total: float

    @property
    def secagg_gain(self) -> float:
        """How much less CPU our SecAgg needs per user than Flower's."""
        return self.flower_user / self.secagg_user

    @property
    def basecagg_gain(self) -> float:
        """How much less CPU BASecAgg needs in total than Flower's SecAgg+."""
        return self.flower_total / self.basecagg_total

    def flat(self) -> dict[str, Any]:
        """One line of a table."""
        return {
            **self._asdict(),
            "flower / our secagg, per user": self.secagg_gain,
            "flower / our secagg, server": self.flower_server / self.secagg_server,
            "flower / basecagg, total": self.basecagg_gain,
        }


def compare(users: int, shares: int, model_size: int) -> Comparison:
    """One cell: our two first, then Flower's."""
    generator = np.random.default_rng(users)
    updates = [generator.normal(0, 0.02, model_size).astype(np.float32) for _ in range(users)]
    threshold, recovery_threshold = ceil(2 * shares / 3), ceil(2 * users / 3)
    colluders = _most_colluders(users, recovery_threshold)
    own = min((_secagg(updates, shares, threshold) for _ in range(2)), key=lambda found: found[2])
    coded = basecagg_seconds(updates, recovery_threshold, colluders)
    flower = run_flower_round(updates, threshold, shares)
    if np.abs(flower.mean - np.mean(updates, axis=0)).max() > 1e-3:
        raise DecodingError("Flower's mean is not the plain one: the comparison is void")
    return Comparison(
        users,
        shares,
        model_size,
        threshold,
        colluders,
        flower.seconds_per_user,
        flower.server_seconds,
        flower.total_seconds,
        *own,
        coded,
    )


def _most_colluders(users: int, threshold: int) -> int:
    """T = 8 as by default, or the largest that certified mode allows here."""
    return max(1, min(8, 2 * threshold - users - 2, threshold - 1))


def _secagg(updates: Sequence[Vector], shares: int, threshold: int) -> tuple[float, float, float]:
    """CPU of one user, of the server, and of everyone; the sum must be exact."""
    users, size = len(updates), updates[0].size
    quantized: dict[int, Words] = {}

    def read(user: int) -> Words:
        clipped, _ = clip_update(updates[user], 4.0)
        coins = WordStream(new_seed()).draw(size)
        quantized[user] = quantize(clipped, 2**16, PAPER_MODULUS, coins)
        return quantized[user]

    graph = random_regular(users, shares - 1) if shares < users else ()
    parameters = SecAggParameters(
        num_holders=users, threshold=threshold, vector_size=size, graph=graph
    )
    round_ = SecAggRound(parameters)
    outcome = round_.run(read)
    wanted = sum(row.astype(np.uint64) for row in quantized.values()) % np.uint64(PAPER_MODULUS)
    if not isinstance(outcome, SumOpened) or not np.array_equal(outcome.total, wanted):
        raise DecodingError("SecAgg's sum is not the plain one")
    spent = dict.fromkeys(("user", "server"), 0.0)
    for account, seconds in round_.seconds.items():
        spent[account.role] += seconds
    return spent["user"] / users, spent["server"], sum(spent.values())


def basecagg_seconds(updates: Sequence[Vector], threshold: int, colluders: int) -> float:
    """CPU of everyone, for the best of some cycles of one federation."""
    users, size = len(updates), updates[0].size
    federation = Federation(
        ProtocolParameters(
            num_holders=users,
            recovery_threshold=threshold,
            max_colluders=colluders,
            max_dropouts=users - threshold,
            buffer_size=users,
            model_size=size,
            correctness="honest-holders",
        ),
        np.zeros(size, np.float32),
    )
    return min(_cycle(federation, updates, cycle) for cycle in range(_CYCLES))


def _cycle(federation: Federation, updates: Sequence[Vector], cycle: int) -> float:
    """All deal, upload, and the sum opens; the updates are fresh each time."""
    fresh = [update + np.float32(cycle * 1e-3) for update in updates]
    model = federation.server.model
    started = time.process_time()
    run_cycle(federation, fresh)
    spent = time.process_time() - started
    step = model - federation.server.model
    if np.abs(step - np.mean(fresh, axis=0)).max() > 1e-3:
        raise DecodingError("BASecAgg's step is not the plain mean")
    return spent


def jobs(order: Order, results: Results) -> list[Job]:
    """Every number of users and shares with every model."""
    settings, sizes = _CELLS[order.size]
    cells = [(users, shares, size) for users, shares in settings for size in sizes]
    return [Job("/".join(map(str, cell)), _compared, cell) for cell in cells]


def _compared(cell: tuple[int, int, int]) -> dict[str, Any]:
    return compare(*cell)._asdict()


def report(results: Results, size: Size) -> Publication:
    """The table and the picture."""
    found = [[result[name] for name in Comparison._fields] for result in results.values()]
    comparisons = [Comparison(*values) for values in found]
    lines = [comparison.flat() for comparison in comparisons]
    return Publication(
        "flower",
        "Side by side with Flower's SecAgg+",
        "Total processor time of one aggregation of N updates, all parties; n shares of a secret, t = ⌈2n/3⌉.",
        lines,
        summary=select(lines, _SUMMARY),
        notes=[
            "Flower's PRG folds its 32-byte seed to 32 bits and draws from numpy's Mersenne Twister: it is"
            " not a secure one. Ours is AES-256-CTR with the whole seed.",
            "Flower agrees on keys over P-384 and shares 16-byte pieces by pycryptodome; ours uses X25519 and"
            " shares over F_q. Both run as published, in one process, through a grid in memory.",
            "BASecAgg: certified mode, K = N, T as printed, sealed and signed, every party checks everything"
            f" itself; the best of {_CYCLES} cycles.",
        ],
        figures={
            "flower": (_drawn(comparisons), "Total CPU seconds of one aggregation, all parties.")
        },
    )


def _drawn(comparisons: Sequence[Comparison]) -> Any:
    return plot.bars(
        {
            "Flower SecAgg+": [each.flower_total for each in comparisons],
            "our SecAgg(+)": [each.secagg_total for each in comparisons],
            "BASecAgg": [each.basecagg_total for each in comparisons],
        },
        [f"N = {c.users}\nn = {c.shares}\nd = {c.model_size:,}" for c in comparisons],
        "CPU seconds, all parties",
        colours=[COLOURS[index] for index in (1, 2, 0)],
        room=0.81,
        log=True,
        tick_size=8,
    )


FLOWER = Experiment("flower", jobs, report)
