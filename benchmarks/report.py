"""The results for the terminal and for a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Result
from benchmarks.first_use import FirstUse


def show_bars(console: Console, lines: Sequence[Result]) -> None:
    """Each bar as a line: ratio · bar · reached · ok."""
    table = _table("Bars", "ratio", "bar", "reached", "ok")
    for line in lines:
        table.add_row(line.ratio, line.bar, f"{line.reached:.3g}", _mark(line.ok))
    console.print(table)


def show_first_use(console: Console, starts: Sequence[FirstUse]) -> None:
    """What a person waits for once: limit · seconds · ok."""
    table = _table("First use", "what", "limit s", "s", "ok")
    for start in starts:
        row = start.what, f"≤ {start.limit:g}", f"{start.seconds:.3g}", _mark(start.ok)
        table.add_row(*row)
    console.print(table)


def show_seconds(console: Console, seconds: Mapping[str, float], how: str) -> None:
    """All times, and how they were taken."""
    table = _table(f"Times: {how}", "what", "ms")
    for name, time in seconds.items():
        table.add_row(name, f"{1e3 * time:.4g}")
    console.print(table)


def show_scaling(console: Console, rows: Sequence[Mapping[str, float]]) -> None:
    """Users and model size against time and memory."""
    title = (
        "Scaling, all cores; memory of the process idle, of mask + noise + shares, and at its peak"
    )
    table = _table(title, "d", "N", "encode ms", "decode ms", "idle MB", "data MB", "peak MB")
    for row in rows:
        times = (f"{1e3 * row[name]:.3g}" for name in ("encode", "decode"))
        sizes = (f"{row[name] / 1e6:.0f}" for name in ("idle_bytes", "data_bytes", "peak_bytes"))
        table.add_row(f"{row['model_size']:,}", str(row["users"]), *times, *sizes)
    console.print(table)


def write(
    file: Path,
    about: Mapping[str, str | int],
    *,
    bars: Sequence[Result],
    seconds: Mapping[str, float],
    first_use: Sequence[FirstUse] = (),
    scaling: Sequence[Mapping[str, float]] = (),
) -> None:
    """All of it as JSON."""
    content = {
        "about": about,
        "bars": [line._asdict() for line in bars],
        "first_use": [start._asdict() for start in first_use],
        "seconds": seconds,
        "scaling": scaling,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _mark(ok: bool) -> str:
    return "[green]ok" if ok else "[red]no"


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
