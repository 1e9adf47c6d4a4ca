"""Variants of the example for tests: slower, with other options; and Flower's quickstart, converted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployment_harness import EXAMPLE, copy_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower.md"
DIFFS = dict(
    re.findall(r"^```diff\n--- (\S+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
"""File → what changes in it."""
QUICKSTART = Path(__file__).parent / "quickstart"
"""The shape of Flower's quickstart for PyTorch."""
_SLOW = '''

def train(*arguments, quick=train):
    """Train as above, but take long, as long as there is a file `hold`, and leave a trace meanwhile."""
    import os
    import time

    folder, node, _ = os.environ["FLOWER_TEST_MEMBER"].split(":")
    trace = Path(folder, "work", f"{node}.trains")
    trace.touch()
    time.sleep(%s)
    while trace.with_name("hold").exists():
        time.sleep(0.1)
    trace.unlink()
    return quick(*arguments)
'''


def slow_app(folder: Path, seconds: float | str, **options: object) -> Path:
    """The example with these options of the strategy, and with so many more seconds of training.

    The seconds may be an expression of `node`, which is "node0" for the first.
    """
    app = copy_of(EXAMPLE, folder)
    server, task = app / "flower_mnist" / "server_app.py", app / "flower_mnist" / "task.py"
    text = server.read_text("utf-8")
    assert "BufferedSecAgg(\n" in text
    added = "".join(f"        {name}={value!r},\n" for name, value in options.items())
    server.write_text(text.replace("BufferedSecAgg(\n", f"BufferedSecAgg(\n{added}"), "utf-8")
    task.write_text(task.read_text("utf-8") + _SLOW % seconds, "utf-8")
    return app


def side(diff: str, sign: str) -> list[str]:
    """The text before (sign -) or after (sign +), in the pieces that `@@` separates."""
    pieces = re.split(r"^@@\n", diff, flags=re.MULTILINE)
    wanted = (" ", sign)
    return [
        "".join(f"{line[1:]}\n" for line in piece.splitlines() if line.startswith(wanted))
        for piece in pieces
    ]


def converted(folder: Path, **options: object) -> Path:
    """The quickstart with the diff applied, line by line as it stands; `options` go to the strategy as well."""
    app = copy_of(QUICKSTART, folder)
    for name, diff in DIFFS.items():
        file = app / name.replace("flower_mnist", "pytorchexample")
        text = file.read_text("utf-8")
        for before, after in zip(side(diff, "-"), side(diff, "+"), strict=True):
            if file.suffix == ".py":
                assert text.count(before) == 1, f"{file.name} does not hold once:\n{before}"
            text = text.replace(before, after)
        added = "".join(f"        {name}={value!r},\n" for name, value in options.items())
        file.write_text(text.replace("BufferedSecAgg(\n", f"BufferedSecAgg(\n{added}"), "utf-8")
    return app


@contextmanager
def nobody_finishes(folder: Path) -> Iterator[None]:
    """Meanwhile no training of the federation in `folder` ends, so its run cannot end either."""
    hold = folder / "work" / "hold"
    hold.touch()
    yield
    hold.unlink()


def training_nodes(folder: Path) -> list[int]:
    """The nodes of the federation in `folder` that train now."""
    traces = (folder / "work").glob("node*.trains")
    return [int(trace.stem.removeprefix("node")) for trace in traces]


def accuracies(said: str) -> dict[int, float]:
    """Version → accuracy, as the example prints it."""
    found = re.findall(r"round (\d+): accuracy ([\d.]+)", said)
    return {int(version): float(accuracy) for version, accuracy in found}
