"""The tables of `protocols`: growth, gains, recovery, and what is measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from reproduction.costs import (
    NAMES,
    PROTOCOLS,
    Cell,
    Protocol,
    Row,
    Spread,
    bytes_received,
    bytes_sent,
    recovery_seconds,
    server_seconds,
    user_seconds,
)
from reproduction.report import shown

PAIRWISE: tuple[Protocol, ...] = ("secagg", "secagg+")
CODED: tuple[Protocol, ...] = ("lightsecagg", "basecagg")
MODELS = {
    1_206_590: "CNN (FedAvg paper)",
    61_706: "LeNet",
    7_850: "logistic regression",
    5_288_548: "EfficientNet-B0",
}
"""d, the most wanted first: the last takes as long as all others together."""


class Theory(NamedTuple):
    """Orders of growth for a fixed share of dropouts, and the exponents of N in them, logarithms left out."""

    user: str
    server: str
    sent: str
    exponents: tuple[int, int, int]


THEORY: Mapping[Protocol, Theory] = {
    "secagg": Theory("d·N + s·N²", "d·N²", "d + s·N", (1, 2, 0)),
    "secagg+": Theory("d·log N + s·log² N", "d·N·log N", "d + s·log N", (0, 1, 0)),
    "lightsecagg": Theory("d·log N", "d·N (relay, sum), d·log N (decode)", "d", (0, 1, 0)),
    "basecagg": Theory("d·log N", "d·N (relay, sum), d·N·log N/K (decode)", "d", (0, 1, 0)),
}
"""From the LightSecAgg paper, where s is the length of a seed; relay, sum and K are ours."""
THIN: Mapping[Protocol, Theory] = {
    "lightsecagg": Theory("d·N·log N", "d·N² (relay), d·N (sum, decode)", "d·N", (1, 2, 1)),
    "basecagg": Theory("d·N·log N", "d·N² (relay), d·N²/K (decode)", "d·N", (1, 2, 1)),
}
"""Where U − T = 1: every share is as long as the model."""
_PUBLISHED: Mapping[tuple[Protocol, Protocol], str] = {
    ("lightsecagg", "secagg"): "8–13×",
    ("lightsecagg", "secagg+"): "3–4×",
}
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
_MEGABYTES = {"user sends, MB": bytes_sent, "user receives, MB": bytes_received}
"""The same in every repeat."""


def _user(row: Row) -> float:
    return row.spread(user_seconds).middle


def _server(row: Row) -> float:
    return row.spread(server_seconds).middle


def _recovery(row: Row) -> float:
    return row.spread(recovery_seconds).middle


def _sent(row: Row) -> float:
    return row.spread(bytes_sent).middle


def growth(rows: Sequence[Row], read: Callable[[Row], float]) -> float | str:
    """The exponent of N: the slope of log cost over log N; rows that differ in N alone."""
    if len(rows) < 2:
        return "–"
    x = [math.log(row.cell.users) for row in rows]
    slope = np.polyfit(x, [math.log(read(row)) for row in rows], 1)[0]
    return round(float(slope), 2)


def common(rows: Sequence[Row], dropout: float) -> list[int]:
    """The N at which all protocols are measured with so many dropouts; rows of one model."""
    own = [row.cell for row in rows if row.cell.dropout == dropout]
    counts = Counter(cell.users for cell in own)
    return sorted(users for users, count in counts.items() if count == len(PROTOCOLS))


def theory_table() -> list[dict[str, Any]]:
    """What papers and a count of operations say."""
    usual = [_theory(NAMES[protocol], theory) for protocol, theory in THEORY.items()]
    thin = [_theory(f"{NAMES[protocol]}, U − T = 1", theory) for protocol, theory in THIN.items()]
    return [*usual, *thin]


def _theory(name: str, theory: Theory) -> dict[str, Any]:
    return {
        "protocol": name,
        "CPU of a user": theory.user,
        "CPU of the server": theory.server,
        "bytes that a user sends": theory.sent,
    }


def growth_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Measured exponents beside those of theory, each over the N that all protocols share."""
    table = []
    for protocol, dropout in product(PROTOCOLS, dropouts_of(rows)):
        shared = common(rows, dropout)
        line = [row for row in rows if row.cell.users in shared]
        line = [row for row in line if row.cell.protocol == protocol]
        own = [row for row in line if row.cell.dropout == dropout]
        if own[1:]:
            table.append(_growth(own))
    return table


def _growth(own: Sequence[Row]) -> dict[str, Any]:
    cell = own[-1].cell
    thin = cell.survivors - cell.colluders == 1 and cell.protocol in THIN
    user, server, sent = (THIN if thin else THEORY)[cell.protocol].exponents
    return {
        "protocol": NAMES[cell.protocol],
        "dropout": percent(cell.dropout),
        "N": f"{own[0].cell.users}–{cell.users}",
        "degree": f"{own[0].degree}–{own[-1].degree}",
        "user CPU: theory": user,
        "user CPU: measured": growth(own, _user),
        "server CPU: theory": server,
        "server CPU: measured": growth(own, _server),
        "recovery alone: measured": growth(own, _recovery),
        "bytes sent: theory": sent,
        "bytes sent: measured": growth(own, _sent),
    }


def gains_table(rows: Sequence[Row], link: int = 320) -> list[dict[str, Any]]:
    """How much faster coded masks are, at the largest N that all protocols share; rows of one model."""
    by_cell = {row.cell: row for row in rows}
    table = []
    for dropout in dropouts_of(rows):
        for users in common(rows, dropout)[-1:]:
            at = Cell("secagg", users, dropout, rows[0].cell.model_size)
            table += [
                _gain(
                    by_cell[replace(at, protocol=ours)], by_cell[replace(at, protocol=other)], link
                )
                for ours, other in product(CODED, PAIRWISE)
            ]
    return table


def _gain(ours: Row, other: Row, link: int) -> dict[str, Any]:
    gain = {
        overlapped: other.duration(link, overlapped=overlapped).middle
        / ours.duration(link, overlapped=overlapped).middle
        for overlapped in (False, True)
    }
    pair = (ours.cell.protocol, other.cell.protocol)
    return {
        "of": f"{NAMES[pair[0]]} (T = {ours.colluders})",
        "over": f"{NAMES[pair[1]]} (T = {other.colluders})",
        "N": ours.cell.users,
        "dropout": percent(ours.cell.dropout),
        "time": gain[False],
        "time, overlapped": gain[True],
        "server CPU": _server(other) / _server(ours),
        "server CPU in the recovery": _recovery(other) / _recovery(ours),
        "published for N = 200": _PUBLISHED.get(pair, "–") if ours.cell.users == 200 else "–",
    }


def recovery_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """CPU of the server in the recovery, a column for every share of dropouts; rows of one model."""
    found = {(row.cell.protocol, row.cell.users, row.cell.dropout): row for row in rows}
    places = [(p, n) for p in PROTOCOLS for n in sorted({row.cell.users for row in rows})]
    return [
        {
            "protocol": NAMES[protocol],
            "N": users,
            **{
                f"{percent(dropout)} drop out": spread_in_words(row.spread(recovery_seconds))
                if (row := found.get((protocol, users, dropout)))
                else "–"
                for dropout in dropouts_of(rows)
            },
        }
        for protocol, users in places
    ]


def missing_table(wanted: Sequence[Cell], found: Container[str]) -> list[dict[str, Any]]:
    """How many cells of each protocol are there, a line for every model, and what is not."""
    table = []
    for size in dict.fromkeys(cell.model_size for cell in wanted):
        own = [cell for cell in wanted if cell.model_size == size]
        line: dict[str, Any] = {"model": model_name(size)}
        for protocol in PROTOCOLS:
            cells_of = [cell for cell in own if cell.protocol == protocol]
            there = sum(cell.key in found for cell in cells_of)
            line[NAMES[protocol]] = f"{there} of {len(cells_of)}"
        left = [cell for cell in own if cell.key not in found]
        table.append({**line, "missing": _left(left, own)})
    return table


def _left(left: Sequence[Cell], own: Sequence[Cell]) -> str:
    """Missing cells in few words: of all N together, of one N, or of some protocols."""
    if len(left) in (0, len(own)):
        return "all" if left else "none"
    words = []
    for users in sorted({cell.users for cell in left}):
        gone = [cell for cell in left if cell.users == users]
        if len(gone) == sum(cell.users == users for cell in own):
            words.append(f"N = {users}: all")
            continue
        by_dropout = [
            (percent(q), [NAMES[cell.protocol] for cell in gone if cell.dropout == q])
            for q in sorted({cell.dropout for cell in gone})
        ]
        words += [
            f"N = {users} at {q}: " + ("all" if len(names) == len(PROTOCOLS) else ", ".join(names))
            for q, names in by_dropout
        ]
    return "; ".join(words)


def summary_line(row: Row) -> dict[str, Any]:
    """What the page shows of a row."""
    line = row.flat()
    return {
        **{name: line[name] for name in _SETTING},
        "dropout": percent(row.cell.dropout),
        **{column: spread_in_words(row.spread(read)) for column, read in _WITH_SPREAD.items()},
        **{column: row.spread(read).middle / 1e6 for column, read in _MEGABYTES.items()},
        **{name: line[name] for name in _SECONDS},
    }


def dropouts_of(rows: Iterable[Row]) -> list[float]:
    """The shares that are there."""
    return sorted({row.cell.dropout for row in rows})


def percent(share: float) -> str:
    """In words."""
    return f"{100 * share:.0f} %"


def spread_in_words(spread: Spread) -> str:
    """The middle, and the ends in brackets."""
    middle, least, most = map(shown, spread)
    return f"{middle} ({least}–{most})"


def model_name(size: int) -> str:
    """With its d."""
    return f"{MODELS[size]}, d = {size:,}" if size in MODELS else f"d = {size:,}"
