"""The page about what the service costs, from what `python -m benchmarks.service` kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.machine import in_words
from reproduction.report import markdown

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "service.json"
DATABASES = ("SQLite", "PostgreSQL")
Rows = Mapping[str, Mapping[str, Any]]

INTRO = """A real server over TLS with a real database, and a load that deals, uploads, receives and answers as
fast as it goes. Beside it in the same run: the commit before this work (`{old}`), and *bare*, a server that
only moves, hashes, stores and hands out the same bytes, with the same settings of the database and in the
plain way: [decision 43](../decisions/0043-a-third-of-the-processor-time.md) says what it does without. Of costs
the middle one of five runs in turn is shown, of times that of three; one run differs from the next by a tenth.
Processor time is that of the server's process. The load generator shares the two cores with the server: *load*
is its own processor time.
"""
DATABASE = "database_ms_per_update"
COLUMNS = {
    "server_ms_per_update": "server, ms per update",
    DATABASE: "database, ms",
    "updates_per_second": "updates a second",
    "server_cores": "server, cores",
    "load_cores": "load, cores",
    "busy_cores": "busy cores of 2",
    "put_off": "requests put off",
}
CROWD = """A member who verifies a version fetches {parts:.0f} MB: the K = 250 uploads that it was made from. It
costs the server {cost:.0f} ms of processor time and takes {seconds:.2f} s. They are read and framed once for
all who ask for the same version, and sent in pieces. The server's memory, seen every ten seconds: from
{least:.0f} to {most:.0f} MiB; in the second half of the run {growth:+.0f} MiB from the first, on average;
{after:.0f} MiB after five such downloads.
"""


def page(header: str) -> str:
    """Every part that was measured."""
    kept = json.loads(RESULTS.read_text("utf-8"))
    old = next(name for name in kept["cost, SQLite"]["rows"]["10"] if name not in ("here", "bare"))
    parts = [INTRO.format(old=old)]
    parts += [_cost(each, kept[f"cost, {each}"]["rows"], old) for each in DATABASES]
    parts += [_crowd(kept["crowd, SQLite"]["rows"], old)]
    parts += [_latency(kept["latency, SQLite"]["rows"], old)]
    machines = {in_words(part["machine"]) for part in kept.values()}
    return (
        f"{header}# What the service costs\n\n" + "\n".join(parts) + "\n"
        f"Measured on: {'; '.join(sorted(machines))}. `python -m benchmarks.service {old}` measures it on"
        " yours; with `--short` in five minutes, with `--postgres` on PostgreSQL.\n"
    )


def _cost(database: str, by_size: Mapping[str, Rows], old: str) -> str:
    sections = [
        f"N = {holders} holders, d = 10⁵, K = 25, 100 contributors:\n\n{_table(rows)}\n\n"
        f"{_beside(rows, 'server_ms_per_update', old)}.\n"
        for holders, rows in by_size.items()
    ]
    return f"## Cost of an update on {database}\n\n" + "\n".join(sections)


def _crowd(rows: Rows, old: str) -> str:
    here, half = rows["here"], len(rows["here"]["memory_mb"]) // 2
    memory = here["memory_mb"]
    told = CROWD.format(
        parts=here["parts_mb"],
        cost=here["parts_server_ms"],
        seconds=here["parts_seconds"],
        least=min(memory),
        most=max(memory),
        growth=sum(memory[half:]) / (len(memory) - half) - sum(memory[:half]) / half,
        after=here["memory_after_parts_mb"],
    )
    times = here["updates_per_second"] / rows[old]["updates_per_second"]
    minutes = here["updates"] / here["updates_per_second"] / 60
    return (
        f"## A thousand contributors\n\nN = 50, d = 10⁵, K = 250, on SQLite, for"
        f" {minutes:.0f} minutes. The load has the lowest priority, as if the crowd were"
        " elsewhere: whenever the server can run, it does."
        f"\n\n{_table(rows)}\n\n{times:.2f} times the updates a second of"
        f" {old}; the two cores are {100 * here['busy_cores'] / 2:.0f} % busy.\n\n{told}"
    )


def _latency(rows: Rows, old: str) -> str:
    lines = [
        {"ms": name} | {stage: round(each[stage]) for stage in each if stage != "errors"}
        for name, each in rows.items()
    ]
    share = rows["here"]["total"] / rows[old]["total"]
    return (
        "## From the last upload to the new version\n\nFrom the last byte of a buffer's last upload to the"
        " first byte of the answer that brings the new version, and the parts of it. N = 12, d = 10⁶, K = 5,"
        f" on SQLite:\n\n{markdown(lines)}\n\n{share:.2f} of {old}'s.\n"
    )


def _table(rows: Rows) -> str:
    """SQLite works in the server's process, so it has no column of its own."""
    apart = any(each.get(DATABASE) for each in rows.values())
    columns = {key: shown for key, shown in COLUMNS.items() if apart or key != DATABASE}
    lines = [
        {"server": name} | {shown: each.get(key, "") for key, shown in columns.items()}
        for name, each in rows.items()
    ]
    return markdown(lines)


def _beside(rows: Rows, key: str, old: str) -> str:
    here = rows["here"][key]
    return f"{here / rows[old][key]:.2f} of {old}'s, {here / rows['bare'][key]:.2f} times the bare stack's"
