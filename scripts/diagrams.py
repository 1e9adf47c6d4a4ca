"""Draw the diagrams of the pages as SVG: columns for parties or states, a row for each message or step.

The source is Mermaid, of which this reads what our pages use: `sequenceDiagram` with `participant`, `->>`,
`-->>` and `Note over`, and `stateDiagram-v2` with `-->`. The reader's browser loads nothing, and no layout has
to be guessed: a state diagram is drawn like a sequence, from the column of one state to that of the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap

CHARACTER = 7.2  # pixels of a letter at 13 px, on average and a little more
LINE = 17
MARGIN = 12
HEAD = 34
_LOOP = 26


@dataclass(frozen=True)
class Row:
    """An arrow from a column to another one or to itself, or a note over some of them."""

    first: str
    last: str
    text: str
    kind: str = "arrow"  # or "reply", "note"

    def lines(self, width: int = 26) -> list[str]:
        """The text, broken where it is long."""
        return wrap(self.text, 60 if self.kind == "note" else width) or [""]


@dataclass
class Diagram:
    """Columns by name, each with what stands above it, and rows in order."""

    kind: str
    columns: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    finals: set[str] = field(default_factory=set)


_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
_STEP = re.compile(r"(\w+|\[\*\]) --> (\w+|\[\*\])(?: : (.+))?")


def source_of(table: Mapping[str, Mapping[str, str]]) -> str:
    """A table of states in Mermaid: from which of them, by which event, to which."""
    steps = [(state, *step) for state, row in table.items() for step in row.items()]
    finals = dict.fromkeys(target for _, _, target in steps if target not in table)
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    lines += [f"    {state} --> {target} : {event}" for state, event, target in steps]
    return "\n".join([*lines, *(f"    {final} --> [*]" for final in finals)]) + "\n"


def read(source: str) -> Diagram:
    """Understand the source, or say which line is not understood."""
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind not in ("sequenceDiagram", "stateDiagram-v2"):
        raise ValueError(f"'{kind}' is a diagram that scripts/diagrams.py cannot draw")
    diagram = Diagram(kind)
    for line in lines:
        (_read_step if kind == "stateDiagram-v2" else _read_message)(diagram, line)
    return diagram


def _read_message(diagram: Diagram, line: str) -> None:
    if found := _PARTICIPANT.fullmatch(line):
        diagram.columns[found[1]] = found[2]
    elif found := _NOTE.fullmatch(line):
        diagram.rows.append(Row(found[1], found[2] or found[1], found[3], "note"))
    elif found := _MESSAGE.fullmatch(line):
        kind = "reply" if found[2] == "--" else "arrow"
        diagram.rows.append(Row(found[1], found[3], found[4], kind))
    else:
        raise ValueError(f"scripts/diagrams.py does not understand '{line}'")


def _read_step(diagram: Diagram, line: str) -> None:
    found = _STEP.fullmatch(line)
    if found is None:
        raise ValueError(f"scripts/diagrams.py does not understand '{line}'")
    first, last, event = found[1], found[2], found[3] or ""
    for state in (first, last):
        if state != "[*]":
            diagram.columns.setdefault(state, state.replace("_", " "))
    if last == "[*]":
        diagram.finals.add(first)
    elif first != "[*]":
        diagram.rows.append(Row(first, last, event))


def draw(source: str) -> str:
    """The source as one line of HTML: a box that scrolls if the screen is narrow, with the picture in it."""
    diagram = read(source)
    places, width = _places(diagram)
    body, height = _rows(diagram, places)
    columns = "".join(_column(diagram, name, x, height) for name, x in places.items())
    words = escape(_in_words(diagram))
    picture = (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="--natural: {width:.0f}px"'
        f' role="img" aria-label="{words}">{columns}{body}</svg>'
    )
    return f'<div class="diagram" tabindex="0" role="group" aria-label="Diagram">{picture}</div>'


def _in_words(diagram: Diagram) -> str:
    names = diagram.columns
    said = (
        row.text if row.kind == "note" else f"{names[row.first]} to {names[row.last]}: {row.text}"
        for row in diagram.rows
    )
    return "; ".join(said)


def _places(diagram: Diagram) -> tuple[dict[str, float], float]:
    """The middle of every column, such that heads and the words on arrows have room."""
    names = list(diagram.columns)
    half = [_head_width(diagram.columns[name]) / 2 for name in names]
    gaps = [half[i] + half[i + 1] + 14 for i in range(len(names) - 1)]
    for row in sorted(
        diagram.rows, key=lambda row: abs(_span(names, row)[1] - _span(names, row)[0])
    ):
        low, high = _span(names, row)
        needed = max(map(len, row.lines())) * CHARACTER + 26
        if row.kind == "note" or low >= len(gaps):
            continue
        if low == high:  # a loop has its words to the right
            gaps[low] = max(gaps[low], needed + _LOOP)
        elif missing := max(0.0, needed - sum(gaps[low:high])):
            for i in range(low, high):
                gaps[i] += missing / (high - low)
    places = [MARGIN + half[0]]
    for gap in gaps:
        places.append(places[-1] + gap)
    loops = [len(row.text) for row in diagram.rows if row.first == row.last == names[-1]]
    right = max([half[-1], *(length * CHARACTER + _LOOP + 12 for length in loops)])
    return dict(zip(names, places, strict=True)), places[-1] + right + MARGIN


def _head_width(text: str) -> float:
    return max(map(len, wrap(text, 18))) * CHARACTER + 22


def _span(names: list[str], row: Row) -> tuple[int, int]:
    first, last = sorted((names.index(row.first), names.index(row.last)))
    return first, last


def _rows(diagram: Diagram, places: dict[str, float]) -> tuple[str, float]:
    y = MARGIN + _head_height(diagram) + 14.0
    drawn: list[str] = []
    for row in diagram.rows:
        lines = row.lines()
        y += LINE * len(lines) + (10 if row.kind == "note" else 5)
        drawn.extend(_row(row, lines, places[row.first], places[row.last], y))
        y += 12 if row.kind == "note" else 8
    return "".join(drawn), y + MARGIN


def _row(row: Row, lines: list[str], start: float, end: float, y: float) -> Iterator[str]:
    """One row whose lowest line is at y."""
    if row.kind == "note":
        yield from _note(lines, min(start, end), max(start, end), y)
    elif start == end:
        yield f'<path class="{row.kind}" d="M{start:.1f} {y - 10:.1f}h{_LOOP - 8}v10h-{_LOOP - 14}"/>'
        yield _head_of_arrow(start, y, -1)
        yield _text(lines, start + _LOOP, y - 2 + 4, "start")
    else:
        way = 1 if end > start else -1
        yield f'<path class="{row.kind}" d="M{start:.1f} {y:.1f}H{end - 7 * way:.1f}"/>'
        yield _head_of_arrow(end, y, way)
        yield _text(lines, (start + end) / 2, y - 7)


def _head_of_arrow(x: float, y: float, way: int) -> str:
    return f'<path class="tip" d="M{x:.1f} {y:.1f}l{-8 * way} -4v8z"/>'


def _note(lines: list[str], low: float, high: float, y: float) -> Iterator[str]:
    middle = (low + high) / 2
    width = max(high - low + 40, max(map(len, lines)) * CHARACTER + 16)
    left = max(middle - width / 2, 2)
    height = LINE * len(lines) + 8
    yield f'<rect class="note" x="{left:.1f}" y="{y - height + 4:.1f}" width="{width:.1f}"'
    yield f' height="{height}" rx="4"/>'
    yield _text(lines, left + width / 2, y - 5)


def _text(lines: list[str], x: float, lowest: float, anchor: str = "middle") -> str:
    first = lowest - LINE * (len(lines) - 1)
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{first + LINE * i:.1f}">{escape(line)}</tspan>'
        for i, line in enumerate(lines)
    )
    return f'<text text-anchor="{anchor}">{spans}</text>'


def _head_height(diagram: Diagram) -> float:
    most = max(len(wrap(text, 18)) for text in diagram.columns.values())
    return HEAD + LINE * (most - 1)


def _column(diagram: Diagram, name: str, x: float, height: float) -> str:
    """The head with its name and the line below it. A state in which a life ends has a double border."""
    text = diagram.columns[name]
    width, tall = _head_width(text), _head_height(diagram)
    lines = wrap(text, 18)
    box = f'x="{x - width / 2:.1f}" y="{MARGIN}" width="{width:.1f}" height="{tall}" rx="5"'
    parts = [f'<path class="life" d="M{x:.1f} {MARGIN + tall}V{height - 4:.1f}"/>']
    parts.append(f'<rect class="head" {box}/>')
    if name in diagram.finals:
        inner = f'x="{x - width / 2 + 3:.1f}" y="{MARGIN + 3}" width="{width - 6:.1f}"'
        parts.append(f'<rect class="head" {inner} height="{tall - 6}" rx="3"/>')
    middle = MARGIN + tall / 2 + 4.5 + LINE * (len(lines) - 1) / 2
    return "".join([*parts, _text(lines, x, middle)])
