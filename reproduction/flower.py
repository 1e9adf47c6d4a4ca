"""`basecagg reproduce flower`: total processor time of one aggregation, side by side with Flower's SecAgg+.

Flower's code and ours share N, d, the number n of shares of a secret and the threshold ⌈2n/3⌉: n = N is SecAgg,
n < N SecAgg+ on a sparse graph. BASecAgg sums K = N updates with U = ⌈2N/3⌉ in certified mode, sealed and
signed, with honest holders as in the paper; every party pays for all its own checks. Each of the three is run
equally often, and the run with the median total counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np

from basecagg.baselines.secagg import SecAggParameters
from basecagg.baselines.secagg_graph import random_regular
from basecagg.baselines.secagg_server import SumOpened
from basecagg.errors import DecodingError
from basecagg.maths.primes import PAPER_MODULUS
from basecagg.maths.quantization import clip_update, quantize
from basecagg.maths.randomness import Words, WordStream, new_seed
from basecagg.parameters import ProtocolParameters
from basecagg.reports.plots import COLOURS
from basecagg.simulation.federation import Federation
from basecagg.simulation.secagg_round import SecAggRound
from reproduction import plot
from reproduction.cycle import Vector, run_cycle
from reproduction.experiment import Experiment, Results
from reproduction.flower_peer import PeerRound, run_flower_round
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
ROUNDS = 3
"""How often each of the three is run."""
_COLUMNS = {
    "users": "N",
    "shares": "n",
    "model_size": "d",
    "threshold": "t",
    "colluders": "T of BASecAgg",
    "flower_total": "Flower, CPU s",
    "secagg_total": "our SecAgg(+), CPU s",
    "basecagg_total": "BASecAgg, CPU s",
    "flower / our secagg, per user": "Flower / our SecAgg(+), per user",
    "flower / our secagg, server": "Flower / our SecAgg(+), server",
    "flower / basecagg, total": "Flower / BASecAgg, total",
    "our secagg / basecagg, total": "our SecAgg(+) / BASecAgg, total",
}
"""What the page shows of a comparison, and how it calls it."""
_ALL_COLUMNS = _COLUMNS | {
    "flower_user": "Flower, CPU s of a user",
    "flower_server": "Flower, CPU s of the server",
    "secagg_user": "our SecAgg(+), CPU s of a user",
    "secagg_server": "our SecAgg(+), CPU s of the server",
    "rounds": "runs of each",
    "flwr": "flwr",
}
"""What the files have of it."""
_Measured = TypeVar("_Measured")


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
    rounds: int
    """How often each was run, of which the median counts."""
    flwr: str
    """The version of Flower."""

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
            "our secagg / basecagg, total": self.secagg_total / self.basecagg_total,
        }


def compare(users: int, shares: int, model_size: int) -> Comparison:
    """One cell: each the median of some rounds, our two first, then Flower's."""
    generator = np.random.default_rng(users)
    updates = [generator.normal(0, 0.02, model_size).astype(np.float32) for _ in range(users)]
    threshold, recovery_threshold = ceil(2 * shares / 3), ceil(2 * users / 3)
    colluders = _most_colluders(users, recovery_threshold)
    own = median(
        [_secagg(updates, shares, threshold) for _ in range(ROUNDS)], lambda spent: spent[2]
    )
    coded = basecagg_seconds(updates, recovery_threshold, colluders)
    rounds = [_flower(updates, shares, threshold) for _ in range(ROUNDS)]
    flower = median(rounds, lambda spent: spent.total_seconds)
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
        ROUNDS,
        version("flwr"),
    )


def median(runs: Sequence[_Measured], total: Callable[[_Measured], float]) -> _Measured:
    """The run whose total is in the middle, so that its parts belong together."""
    return sorted(runs, key=total)[len(runs) // 2]


def _most_colluders(users: int, threshold: int) -> int:
    """T = 8 as by default, or the largest that certified mode allows here."""
    return max(1, min(8, 2 * threshold - users - 2, threshold - 1))


def _flower(updates: Sequence[Vector], shares: int, threshold: int) -> PeerRound:
    """A round of Flower's; the mean must be right."""
    found = run_flower_round(updates, threshold, shares)
    if np.abs(found.mean - np.mean(updates, axis=0)).max() > 1e-3:
        raise DecodingError("Flower's mean is not the plain one: the comparison is void")
    return found


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
    """CPU of everyone, the median of some cycles of one federation."""
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
            masks="long",
        ),
        np.zeros(size, np.float32),
    )
    cycles = [_cycle(federation, updates, cycle) for cycle in range(ROUNDS)]
    return median(cycles, lambda seconds: seconds)


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
    comparisons = [_read(result) for result in results.values()]
    lines = [_line(comparison) for comparison in comparisons]
    return Publication(
        "flower",
        "Side by side with Flower's SecAgg+",
        "Total processor time of one aggregation of N updates of d elements, all parties together. Each secret"
        " of SecAgg has n shares, of which t = ⌈2n/3⌉ rebuild it: n = N is SecAgg, n < N SecAgg+. BASecAgg has"
        f" K = N and U = ⌈2N/3⌉. Each of the three was run {_all(c.rounds for c in comparisons)} times, and the"
        " median counts.",
        lines,
        summary=select(lines, list(_COLUMNS.values())),
        notes=[_beside_secagg(comparisons), *_notes(comparisons)],
        figures={
            "flower": (_drawn(comparisons), "Total CPU seconds of one aggregation, all parties.")
        },
    )


def _read(result: Mapping[str, Any]) -> Comparison:
    return Comparison(**{name: result[name] for name in Comparison._fields})


def _line(comparison: Comparison) -> dict[str, Any]:
    flat = comparison.flat()
    return {name: flat[key] for key, name in _ALL_COLUMNS.items()}


def _all(values: Iterable[object]) -> str:
    """Usually the same one."""
    return " and ".join(dict.fromkeys(map(str, values)))


def _beside_secagg(comparisons: Sequence[Comparison]) -> str:
    """Where BASecAgg costs more than SecAgg in the same hands."""
    ratios = [c.basecagg_total / c.secagg_total for c in comparisons]
    dearer = sorted(ratio for ratio in ratios if ratio > 1)
    if not dearer:
        return "BASecAgg needs less CPU than our own SecAgg or SecAgg+ in every row."
    where = [
        f"N = {c.users}, n = {c.shares}, d = {c.model_size:,}"
        for c, ratio in zip(comparisons, ratios, strict=True)
        if ratio <= 1
    ]
    less = f", and less only at {'; '.join(where)}" if where else ""
    return (
        f"BASecAgg needs more CPU than our own SecAgg or SecAgg+ in {len(dearer)} of {len(ratios)} rows,"
        f" {dearer[0]:.2g} to {dearer[-1]:.2g} times as much{less}."
    )


def _notes(comparisons: Sequence[Comparison]) -> list[str]:
    weaker = sum(c.colluders < c.threshold - 1 for c in comparisons)
    return [
        "T and t are not the same threat. SecAgg's secrets are safe from the server with t − 1 of the users"
        " that have shares of them, BASecAgg's masks from the server with T holders. T is less than t − 1 in"
        f" {weaker} of {len(comparisons)} rows: there BASecAgg is measured against fewer colluders.",
        'BASecAgg: certified mode with `correctness="honest-holders"` as in the paper (holders that lie could'
        " change the sum), sealed and signed, every party checks everything itself.",
        f"Flower: flwr {_all(c.flwr for c in comparisons)}. Its PRG folds its 32-byte seed to 32 bits and"
        " draws from numpy's Mersenne Twister: it is not a secure one. Ours is AES-256-CTR with the"
        " whole seed.",
        "Flower agrees on keys over P-384 and shares 16-byte pieces by pycryptodome; ours uses X25519 and"
        " shares over F_q. Both run as published, in one process, through a grid in memory.",
    ]


def _drawn(comparisons: Sequence[Comparison]) -> Any:
    return plot.bars(
        {
            "Flower's SecAgg+": [each.flower_total for each in comparisons],
            "our SecAgg(+)": [each.secagg_total for each in comparisons],
            "BASecAgg": [each.basecagg_total for each in comparisons],
        },
        [f"N = {c.users}\nn = {c.shares}\nd = {c.model_size / 1e6:g} M" for c in comparisons],
        "CPU seconds, all parties",
        colours=[COLOURS[index] for index in (1, 2, 0)],
        room=0.81,
        log=True,
        tick_size=8,
    )


FLOWER = Experiment("flower", jobs, report)
