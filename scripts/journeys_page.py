"""The page about journeys, from what `make journeys` kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reproduction.machine import in_words

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "journeys.json"
INTRO = """What people do, from the first command to the last, through the programs of the built wheel:
real processes over TLS, started by an unprivileged user without a home. Each command on the pages that people
follow is typed as it is printed, with smaller sizes and our own addresses; a test fails if a page has a command
that no journey types. Short forms are part of `make test`.

`make journeys` makes them all (`ARGS="-k ten_hospitals"`: some of them), and writes this page. It uses
PostgreSQL and Chromium if the machine has them, and says at the beginning if it has not. Nothing else is needed
but python3, make, pip and git.
"""
NOTES = """## How to read this

- *Refused* counts answers of the server from 400 on, by status. Agents are told 401 until the operator has
  admitted them. After that, no request of ten hospitals is in vain.
- *Seconds to the first version* count from when the last hospital has joined.
- Installing is not part of a journey's seconds.
"""
Entry = dict[str, Any]


def page(header: str) -> str:
    """When each journey last arrived, how long it took, and what was measured on the way."""
    kept = json.loads(RESULTS.read_text("utf-8"))
    journeys: dict[str, Entry] = kept["journeys"]
    rows = [_row(name, dict(entry)) for name, entry in journeys.items()]
    table = "| journey | arrived (UTC) | seconds | measured |\n|---|---|---|---|\n" + "\n".join(
        rows
    )
    last = max(entry["arrived"] for entry in journeys.values())
    minutes = sum(entry["seconds"] for entry in journeys.values()) / 60
    summary = f"Last made on {last} UTC: {len(journeys)} journeys, {minutes:.0f} minutes together."
    return (
        f"{header}# Journeys\n\n{INTRO}\n{summary} {_databases(journeys)}\n\n{table}\n\n{NOTES}\n"
        f"Measured on: {in_words(kept['machine'])}, which others used at the same time.\n"
    )


def _databases(journeys: dict[str, Entry]) -> str:
    if any("PostgreSQL" in name for name in journeys):
        return "They ran on SQLite and on PostgreSQL."
    return "PostgreSQL was not found: they ran on SQLite only."


def _row(name: str, entry: Entry) -> str:
    arrived, seconds = entry.pop("arrived"), entry.pop("seconds")
    measured = "; ".join(f"{what} {_shown(value)}" for what, value in entry.items())
    return f"| {_title(name)} | {arrived} | {seconds:.0f} | {measured} |"


def _title(name: str) -> str:
    """`test_ten_hospitals[SQLite]` → ten hospitals, SQLite."""
    plain, _, case = name.removeprefix("test_").partition("[")
    words = plain.replace("_", " ")
    return f"{words}, {case.removesuffix(']')}" if case else words


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
