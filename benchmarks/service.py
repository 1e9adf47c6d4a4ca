"""`python -m benchmarks.service [COMMIT]`: what the service costs, beside another commit and a bare stack.

Processor milliseconds of the server per update at N = 10 and N = 50, d = 10⁵, while everybody deals, uploads
and opens as fast as it goes; the same of another commit, with every run a process of its own; the same bytes
moved, hashed, stored and handed out without the protocol. Without `--short` also 1,000 contributors for some
minutes with the server's memory, what a member's `verify` downloads, and the time from the last byte of a
buffer's last upload to the new version (N = 12, d = 10⁶).

`--only privacy`: protected beside *plain*, which is FedBuff in clear by the same service (`operator start
--protection none`), in turn in one run: d = 10⁵ and 10⁶, N = 10 and 50, latency, 1,000 contributors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks import service_baseline
from benchmarks.beside import ROOT, checked_out
from reproduction import machine, report

RESULTS = Path("benchmarks/results/service.json")
Figures: TypeAlias = dict[str, Any]
SIZES = (10, 50)
SHORT = {"what": "load", "contributors": 100, "buffer": 25, "d": 10**5, "warm": 100, "updates": 500}
CROWD = {"holders": 50, "contributors": 1000, "buffer": 250, "warm": 750, "verify": True}
LONG = SHORT | CROWD | {"gives_way": True}
"""As if the crowd were elsewhere: whenever the server can run, it does."""
PLAIN = {"plain": True}
LATENCY = {"what": "latency", "holders": 12, "buffer": 5, "d": 10**6}
SMALL = SHORT | {"warm": 75, "updates": 250}
LARGE = SHORT | {"d": 10**6, "warm": 25, "updates": 100}
BESIDE_PLAIN = [
    *(SMALL | {"holders": holders} for holders in SIZES),
    *(LARGE | {"holders": holders} for holders in SIZES),
    LATENCY,
    SHORT | CROWD | {"warm": 500, "updates": 500, "verify": False},
]
"""Each is measured protected and plain, in turn."""
SHOWN = {
    "server_ms_per_update": "server ms",
    "updates_per_second": "rate/s",
    "server_cores": "cores",
    "load_ms_per_update": "load ms",
    "load_cores": "cores",
    "busy_cores": "all cores",
    "database_ms_per_update": "db ms",
    "mb_up_per_update": "MB up",
    "mb_down_per_update": "MB down",
    "put_off": "put off",
}


def measured(tree: Path, case: Figures) -> Figures:
    """One run of one commit."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.service_load", json.dumps(case)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    if figures["errors"]:
        raise SystemExit(f"the load met errors: {figures['errors']}")
    return figures


def beside(trees: dict[str, Path], case: Figures, repeats: int) -> dict[str, Figures]:
    """All in turn, and of each the middle run: one differs from the next by as much as a tenth.

    After each round of a load the bare stack has the traffic that was counted here.
    """
    runs, is_load = defaultdict[str, list[Figures]](list), case["what"] == "load"
    for _ in range(repeats):
        for name, tree in trees.items():
            runs[name].append(measured(tree, case))
        if is_load:
            traffic = runs["here"][-1]["traffic_per_update"]
            runs["bare"].append(asyncio.run(service_baseline.measure(traffic, 10.0)))
    figure = "server_ms_per_update" if is_load else "total"
    return {name: _middle(found, figure) for name, found in runs.items()}


def _middle(runs: list[Figures], figure: str) -> Figures:
    return sorted(runs, key=lambda run: float(run[figure]))[len(runs) // 2]


def table(title: str, rows: dict[str, Figures]) -> Table:
    """The figures that people look at."""
    shown = Table("", *SHOWN.values(), title=title)
    for name, figures in rows.items():
        cells = (figures.get(key) for key in SHOWN)
        shown.add_row(name, *("" if cell is None else f"{cell:.4g}" for cell in cells))
    return shown


def ratios(rows: dict[str, Figures], key: str) -> str:
    """This commit's figure as a share of every other's."""
    here = rows["here"][key]
    return ", ".join(
        f"{here / figures[key]:.2f} of {name}'s" for name, figures in rows.items() if name != "here"
    )


def compare(trees: dict[str, Path], given: argparse.Namespace, console: Console) -> Figures:
    """N = 10, then N = 50."""
    found: Figures = {}
    for holders in SIZES:
        case = SHORT | {"holders": holders, "postgres": given.postgres}
        rows = beside(trees, case, 1 if given.short else 5)
        console.print(table(f"N = {holders}, d = 10⁵, K = 25, 100 contributors", rows))
        console.print("server ms/update:", ratios(rows, "server_ms_per_update"))
        found[str(holders)] = rows
    return found


def carry(trees: dict[str, Path], given: argparse.Namespace, console: Console) -> Figures:
    """1,000 contributors for some minutes, two of them for the other commit; then somebody verifies."""
    case, found = LONG | {"postgres": given.postgres}, {}
    for name, tree in reversed(trees.items()):  # the short one first: little is lost if it fails
        minutes = given.minutes if name == "here" else min(given.minutes, 2.0)
        found[name] = measured(tree, case | {"seconds": 60 * minutes})
    rows = {name: found[name] for name in trees}
    console.print(table("N = 50, d = 10⁵, K = 250, 1,000 contributors", rows))
    console.print("updates/s:", ratios(rows, "updates_per_second"))
    for name, figures in rows.items():
        parts = ("parts_mb", "parts_server_ms", "parts_seconds", "memory_after_parts_mb")
        console.print(name, {"memory_mb": figures["memory_mb"]}, {p: figures[p] for p in parts})
    return rows


def hurry(trees: dict[str, Path], given: argparse.Namespace, console: Console) -> Figures:
    """From the last byte of the last upload to the new version."""
    rows = beside(trees, LATENCY | {"postgres": given.postgres}, 3)
    for name, figures in rows.items():
        console.print(name, {k: f"{v:.0f} ms" for k, v in figures.items() if k != "errors"})
    console.print("last byte to new version:", ratios(rows, "total"))
    return rows


def privacy(trees: dict[str, Path], given: argparse.Namespace, console: Console) -> Figures:
    """What protection costs the server beside plain FedBuff on the same stack."""
    found: Figures = {"repeats": given.repeats, "cells": []}
    for case in BESIDE_PLAIN:
        figure = "server_ms_per_update" if case["what"] == "load" else "total"
        rows = in_turn(case | {"postgres": given.postgres}, given.repeats, figure)
        console.print(table(f"{case}", rows))
        console.print(f"{figure}:", ratios(rows, figure))
        found["cells"].append({"case": case, "rows": rows})
        if not given.short:  # what was measured is not lost if the next one fails
            keep(_name("privacy", given), found)
    return found


def in_turn(case: Figures, repeats: int, figure: str) -> dict[str, Figures]:
    """Protected and plain, and of each the middle run."""
    runs = defaultdict[str, list[Figures]](list)
    for _ in range(repeats):
        runs["here"].append(measured(ROOT, case))
        runs["plain"].append(measured(ROOT, case | PLAIN))
    return {name: _middle(found, figure) for name, found in runs.items()}


def _name(part: str, given: argparse.Namespace) -> str:
    return f"{part}, {'PostgreSQL' if given.postgres else 'SQLite'}"


PARTS = {"cost": compare, "latency": hurry, "crowd": carry, "privacy": privacy}


def keep(name: str, rows: Figures) -> None:
    """Write a finished part down beside the others, with the machine that it ran on."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    report.write_json(RESULTS, kept | {name: {"machine": machine.describe(), "rows": rows}})


def in_a_line(found: Figures) -> str:
    """What was measured here, for programs that read the last line."""
    here = {n: found[str(n)]["here"] for n in SIZES}
    cost = ", ".join(f"N={n} {here[n]['server_ms_per_update']:.1f}" for n in SIZES)
    rate = ", ".join(f"N={n} {here[n]['updates_per_second']:.1f}" for n in SIZES)
    return f"server ms per update: {cost}; updates a second: {rate}"


def main() -> int:
    """Measure, print; write each part unless it was the short form."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("commit", nargs="?", help="one to compare with")
    parser.add_argument(
        "--short", action="store_true", help="once, and the cost only unless --only says else"
    )
    parser.add_argument("--only", choices=PARTS, help="one part; the others stay as they were")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long memory is watched")
    parser.add_argument("--repeats", type=int, default=3, help="of protected beside plain")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL, not on SQLite")
    given, console = parser.parse_args(), Console()
    short = ["cost"] if given.short else list(PARTS)
    last, wanted = "", [given.only] if given.only else short
    with checked_out(given.commit) if given.commit else nullcontext() as tree:
        trees = {"here": ROOT} | ({} if tree is None else {given.commit: tree})
        for part in wanted:
            rows = PARTS[part](trees, given, console)
            if not given.short:
                keep(_name(part, given), rows)
            last = in_a_line(rows) if part == "cost" else last
    print(last)
    return 0


if __name__ == "__main__":
    sys.exit(main())
