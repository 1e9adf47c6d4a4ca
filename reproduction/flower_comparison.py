"""Side by side with Flower's SecAgg+, in one run: total processor time of one aggregation of N updates.

Flower's code and ours share N, d, the number n of shares of a secret and the threshold ⌈2n/3⌉: n = N is SecAgg,
n < N SecAgg+ on a sparse graph. BASecAgg sums K = N updates with U = ⌈2N/3⌉ in certified mode, sealed and
signed, with honest holders as in the paper; every party pays for all its own checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
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
from basecagg.simulation.federation import Federation
from basecagg.simulation.secagg_round import SecAggRound
from reproduction.flower_peer import Vector, run_flower_round
from reproduction.ledger import Ledger
from reproduction.publishing import Publication

SETTINGS = ((10, 10), (20, 20), (50, 15), (50, 50))
"""N, and shares of each secret: N for the complete graph."""
MODEL_SIZES = (100_000, 1_000_000)
BAR = 20.0
"""BASecAgg must need this much less total CPU than Flower at N = 50, d = 10⁶."""
_CYCLES = 4
_LEDGER = "flower.jsonl"


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
        num_users=users, threshold=threshold, vector_size=size, graph=graph
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
            num_users=users,
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
    """All deal, upload, and the sum opens. Fresh updates each time: one is never masked twice."""
    fresh = [update + np.float32(cycle * 1e-3) for update in updates]
    server, names = federation.server, federation.agreement.holder_names
    version, digest, model = server.version, server.head, server.model
    started = time.process_time()
    for name in names:
        federation.deal(name)
    federation.network.run()
    for name, update in zip(names, fresh, strict=True):
        federation.submit(name, update, version, digest)
        federation.network.run()
    spent = time.process_time() - started
    step = model - server.model
    if server.version != version + 1 or np.abs(step - np.mean(fresh, axis=0)).max() > 1e-3:
        raise DecodingError("BASecAgg's step is not the plain mean")
    return spent


def run(
    folder: Path,
    settings: Sequence[tuple[int, int]] = SETTINGS,
    sizes: Sequence[int] = MODEL_SIZES,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Publication:
    """Compare every cell that the folder has no result of yet."""
    ledger = Ledger(folder / _LEDGER)
    wanted = [(users, shares, size) for users, shares in settings for size in sizes]
    for done, cell in enumerate(wanted):
        key = "/".join(map(str, cell))
        progress(done, len(wanted), key)
        if key not in ledger:
            ledger.add(key, compare(*cell)._asdict())
    return load(folder)


def load(folder: Path) -> Publication:
    """Report what the folder holds."""
    ledger = Ledger(folder / _LEDGER)
    publication = report([Comparison(**found) for found in ledger.results.values()])
    publication.machine = ledger.machine
    return publication


def report(comparisons: Sequence[Comparison]) -> Publication:
    """The table and the picture."""
    return Publication(
        "flower",
        "Side by side with Flower's SecAgg+",
        "Total processor time of one aggregation of N updates, all parties; n shares of a secret, t = ⌈2n/3⌉.",
        [comparison.flat() for comparison in comparisons],
        notes=[
            "Flower's PRG folds its 32-byte seed to 32 bits and draws from numpy's Mersenne Twister: it is"
            " not a secure one. Ours is AES-256-CTR with the whole seed.",
            "Flower agrees on keys over P-384 and shares 16-byte pieces by pycryptodome; ours uses X25519 and"
            " shares over F_q. Both run as published, in one process, through a grid in memory.",
            "BASecAgg: certified mode, K = N, T as printed, sealed and signed, every party checks everything"
            f" itself; the best of {_CYCLES} cycles.",
        ],
        figures={
            "flower": (_draw(comparisons), "Total CPU seconds of one aggregation, all parties.")
        },
    )


def _draw(comparisons: Sequence[Comparison]) -> Any:
    from basecagg.reports import plots

    @plots.in_house_style
    def draw() -> Any:
        figure, axes = plots.new_figure()
        labels = [f"N = {c.users}\nn = {c.shares}\nd = {c.model_size:,}" for c in comparisons]
        for index, (name, values) in enumerate(
            (
                ("Flower SecAgg+", [c.flower_total for c in comparisons]),
                ("our SecAgg(+)", [c.secagg_total for c in comparisons]),
                ("BASecAgg", [c.basecagg_total for c in comparisons]),
            )
        ):
            places = [place + (index - 1) * 0.27 for place in range(len(labels))]
            axes.bar(places, values, 0.27, color=plots.COLOURS[(1, 2, 0)[index]], label=name)
        axes.set_xticks(range(len(labels)), labels, fontsize=8)
        axes.set_yscale("log")
        axes.set_ylabel("CPU seconds, all parties")
        axes.legend()
        return figure

    return draw()
