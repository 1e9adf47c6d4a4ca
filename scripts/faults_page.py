"""The page about disk and database failures and about fail-over, from what the long tests kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from reproduction.machine import in_words

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "service-faults.json"
DATABASES, FAIL_OVERS = ("SQLite", "PostgreSQL"), "fail-over"
Cell = dict[str, Any]


INTRO = """A server, five users and their stores, as real processes. A fault begins while the server is inside
a transaction of the given kind, lasts for 2.5 seconds, and passes. In the cells: the seconds after that until
`/readyz` said 200 again. ✓: the process went on by itself, `/healthz` said 200 all the time, `/readyz` said
503 where nothing could be written, and the next three versions came. At the end of each table all stores are
looked through: no admitted update was lost or counted twice, and no mask was answered for twice.
"""
NOTES = """## How to read this

- A disk is made full for real (a small tmpfs), and so are the database's faults. That SQLite's disk is
  read-only, slow or failing, and that the clock jumps, is made to be seen by the server's own process.
- *idle*: all users are stopped. *opening*: the transaction in which a sum is opened and the model steps.
- A slow disk and a clock that jumps are no reason to be unready, nor is a connection that can be made again at
  once. PostgreSQL does not feel a full disk while it has files put aside.
- A fault that has passed is noticed at the next attempt: they are up to 5 seconds apart.
"""
FAIL_OVER = """## Fail-over

`kill -9` of the server that serves, {count} times, under load. The other one is in a process namespace of its
own, as on another machine, so the lease of 8 seconds has to run out first. It served after {least:.1f} to
{most:.1f} s (median {middle:.1f}). Versions went on without a gap, and no admitted update was lost. Then one
was stopped for a minute and woken: it found that the database has another owner, and ended with one line. All
stores were in order after that.
"""


def page(header: str) -> str:
    """The matrix of each database that was tried, the fail-overs, and how to read them."""
    kept = json.loads(RESULTS.read_text("utf-8"))
    matrices = [_matrix(name, kept[name]) for name in DATABASES if name in kept]
    kills = [_fail_over(kept[FAIL_OVERS])] if FAIL_OVERS in kept else []
    parts = [INTRO, *matrices, *kills, NOTES]
    return (
        f"{header}# Disk and database failures\n\n" + "\n".join(parts) + "\n"
        f"Measured on: {in_words(kept['machine'])}, which others used at the same time. `pytest -m soak"
        " tests/service/test_ground.py tests/service/test_failover.py` measures it on yours.\n"
    )


def _matrix(name: str, cells: Sequence[Cell]) -> str:
    moments = list(dict.fromkeys(cell["moment"] for cell in cells))
    faults = list(dict.fromkeys(cell["fault"] for cell in cells))
    found = {(cell["fault"], cell["moment"]): cell for cell in cells}
    rows = [
        f"| {fault} | " + " | ".join(_shown(found[fault, each]) for each in moments) + " |"
        for fault in faults
    ]
    head = f"| fault | {' | '.join(moments)} |\n|---|{'---|' * len(moments)}"
    slowest = sorted(cell["slowest_answer"] for cell in cells)
    return (
        f"## {name}\n\n{head}\n" + "\n".join(rows) + "\n\n"
        f"{sum(map(_is_good, cells))} of {len(cells)} ✓. The slowest answer of `/healthz` or `/readyz` during a"
        f" fault took {median(slowest):.2f} s in the median cell, and {slowest[-1]:.2f} s in the worst.\n"
    )


def _shown(cell: Cell) -> str:
    return f"{'✓' if _is_good(cell) else '✗'} {cell['seconds_to_ready']:.1f}"


def _is_good(cell: Cell) -> bool:
    told = cell["unready"] or not cell["felt"]
    return bool(cell["healthy"] and told and cell["same_process"])


def _fail_over(kills: Sequence[Cell]) -> str:
    times = sorted(kill["seconds_to_serving"] for kill in kills)
    return FAIL_OVER.format(count=len(kills), least=times[0], most=times[-1], middle=median(times))
