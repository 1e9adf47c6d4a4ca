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
PRIVACY = """## What protection costs

*Plain* is FedBuff in clear by the same programs (`operator start --protection none`): requests signed and
checked, the same database, admission, weights, step, chain of models and parts of versions. Protected is the
default: certified, agreed, masks from keys. Processor time of the server per update, {how}:

{cost}

Requests that were put off came again and were paid for twice: where one side has many more of them the ratio
says less. One run differs from another, most of all with large models on a busy machine.

A protected update travels in words of three bytes, one in clear in float32. What protection adds does not grow
with the model but with requests, each of which is decrypted, parsed, checked for its signature and answered.
Requests per update in the case with the smaller model and the fewest holders:

{requests}

From the last byte of a buffer's last upload to the new version, d = 10⁶, K = 5, N = 12:

{wait}
"""
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
    beside = [each for each in DATABASES if f"privacy, {each}" in kept]
    parts += [_privacy({each: kept[f"privacy, {each}"]["rows"] for each in beside})]
    parts += [_cost(each, kept[f"cost, {each}"]["rows"], old) for each in DATABASES]
    parts += [_crowd(kept["crowd, SQLite"]["rows"], old)]
    parts += [_latency(kept["latency, SQLite"]["rows"], old)]
    machines = {in_words(part["machine"]) for part in kept.values()}
    return (
        f"{header}# What the service costs\n\n" + "\n".join(parts) + "\n"
        f"Measured on: {'; '.join(sorted(machines))}. `python -m benchmarks.service {old}` measures it on"
        " yours; with `--short` in five minutes, with `--postgres` on PostgreSQL.\n"
    )


def _privacy(found: Mapping[str, Any]) -> str:
    """Protected beside plain FedBuff, cell by cell."""
    if not found:
        return ""
    cells = [(each, cell) for each, rows in found.items() for cell in rows["cells"]]
    loads = [(each, cell) for each, cell in cells if cell["case"]["what"] == "load"]
    waits = [(each, cell) for each, cell in cells if cell["case"]["what"] == "latency"]
    times = max(rows["repeats"] for rows in found.values())
    how = f"the middle one of {times} runs in turn" if times > 1 else "one run each, in turn"
    busy = [row["busy_cores"] for _, cell in loads for row in cell["rows"].values()]
    how += f", while {sum(busy) / len(busy):.1f} cores of the machine were busy"
    return PRIVACY.format(
        how=how,
        cost="\n\n".join(
            markdown([_cell(each, cell) for each, cell in loads if each == database])
            for database in found
        ),
        requests=markdown(_requests(loads)),
        wait=markdown([_wait(each, cell) for each, cell in waits]),
    )


def _cell(database: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    apart = database != DATABASES[0]
    case, here, plain = cell["case"], cell["rows"]["here"], cell["rows"]["plain"]
    shown = {
        "database": database,
        "d": f"{case['d']:,}",
        "N": case["holders"],
        "K": case["buffer"],
        "contributors": f"{case['contributors']:,}",
        "protected, ms": here["server_ms_per_update"],
        "plain, ms": plain["server_ms_per_update"],
        "times": f"{here['server_ms_per_update'] / plain['server_ms_per_update']:.2f}",
    }
    for name, figures in cell["rows"].items():
        word = "plain" if name == "plain" else "protected"
        shown[f"{word}, MB up and down"] = (
            f"{figures['mb_up_per_update']:.3g} + {figures['mb_down_per_update']:.2g}"
        )
        shown[f"{word}, put off"] = figures["put_off"]
        if apart:
            shown[f"{word}, database ms"] = figures[DATABASE]
    return shown


def _requests(loads: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """How many requests of each kind an update takes, where they cost most: the smaller model, few holders."""
    _, cell = min(loads, key=lambda each: (each[1]["case"]["d"], each[1]["case"]["holders"]))
    traffic = {name: rows["traffic_per_update"] for name, rows in cell["rows"].items()}
    counted = [k for k in traffic["here"] | traffic["plain"] if not k.endswith((" up", " down"))]
    lines = [
        {"request": kind}
        | {
            "protected" if name == "here" else name: f"{found.get(kind, 0):.2f}"
            for name, found in traffic.items()
        }
        for kind in counted
    ]
    total = {name: sum(found.get(kind, 0) for kind in counted) for name, found in traffic.items()}
    last = {"request": "all", "protected": f"{total['here']:.2f}", "plain": f"{total['plain']:.2f}"}
    return [*lines, last]


def _wait(database: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    here, plain = cell["rows"]["here"]["total"], cell["rows"]["plain"]["total"]
    return {"database": database, "protected, ms": round(here), "plain, ms": round(plain)}


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
