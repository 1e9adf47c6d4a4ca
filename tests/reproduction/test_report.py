"""An experiment leaves JSON, CSV, a page and plots."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

pytest.importorskip("matplotlib")

from basecagg.cli import main
from reproduction import incompatibility
from reproduction.incompatibility import Point
from reproduction.report import show_table, shown


def test_an_experiment_leaves_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(mixed: int, repeats: int) -> Point:
        return Point(mixed, mixed / 10, 1e5 if mixed else 0.0, float(mixed > 0), 0.0, 0.0)

    monkeypatch.setattr(incompatibility, "measure", measure)
    done = CliRunner().invoke(main, ["reproduce", "incompatibility", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "incompatibility.json").read_text())
    assert len(content["lines"]) == 10
    assert content["machines"][0]["cores"]
    with (tmp_path / "incompatibility.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10
    page = (tmp_path / "incompatibility.html").read_text()
    assert "<svg" in page
    assert not re.search(r"(src|href)=.?http", page)  # opens offline
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".svg", ".png"}


def test_an_unknown_experiment_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["reproduce", "apples"]).exit_code == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (12345, "12,345"),
        (0.012345, "0.0123"),
        (1234.5, "1,234"),
        ("x", "x"),
    ],
)
def test_values_are_shown_short(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_narrow_terminal_shows_the_first_columns_whole() -> None:
    lines = [{"protocol": "secagg", "N": 25, "seconds, overlapped": 1.5, "extrapolated": "no"}]
    for width, columns in ((80, 4), (34, 3), (22, 2)):
        console = Console(width=width, file=io.StringIO())
        show_table(console, "costs", lines)
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert [word in printed for word in ("secagg", "25", "1.5", "no")].count(True) == columns
        assert "…" not in printed
