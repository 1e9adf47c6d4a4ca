"""The report of a study: tables, curves and forest plots, what was asked, and what the server saw.

It opens offline and needs no plotting library: its pictures are a few lines of SVG. Beside it lie the same
numbers as JSON, and every table as CSV.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from basecagg.reports import page
from basecagg.statistics.analyses import Outcome
from basecagg.statistics.remote import RemoteStudy

_WIDTH, _HEIGHT, _EDGE = 640, 360, 48
_ROWS = 60
"""Of a table that the page shows; the files have all."""
_COLOURS = ("#0b6e99", "#c2571a", "#4d7c0f", "#7c3aed", "#be123c", "#0f766e")


def write_report(folder: Path, study: RemoteStudy, outcomes: Mapping[str, Outcome]) -> Path:
    """Write results.json, a CSV for each table, and report.html; give the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    told = _told(study)
    found = {"study": told, "results": outcomes}
    (folder / "results.json").write_text(
        json.dumps(_finite(found), indent=1, ensure_ascii=False, default=float) + "\n", "utf-8"
    )
    for name, outcome in outcomes.items():
        if rows := outcome.get("table"):
            _write_csv(folder / f"{_file_name(name)}.csv", rows)
    path = folder / "report.html"
    sections = [_section(name, outcome) for name, outcome in outcomes.items()]
    protocol = study.protocol
    lead = f"{protocol.question} Asked by {protocol.analyst} of {len(protocol.members)} centres."
    page.write_page(path, protocol.title, lead, [*sections, *_about(study, told)])
    return path


def _told(study: RemoteStudy) -> dict[str, Any]:
    protocol, audit = study.protocol, study.audit()
    return {
        "title": protocol.title,
        "hash": study.terms.contract.hex(),
        "epoch": study.agreement.id.hex(),
        "operator": study.agreement.operator_key.hex(),
        "analyst": protocol.analyst,
        "members": list(protocol.members),
        "smallest sum": audit.smallest or len(protocol.members),
        "noisy questions left": study.uses_left,
        "asked": [
            {"number": a.number, "what": a.name, "noise": a.private, "centres": len(a.members)}
            for a in study.asked
        ],
    }


def _about(study: RemoteStudy, told: Mapping[str, Any]) -> list[str]:
    protocol = study.protocol
    asked = [
        (a["number"], a["what"], "with noise" if a["noise"] else "exactly", a["centres"])
        for a in told["asked"]
    ]
    budget = "There is no budget: nothing was asked with noise."
    if protocol.budget is not None:
        budget = (
            f"ε = {protocol.budget.epsilon:g} at δ = {protocol.budget.delta:g} for {protocol.budget.max_uses}"
            f" noisy questions; {told['noisy questions left']} are left."
        )
    return [
        page.section(
            "What was asked",
            page.table(("number", "what", "how", "centres"), asked, numbers=False),
            page.paragraph(budget),
        ),
        page.section(
            "Who approved",
            page.paragraph(
                "A centre answers only after its own people approved the protocol with this hash, and every sum"
                " above has the signature of every centre:"
            ),
            f'<p style="overflow-wrap:anywhere">{told["hash"]}</p>',
            page.paragraph(", ".join(protocol.members)),
        ),
        page.section(
            "What the server saw",
            page.paragraph(
                f"The questions, who answered when, and {len(asked)} sums. The smallest is of"
                f" {told['smallest sum']} centres. No centre's own numbers were seen by the server or by the"
                " analyst. Each sum was opened a second time, from what the centres signed, before it was"
                " used here."
            ),
        ),
        page.section(
            "The protocol",
            page.folded(
                "its text", f'<div class="scroll"><pre>{escape(protocol.text)}</pre></div>'
            ),
        ),
    ]


# --- one analysis -------------------------------------------------------------------------------


def _section(name: str, outcome: Outcome) -> str:
    parts = list[str]()
    rows = outcome.get("table", [])
    if rows and "survival" in rows[0]:
        parts.append(page.figure(_curves(rows), "Kaplan–Meier, with 95 % intervals"))
    if rows and "hazard ratio" in rows[0]:
        parts.append(page.figure(_forest(rows), "Hazard ratios with 95 % intervals"))
    if rows:
        cells = [[_written(each) for each in row.values()] for row in rows]
        shown = page.table(list(rows[0]), cells[:_ROWS])
        long = len(rows) > _SHORT
        parts.append(page.folded(f"{len(rows)} rows", shown) if long else shown)
    tests = [
        (test, *(_written(each) for each in found.values()))
        for test, found in outcome.get("tests", {}).items()
    ]
    if tests:
        header = ("test", "statistic", "degrees of freedom", "p")
        parts.append(page.table(header, tests))
    others = {n: v for n, v in outcome.items() if n not in ("table", "tests")}
    if others:
        parts.append(page.table(("", "value"), [(n, _written(v)) for n, v in others.items()]))
    return page.section(name, *parts)


_SHORT = 20


def _curves(rows: Sequence[Outcome]) -> str:
    """Steps of S, one curve for each group."""
    group = next((name for name in rows[0] if name not in _OF_CURVE), None)
    last = float(max(row["until"] for row in rows))

    def x(time: float) -> float:
        return _EDGE + (_WIDTH - 2 * _EDGE) * time / last

    def y(survival: float) -> float:
        return _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * min(max(survival, 0.0), 1.0)

    drawn = list[str]()
    keyed = groupby(rows, key=lambda row: row.get(group) if group else None)
    for place, (level, curve) in enumerate(keyed):
        colour, points, band = (
            _COLOURS[place % len(_COLOURS)],
            list(curve),
            [list[str](), list[str]()],
        )
        path, before = f"M{x(0):.1f} {y(1):.1f}", (1.0, 0.0)
        for row in points:
            at, now = x(row["until"]), (row["survival"], row["error"])
            for side, sign in zip(band, (1, -1), strict=True):
                for survival, error in (before, now):
                    side.append(f"{at:.1f} {y(survival + sign * 1.96 * error):.1f}")
            path += f"H{at:.1f}V{y(now[0]):.1f}"
            before = now
        around = "L".join([*band[0], *reversed(band[1])])
        drawn.append(f'<path d="M{around}Z" fill="{colour}" opacity=".15"/>')
        drawn.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if group:
            label = f"{group} {_written(level)}"
            drawn.append(_text(_WIDTH - _EDGE, 16 + 18 * place, label, colour, "end"))
    ticks = [_text(x(last * p / 4), _HEIGHT - 18, f"{last * p / 4:g}") for p in range(5)]
    ticks += [_text(_EDGE - 8, y(p / 4) + 4, f"{p / 4:.0%}", anchor="end") for p in range(5)]
    frame = f'<path d="M{x(0):.1f} {y(1):.1f}V{y(0):.1f}H{x(last):.1f}" fill="none" stroke="currentColor"/>'
    return _svg(_HEIGHT, frame, *ticks, *drawn)


_OF_CURVE = ("until", "at risk", "events", "survival", "error")


def _forest(rows: Sequence[Outcome]) -> str:
    """A line for each ratio, on a logarithmic scale."""
    kept = [row for row in rows if row["low"] > 0 and math.isfinite(row["high"])]
    ends = [math.log(row[end]) for row in kept for end in ("low", "high")] or [0.0]
    low, high = min([*ends, -0.1]), max([*ends, 0.1])
    left = 200

    def x(ratio: float) -> float:
        return left + (_WIDTH - left - _EDGE) * (math.log(ratio) - low) / (high - low)

    tall = 28 * len(kept) + 50
    one = f'<path d="M{x(1):.1f} 8V{tall - 32}" stroke="currentColor" stroke-dasharray="3 3"/>'
    drawn = [one, _text(x(1), tall - 14, "1")]
    for place, row in enumerate(kept):
        y = 24 + 28 * place
        drawn.append(_text(left - 16, y + 4, row["term"], anchor="end"))
        drawn.append(
            f'<path d="M{x(row["low"]):.1f} {y}H{x(row["high"]):.1f}" stroke="{_COLOURS[0]}" stroke-width="2"/>'
        )
        drawn.append(
            f'<circle cx="{x(row["hazard ratio"]):.1f}" cy="{y}" r="5" fill="{_COLOURS[0]}"/>'
        )
    drawn += [_text(x(math.exp(end)), tall - 14, f"{math.exp(end):.2f}") for end in (low, high)]
    return _svg(tall, *drawn)


def _svg(height: int, *parts: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" font-size="13"'
        f' font-family="sans-serif">{"".join(parts)}</svg>'
    )


def _text(
    x: float, y: float, words: str, colour: str = "currentColor", anchor: str = "middle"
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


# --- files --------------------------------------------------------------------------------------


def _write_csv(path: Path, rows: Sequence[Outcome]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _file_name(name: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in name.lower()).strip("-") or "table"


def _written(value: object) -> str:
    if isinstance(value, list):
        return " and ".join(map(_written, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    """JSON has no word for what is no number."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
