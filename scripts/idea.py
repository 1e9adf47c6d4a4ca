"""Draw the picture of the idea, light and dark: a table of sums, computed as the protocol computes them.

A row is a hospital: its update, a mask, and what the server gets. Every column is summed below. The server adds
up the last one, the holders open the sum of the masks, and so the sum of the updates is known too. Every bar is
the value modulo q that really comes out; all weights are 1.

`python scripts/idea.py` writes the files; with `--check` it only compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 640, 512
NUMBERS, Q = 16, 1000  # of an update; of the field
BAR, TALL, PITCH = 7, 52, 8.2
LEFT = (146.0, 314.0, 492.0)  # of the columns: updates, masks, uploads
TOP = (84.0, 166.0, 248.0, 392.0)  # of the rows: three hospitals, the sums
USERS = (
    ("Hospital A", "from model 7"),
    ("Hospital B", "from model 5"),
    ("Hospital C", "from model 6"),
)

LIGHT = {
    **{"ink": "#1f2933", "soft": "#4a5766", "line": "#c3ccd6", "paper": "#f4f6f9"},
    **{"noise": "#8a96a3", "a": "#0b7285", "b": "#b35309", "c": "#6741d9", "sum": "#2b8a3e"},
}
DARK = {
    **{"ink": "#eef1f5", "soft": "#b4bfcb", "line": "#4a5360", "paper": "#262b34"},
    **{"noise": "#7d8894", "a": "#66d9e8", "b": "#ffb066", "c": "#b197fc", "sum": "#69db7c"},
}


def picture(colours: dict[str, str]) -> str:
    """The whole SVG in these colours."""
    body = "".join([_frames(), _headings(), _bars(), _signs(), _words()])
    style = "text{font:15px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:{ink}}"
    style += ".soft{fill:{soft};font-size:13.5px}.strong{font-weight:600}.sign{font-size:24px}"
    drawing = f"<style>{style}</style>{body}"
    for name, colour in colours.items():
        drawing = drawing.replace(f"{{{name}}}", colour)
    title = "<title>Updates plus masks are what the server gets; only sums are opened</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return f"{head}{title}{drawing}</svg>\n"


def _values() -> list[list[list[int]]]:
    """Rows of the three columns; the last row is the sum of those above it."""
    shapes = ((3, 9, 14), (12, 5, 1), (6, 7, 15))
    updates = [
        [int(300 / (1 + 0.35 * min(abs(i - top) for top in tops) ** 2)) for i in range(NUMBERS)]
        for tops in shapes
    ]
    draw = Random(8)
    masks = [[draw.randrange(Q) for _ in range(NUMBERS)] for _ in shapes]
    uploads = [
        [(x + z) % Q for x, z in zip(update, mask, strict=True)]
        for update, mask in zip(updates, masks, strict=True)
    ]
    totals = [[sum(column) % Q for column in zip(*rows, strict=True)] for rows in (masks, uploads)]
    opened = [(y - z) % Q for z, y in zip(*totals, strict=True)]
    return [[*updates, opened], [*masks, totals[0]], [*uploads, totals[1]]]


def _bars() -> str:
    """Updates in the colour of their owner, what looks random in grey, the sum in a colour of its own."""
    colours = (("a", "b", "c", "sum"), ("noise",) * 4, ("noise",) * 4)
    drawn: list[str] = []
    for column, names, left in zip(_values(), colours, LEFT, strict=True):
        for values, name, top in zip(column, names, TOP, strict=True):
            drawn.extend(
                f'<rect x="{left + PITCH * i:.1f}" y="{top + TALL - tall:.1f}" width="{BAR}"'
                f' height="{tall:.1f}" rx="1" fill="{{{name}}}"/>'
                for i, tall in enumerate(max(1.5, TALL * value / Q) for value in values)
            )
    return "".join(drawn)


def _frames() -> str:
    """What happens at home, and below it what becomes known."""
    box = '<rect x="{}" y="{}" width="{}" height="{}" rx="10" fill="{{paper}}" stroke="{{line}}"/>'
    home = box.format(8, 40, 450, 276)
    server = box.format(480, 40, 152, 276)
    known = box.format(8, 352, 624, 152)
    return home + server + known


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def _headings() -> str:
    middle = [left + PITCH * NUMBERS / 2 for left in LEFT]
    return "".join(
        [
            _text(20, 28, "stays with each hospital", "strong"),
            _text(middle[2], 28, "the server gets", "strong", "middle"),
            _text(middle[0], 66, "update", "soft", "middle"),
            _text(middle[1], 66, "mask, used once", "soft", "middle"),
            _text(middle[2], 66, "masked update", "soft", "middle"),
            *(
                _text(20, top + 24, name, "strong")
                for top, (name, _) in zip(TOP, USERS, strict=False)
            ),
            *(
                _text(20, top + 43, version, "soft")
                for top, (_, version) in zip(TOP, USERS, strict=False)
            ),
        ]
    )


def _signs() -> str:
    between = [(LEFT[i] + PITCH * NUMBERS + LEFT[i + 1]) / 2 for i in range(2)]
    rows = [
        _text(x, top + 36, sign, "sign", "middle")
        for top in TOP
        for x, sign in zip(between, "+=", strict=True)
    ]
    adding = [_text(left + PITCH * NUMBERS / 2, 340, "↓ summed", "soft", "middle") for left in LEFT]
    return "".join([*rows, *adding])


def _words() -> str:
    middle = [left + PITCH * NUMBERS / 2 for left in LEFT]
    return "".join(
        [
            _text(20, TOP[3] + 14, "Becomes", "strong"),
            _text(20, TOP[3] + 33, "known", "strong"),
            _text(20, TOP[3] + 52, "gives model 8", "soft"),
            _text(middle[0], 376, "sum of updates", "soft", "middle"),
            _text(middle[1], 376, "sum of masks", "soft", "middle"),
            _text(middle[2], 376, "sum of uploads", "soft", "middle"),
            _text(middle[0], 472, "follows,", "soft", "middle"),
            _text(middle[0], 490, "and nothing else", "soft", "middle"),
            _text(middle[1], 472, "the holders", "soft", "middle"),
            _text(middle[1], 490, "open it together", "soft", "middle"),
            _text(middle[2], 472, "the server", "soft", "middle"),
            _text(middle[2], 490, "adds it up", "soft", "middle"),
        ]
    )


def main() -> None:
    """Write both, or check them."""
    for name, colours in {"idea-light.svg": LIGHT, "idea-dark.svg": DARK}.items():
        path, drawn = IMAGES / name, picture(colours)
        if "--check" in sys.argv:
            if path.read_text("utf-8") != drawn:
                sys.exit(f"out of date, run scripts/idea.py: {name}")
        else:
            path.write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
