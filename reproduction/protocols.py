"""`basecagg reproduce protocols`: what SecAgg, SecAgg+, LightSecAgg and BASecAgg cost, and how that grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from reproduction import machine, pairwise_costs, protocols_plot
from reproduction.coded_costs import measure_coded
from reproduction.costs import (
    BUFFER,
    NAMES,
    PROTOCOLS,
    Cell,
    Row,
    Spread,
    recovery_seconds,
    server_seconds,
    user_seconds,
)
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.protocols_claims import claims
from reproduction.protocols_tables import (
    CODED,
    MODELS,
    gains_table,
    growth_table,
    missing_table,
    model_name,
    recovery_table,
    summary_line,
    theory_table,
)
from reproduction.report import Publication, shown

DROPOUTS = (0.1, 0.3, 0.5)
GRIDS: Mapping[Size, tuple[Sequence[int], Sequence[float], Sequence[int]]] = {
    "full": ((25, 50, 100, 200), DROPOUTS, tuple(MODELS)),
    "quick": ((25, 50), DROPOUTS, tuple(MODELS)[:3]),
    "smoke": ((8, 12), (0.25,), (2000,)),
}
"""N, dropouts and d that are measured."""
_MOST_MEMORY = 0.6
"""Of the machine's, for one cell."""


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """One for each cell that leaves some memory to others."""
    return [
        Job(cell.key, _measured, cell, cell.users * (cell.model_size + 100_000))
        for cell in cells(order.size)
        if cell.memory < _MOST_MEMORY * machine.memory()
    ]


def cells(size: Size) -> list[Cell]:
    """All cells, the most wanted first."""
    users, dropouts, sizes = GRIDS[size]
    return [
        Cell(protocol, n, dropout, d)
        for d, n, dropout, protocol in product(sizes, users, dropouts, PROTOCOLS)
    ]


def measure(cell: Cell) -> Row:
    """One row."""
    coded = cell.protocol in CODED
    return measure_coded(cell) if coded else pairwise_costs.measure_pairwise(cell)


def _measured(cell: Cell) -> dict[str, Any]:
    return measure(cell).as_dict()


# --- the page -----------------------------------------------------------------------------------


def report(results: Results, size: Size) -> Publication:
    """Claims, tables and plots of all rows."""
    found = {key: Row.from_dict(row) for key, row in results.items()}
    wanted = cells(size)
    rows = [found[cell.key] for cell in wanted if cell.key in found]
    best = _best_measured(rows)
    drawn = [row for row in rows if row.cell.model_size == best]
    fewest = min(len(row.repeats) for row in rows)
    return Publication(
        "protocols",
        "What secure aggregation costs",
        f"{len(rows)} of {len(wanted)} cells, a cell being a protocol with N users, a share of them that drops"
        f" out, and a model of d parameters. Each was run {fewest} times or more at its own N and d: none is"
        " scaled from a smaller one, but work that repeats alike is run once and multiplied (below). A figure"
        " is the middle one of its repeats, with the least and the most in brackets.",
        [row.flat() for row in rows],
        summary=[summary_line(row) for row in drawn],
        tables=_tables(rows, drawn, wanted),
        notes=[*missing(wanted, found), *notes(rows)],
        figures=figures(drawn),
        claims=claims(drawn, *GRIDS[size][:2]),
    )


def _tables(
    rows: Sequence[Row], drawn: Sequence[Row], wanted: Sequence[Cell]
) -> dict[str, list[dict[str, Any]]]:
    """Those that have a line."""
    best = drawn[0].cell.model_size
    there = {row.cell.key for row in rows}
    complete = len(there) == len(wanted)
    others = {
        f"Figures: {model_name(size)}": [
            summary_line(row) for row in rows if row.cell.model_size == size
        ]
        for size in sorted({row.cell.model_size for row in rows} - {best}, reverse=True)
    }
    tables = {
        f"CPU seconds of the server in the recovery, d = {best:,}": recovery_table(drawn),
        f"Gains at 320 Mb/s, d = {best:,}": gains_table(drawn),
        "Growth in theory": theory_table(),
        f"Measured exponents of N, d = {best:,}": growth_table(drawn),
        **others,
        "Cells measured": [] if complete else missing_table(wanted, there),
    }
    return {name: table for name, table in tables.items() if table}


def _best_measured(rows: Iterable[Row]) -> int:
    """The model of which most cells are there: the largest, when all are."""
    counts = Counter(row.cell.model_size for row in rows)
    return max(counts, key=lambda size: (counts[size], size))


def missing(wanted: Sequence[Cell], found: Container[str]) -> list[str]:
    """How many cells are not there yet, if any."""
    left = Counter(cell.protocol for cell in wanted if cell.key not in found)
    if not left:
        return []
    counts = ", ".join(f"{NAMES[protocol]} {left[protocol]}" for protocol in PROTOCOLS)
    return [
        f"**{left.total()} of {len(wanted)} cells are not measured yet** ({counts}): the table *Cells measured*"
        " says which. The command goes on with those that fit into memory."
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """What to keep in mind when reading the tables."""
    return [*_words(), *_method(rows), *_meaning()]


def _words() -> list[str]:
    """What columns mean."""
    return [
        "N users begin, D of them drop out before they upload (dropout = D/N), and the N − D updates of the"
        " others, d parameters each, are summed. T: how many users may pool what they see with the server and"
        " still learn nothing but the sum. Degree: with how many others a user masks, or how many hold its"
        " shares.",
        "T is N/2 for SecAgg, LightSecAgg and BASecAgg (or the largest below U = N − D, the answers that a"
        " recovery needs; SecAgg needs T + 1). SecAgg+ mostly holds against T = N/10 only, by the sparsest"
        " graph that fails with probability 2⁻³⁰ at most: against N/2 there is none, or nearly none, at these"
        " N. Where even N/10 leaves none, it is SecAgg. So a gain over SecAgg+ is over a weaker guarantee.",
        "Three phases follow each other. Offline: keys or shares of masks are exchanged, before there is an"
        " update. Upload: masked updates are sent. Recovery: from the last upload to the sum. Overlapped: users"
        " train during the offline phase, so that its time is not counted; otherwise all three are. CPU always"
        " counts all three, unless it says recovery.",
        "Times are computed: measured CPU, and measured bytes on lines of the given speed both ways. Users work"
        " side by side, then the server, whose line is never the bottleneck. Megabytes (10⁶) are the"
        " protocol's own, in all three phases: the model comes on top, and is as long for all four.",
        "A gain is the other protocol's cost divided by that of LightSecAgg or BASecAgg: below 1 it is a loss."
        " It is at the largest N where all four are measured.",
        "An exponent is the slope of log cost over log N, over those N that all four protocols have at this"
        " share of dropouts. Theory: of its largest term if d is far larger than s·N (s: length of a seed),"
        " logarithms left out; relay is passing shares on. At these N logarithms count, and"
        " the degree of SecAgg+ grows faster than they do.",
    ]


def _method(rows: Sequence[Row]) -> list[str]:
    """What was run."""
    exact = all(row.exact for row in rows)
    return [
        "CPU seconds are measured with this package's machines: X25519, AES-CTR, AES-GCM, one field,"
        " one quantiser; an honest server. Sums opened on the way were "
        + ("all exact." if exact else "NOT all exact: do not use these figures."),
        "The machines of coded masks (LightSecAgg, BASecAgg) hash, sign and persist every message, as in a real"
        " federation. Those of SecAgg and SecAgg+ seal shares but sign and persist nothing."
        " So the tables favour the latter, on the server by a hash and a write for every upload.",
        f"A row is for N − D summed updates. BASecAgg sums them K = {BUFFER} at a time, so its recovery runs"
        f" (N − D)/{BUFFER} times; LightSecAgg's runs once.",
        "All users do the same work, so one of them is measured and represents the others. With coded masks all"
        " deal the same mask, so that one encoding tells what every holder answers; with SecAgg and SecAgg+"
        f" the others mask their first {pairwise_costs.HEAD:,} elements alone, where the sum is compared."
        " (What else users do there, with keys and shares, all do, and the mean is shown.)",
        "The server sums all inputs of a sum, takes all masks off, checks and decodes all answers, at full"
        " size. Two things that it does many times alike are run once and multiplied: relaying the shares of"
        f" one user (N times), and a sum of BASecAgg ((N − D)/{BUFFER} times).",
        "CPU counts what the system does for a process: handing out fresh memory is much of the server's part"
        " in the offline phase at 50 % dropouts, and the least steady. The largest cell takes about"
        f" {max(cell.memory for cell in cells('full')) / 1e9:.0f} GB of memory.",
    ]


def _meaning() -> list[str]:
    """What follows."""
    return [
        "Published gains are LightSecAgg's, measured with another implementation on other machines. Here a PRG"
        " stream of AES-CTR costs about as much as copying the vector a few times, so SecAgg is far cheaper"
        " than it was there, and coded masks gain where the server expands D·(N − D) streams: many users, many"
        " dropouts, the offline phase behind training.",
        "At 50 % dropouts U − T = 1: a share is as long as the model, and each of N users sends N of them,"
        " which the server relays. No choice of U helps; T must be lowered.",
        "Decoding here multiplies by a matrix, d·U operations, where theory has a fast transform, d·log N.",
    ]


def figures(rows: Sequence[Row]) -> dict[str, tuple[Any, str]]:
    """Server and user CPU, and the time of an aggregation, against N."""
    size = shown(rows[0].cell.model_size)
    return {
        f"protocols-{name}": (
            protocols_plot.against_users(rows, label, read),
            f"{what}, d = {size}. Bars: from the least to the most of the repeats.",
        )
        for name, (label, what, read) in _DRAWN.items()
    }


_DRAWN: Mapping[str, tuple[str, str, Callable[[Row], Spread]]] = {
    "user-cpu": ("user CPU, s", "CPU of one user", lambda row: row.spread(user_seconds)),
    "server-cpu": (
        "server CPU, s",
        "CPU of the server in all phases",
        lambda row: row.spread(server_seconds),
    ),
    "recovery": (
        "server CPU in the recovery, s",
        "CPU of the server in the recovery phase",
        lambda row: row.spread(recovery_seconds),
    ),
    "time-320": (
        "seconds",
        "Time of an aggregation at 320 Mb/s, the offline phase overlapped",
        lambda row: row.duration(320, overlapped=True),
    ),
}
"""Label, caption and value of every plot."""

COSTS = Experiment("protocols", jobs, report)
