"""`basecagg reproduce protocols`: what SecAgg, SecAgg+, LightSecAgg and BASecAgg cost, and how that grows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from reproduction import machine, pairwise_costs, protocols_plot
from reproduction.coded_costs import measure_coded
from reproduction.costs import (
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
from reproduction.report import Publication, shown

DROPOUTS = (0.1, 0.3, 0.5)
MODELS = {
    1_206_590: "CNN (FedAvg paper)",
    61_706: "LeNet",
    7_850: "logistic regression",
    5_288_548: "EfficientNet-B0",
}
"""d, the most wanted first: the last takes as long as all others together."""
GRIDS: Mapping[Size, tuple[Sequence[int], Sequence[float], Sequence[int]]] = {
    "full": ((25, 50, 100, 200), DROPOUTS, tuple(MODELS)),
    "quick": ((25, 50), DROPOUTS, tuple(MODELS)[:3]),
    "smoke": ((8, 12), (0.25,), (2000,)),
}
"""N, dropouts and d that are measured."""
_MOST_MEMORY = 0.6
"""Of the machine's, for one cell."""
THEORY = {
    "secagg": {"user CPU": "d·N + s·N²", "server CPU": "d·N²", "user bytes": "d + s·N"},
    "secagg+": {
        "user CPU": "d·log N + s·log² N",
        "server CPU": "d·N·log N",
        "user bytes": "d + s·log N",
    },
    "lightsecagg": {
        "user CPU": "d·log N",
        "server CPU": "d·N (sum), d·log N (decode)",
        "user bytes": "d",
    },
    "basecagg": {
        "user CPU": "d·log N",
        "server CPU": "d·N (sum), d·log N (decode)",
        "user bytes": "d",
    },
}
"""Orders of growth from the LightSecAgg paper; s is the length of a seed. For a fixed share of dropouts."""
_THEORY_EXPONENT = {
    "secagg": (1, 2),
    "secagg+": (0, 1),
    "lightsecagg": (0, 1),
    "basecagg": (0, 1),
}
_PUBLISHED = {"secagg": "8–13×", "secagg+": "3–4×"}
_SETTING = ("protocol", "N", "dropout", "d", "T", "degree")
_SECONDS = (
    "98 Mb/s: seconds, overlapped",
    "320 Mb/s: seconds",
    "320 Mb/s: seconds, overlapped",
    "802 Mb/s: seconds, overlapped",
)
_WITH_SPREAD = {
    "user CPU s": user_seconds,
    "server CPU s": server_seconds,
    "of it in the recovery": recovery_seconds,
}
"""The columns of the page that show how far the repeats lie apart."""


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
    pairwise = cell.protocol in ("secagg", "secagg+")
    return pairwise_costs.measure_pairwise(cell) if pairwise else measure_coded(cell)


def _measured(cell: Cell) -> dict[str, Any]:
    return measure(cell).as_dict()


# --- reporting ----------------------------------------------------------------------------------


def _user(row: Row) -> float:
    return row.spread(user_seconds).middle


def _recovery(row: Row) -> float:
    return row.spread(recovery_seconds).middle


def growth(rows: Sequence[Row], protocol: str, read: Callable[[Row], float]) -> float | str:
    """The exponent of N: the slope of log cost over log N, mean over dropouts; rows of one model."""
    lines: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.cell.protocol == protocol:
            lines[row.cell.dropout].append((math.log(row.cell.users), math.log(read(row))))
    slopes = []
    for line in lines.values():
        x, y = zip(*line, strict=True)
        if x[1:]:
            slopes.append(np.polyfit(x, y, 1)[0])
    return float(np.mean(slopes)) if slopes else "–"


def growth_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Theory beside measured exponents."""
    table = []
    for protocol in PROTOCOLS:
        user, server = _THEORY_EXPONENT[protocol]
        table.append(
            {
                "protocol": protocol,
                "user CPU, theory": THEORY[protocol]["user CPU"],
                "N^, theory (user)": user,
                "N^, measured (user)": growth(rows, protocol, _user),
                "server CPU, theory": THEORY[protocol]["server CPU"],
                "N^, theory (server)": server,
                "N^, measured (server)": growth(rows, protocol, _recovery),
                "user bytes, theory": THEORY[protocol]["user bytes"],
            }
        )
    return table


def gains_table(rows: Sequence[Row], link: int = 320) -> list[dict[str, Any]]:
    """How much faster LightSecAgg is, at the largest N, beside the published figures."""
    by_cell = {row.cell: row for row in rows}
    pairs = [
        (row, light)
        for row in rows
        if row.cell.protocol in _PUBLISHED
        and (light := by_cell.get(replace(row.cell, protocol="lightsecagg")))
    ]
    most = max((row.cell.users for row, _ in pairs), default=0)
    return [_gain(row, light, link) for row, light in pairs if row.cell.users == most]


def _gain(row: Row, light: Row, link: int) -> dict[str, Any]:
    gain = {
        overlapped: row.duration(link, overlapped=overlapped).middle
        / light.duration(link, overlapped=overlapped).middle
        for overlapped in (False, True)
    }
    return {
        "LightSecAgg over": row.cell.protocol,
        "N": row.cell.users,
        "dropout": row.cell.dropout,
        "d": row.cell.model_size,
        "gain": gain[False],
        "gain, overlapped": gain[True],
        "gain, server CPU in recovery": _recovery(row) / _recovery(light),
        "published at N = 200": _PUBLISHED[row.cell.protocol],
    }


def report(results: Results, size: Size) -> Publication:
    """Tables and plots of all rows."""
    found = {key: Row.from_dict(row) for key, row in results.items()}
    wanted = cells(size)
    rows = [found[cell.key] for cell in wanted if cell.key in found]
    best = _best_measured(rows)
    shown_rows = [row for row in rows if row.cell.model_size >= best]
    drawn = [row for row in rows if row.cell.model_size == best]
    tables = {"Growth with N": growth_table(drawn), "Gains at 320 Mb/s": gains_table(rows)}
    fewest = min(len(row.repeats) for row in rows)
    return Publication(
        "protocols",
        "What secure aggregation costs",
        f"{len(rows)} of {len(wanted)} cells, each measured {fewest} times or more at its full size: nothing is"
        " extrapolated. A figure is the middle one of its repeats, with the least and the most in brackets.",
        [row.flat() for row in rows],
        summary=[_summary(row) for row in shown_rows],
        tables={name: table for name, table in tables.items() if table},
        notes=[*missing(wanted, found), *notes(rows)],
        figures=figures(drawn),
    )


def _best_measured(rows: Iterable[Row]) -> int:
    """The model of which most cells are there: the largest, when all are."""
    counts = Counter(row.cell.model_size for row in rows)
    return max(counts, key=lambda size: (counts[size], size))


def _summary(row: Row) -> dict[str, Any]:
    line, measured = row.flat(), {}
    for column, read in _WITH_SPREAD.items():
        middle, least, most = map(shown, row.spread(read))
        measured[column] = f"{middle} ({least}–{most})"
    return {
        **{name: line[name] for name in _SETTING},
        **measured,
        **{name: line[name] for name in _SECONDS},
    }


def missing(wanted: Sequence[Cell], found: Mapping[str, Row]) -> list[str]:
    """Which cells are not there yet, if any."""
    left = [cell.key for cell in wanted if cell.key not in found]
    if not left:
        return []
    return [
        f"**{len(left)} of {len(wanted)} cells are not measured yet** (protocol/N/dropout/d); the command goes"
        f" on with those that fit into memory: {', '.join(left)}."
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """What to keep in mind when reading the tables."""
    exact = all(row.exact for row in rows)
    return [
        "CPU seconds are measured with this package's machines: X25519, AES-CTR, AES-GCM, one field,"
        " one quantiser. Sums opened on the way were "
        + ("all exact." if exact else "NOT all exact: do not use these figures."),
        "Honest-server mode. Coded masks: U = N − D, T = N/2 or the largest below U. SecAgg: t = T + 1."
        " SecAgg+: the sparsest graph against N/10 colluders with failure 2⁻³⁰; against N/2 there is none,"
        " or nearly none, at these N.",
        "The machines of coded masks hash, sign and persist every message, as in a real federation. Those of"
        " SecAgg and SecAgg+ seal shares but sign and persist nothing: the form for an honest server."
        " So the table favours them, on the server by a hash and a write for every upload.",
        "A row is for N − D summed updates. BASecAgg sums them 10 at a time, so its recovery runs"
        " (N − D)/10 times.",
        "Times assume that users work side by side on lines of the given speed both ways, and that the"
        " server's line is never the bottleneck. Overlapped: the offline phase hides behind training.",
        "All users do the same work, so one of them is measured and the others stand in: with coded masks all"
        " deal the same mask, so that one encoding tells what every holder answers; with SecAgg and SecAgg+"
        f" they mask the first {pairwise_costs.HEAD:,} elements alone, and the sum is compared there.",
        "What the server does is done in full: all inputs are summed, all masks taken off, all answers checked"
        " and decoded. Relaying a dealing, and a sum of BASecAgg, are done once and counted as often as they"
        " occur.",
        "CPU counts what the system does for a process: handing out fresh memory is much of the server's part"
        " in the offline phase at 50 % dropouts, and the least steady. The largest cell takes about"
        f" {max(cell.memory for cell in cells('full')) / 1e9:.0f} GB of memory.",
        "Published gains were measured with another implementation on other machines. Here a PRG stream of"
        " AES-CTR costs about as much as copying the vector a few times, so SecAgg is far cheaper than it was"
        " there, and coded masks gain where the server expands D·(N − D) streams: many users, many dropouts,"
        " the offline phase behind training.",
        "At 50 % dropouts U − T = 1: a share is as long as the model, and each of N users sends N of them."
        " No choice of U helps; T must be lowered.",
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
