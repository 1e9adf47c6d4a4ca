"""`basecagg reproduce protocols`: what SecAgg, SecAgg+, LightSecAgg and BASecAgg cost, and how that grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from reproduction import protocols_plot
from reproduction.coded_costs import measure_coded
from reproduction.costs import PROTOCOLS, Cell, Row
from reproduction.experiment import Experiment, Results
from reproduction.jobs import Job, Order, Size
from reproduction.pairwise_costs import measure_pairwise
from reproduction.report import Publication, select, shown

DROPOUTS = (0.1, 0.3, 0.5)
MODELS = {
    7_850: "logistic regression",
    61_706: "LeNet",
    1_206_590: "CNN (FedAvg paper)",
    3_111_462: "MobileNetV3",
    5_288_548: "EfficientNet-B0",
}
GRIDS: Mapping[Size, tuple[Sequence[int], Sequence[float], Sequence[int]]] = {
    "full": ((25, 50, 100, 200), DROPOUTS, tuple(MODELS)),
    "quick": ((25, 50), DROPOUTS, tuple(MODELS)[:3]),
    "smoke": ((8, 12), (0.25,), (2000,)),
}
"""N, dropouts and d that are measured."""
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
_SUMMARY = (
    "protocol",
    "N",
    "dropout",
    "d",
    "T",
    "degree",
    "user CPU s",
    "server CPU s",
    "98 Mb/s: seconds, overlapped",
    "320 Mb/s: seconds",
    "320 Mb/s: seconds, overlapped",
    "802 Mb/s: seconds, overlapped",
    "extrapolated",
)


# --- running ------------------------------------------------------------------------------------


def jobs(order: Order, results: Results) -> list[Job]:
    """One for each cell."""
    return [Job(cell.key, _measured, cell) for cell in cells(order.size)]


def cells(size: Size) -> list[Cell]:
    """All cells, the small models first."""
    users, dropouts, sizes = GRIDS[size]
    return [
        Cell(protocol, n, dropout, d)
        for d, n, dropout, protocol in product(sizes, users, dropouts, PROTOCOLS)
    ]


def measure(cell: Cell) -> Row:
    """One row."""
    pairwise = cell.protocol in ("secagg", "secagg+")
    return measure_pairwise(cell) if pairwise else measure_coded(cell)


def _measured(cell: Cell) -> dict[str, Any]:
    return measure(cell).as_dict()


# --- reporting ----------------------------------------------------------------------------------


def growth(rows: Sequence[Row], protocol: str, read: Callable[[Row], float]) -> float:
    """The exponent of N: the slope of log cost over log N at the largest model, mean over dropouts."""
    largest = max(row.cell.model_size for row in rows)
    slopes = []
    for dropout in sorted({row.cell.dropout for row in rows}):
        line = [
            (math.log(row.cell.users), math.log(read(row)))
            for row in rows
            if (row.cell.protocol, row.cell.dropout, row.cell.model_size)
            == (protocol, dropout, largest)
        ]
        x, y = zip(*line, strict=True)
        slopes.append(float(np.polyfit(x, y, 1)[0]))
    return sum(slopes) / len(slopes)


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
                "N^, measured (user)": growth(rows, protocol, lambda row: row.user_seconds),
                "server CPU, theory": THEORY[protocol]["server CPU"],
                "N^, theory (server)": server,
                "N^, measured (server)": growth(
                    rows, protocol, lambda row: row.phases["recovery"].server_seconds
                ),
                "user bytes, theory": THEORY[protocol]["user bytes"],
            }
        )
    return table


def gains_table(rows: Sequence[Row], link: int = 320) -> list[dict[str, Any]]:
    """How much faster LightSecAgg is, at the largest N, beside the published figures."""
    by_key = {row.cell.key: row for row in rows}
    most = max(row.cell.users for row in rows)
    table = []
    for row in rows:
        if row.cell.users != most or row.cell.protocol not in _PUBLISHED:
            continue
        light = by_key.get(Cell("lightsecagg", most, row.cell.dropout, row.cell.model_size).key)
        if light is None:
            continue
        gain = {
            overlapped: row.duration(link, overlapped=overlapped)
            / light.duration(link, overlapped=overlapped)
            for overlapped in (False, True)
        }
        table.append(
            {
                "LightSecAgg over": row.cell.protocol,
                "N": most,
                "dropout": row.cell.dropout,
                "d": row.cell.model_size,
                "gain": gain[False],
                "gain, overlapped": gain[True],
                "gain, server CPU in recovery": row.phases["recovery"].server_seconds
                / light.phases["recovery"].server_seconds,
                "published at N = 200": _PUBLISHED[row.cell.protocol],
            }
        )
    return table


def report(results: Results, size: Size) -> Publication:
    """Tables and plots of all rows."""
    rows = [Row.from_dict(row) for row in results.values()]
    extended = sum(bool(row.extrapolated) for row in rows)
    largest = max(row.cell.model_size for row in rows)
    lines = [row.flat() for row in rows]
    return Publication(
        "protocols",
        "What secure aggregation costs",
        f"{len(rows)} cells, one aggregation each; {extended} of them extended from measured parts.",
        lines,
        summary=select([line for line in lines if line["d"] == largest], _SUMMARY),
        tables={"Growth with N": growth_table(rows), "Gains at 320 Mb/s": gains_table(rows)},
        notes=notes(rows),
        figures=figures([row for row in rows if row.cell.model_size == largest]),
    )


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
        "Every cell is one measurement. Where two of them are extended along a line, their noise grows with"
        " it: the server's part in the recovery of coded masks differs by several times between neighbours.",
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
            f"{what}, d = {size}. Hollow: extended from measured parts.",
        )
        for name, (label, what, read) in _DRAWN.items()
    }


_DRAWN: Mapping[str, tuple[str, str, Callable[[Row], float]]] = {
    "user-cpu": ("user CPU, s", "CPU of one user", lambda row: row.user_seconds),
    "server-cpu": (
        "server CPU, s",
        "CPU of the server in the recovery phase",
        lambda row: row.phases["recovery"].server_seconds,
    ),
    "time-320": (
        "seconds",
        "Time of an aggregation at 320 Mb/s, the offline phase overlapped",
        lambda row: row.duration(320, overlapped=True),
    ),
}
"""Label, caption and value of every plot."""

COSTS = Experiment("protocols", jobs, report)
