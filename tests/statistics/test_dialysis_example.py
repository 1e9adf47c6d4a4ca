"""`make study` in its quick form, on made-up patients: neither SurvSet nor lifelines, nor a network."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "dialysis"
ALONE = """
import runpy, sys
sys.modules["SurvSet"] = sys.modules["lifelines"] = None
sys.path.insert(0, {folder!r})
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("study")
    script = ALONE.format(folder=str(EXAMPLE), script=str(EXAMPLE / "study.py"))
    options = ("--quick", "--made-up", "--folder", str(into))
    subprocess.run([sys.executable, "-c", script, *options], check=True, timeout=300)
    return into


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.delitem(sys.modules, "report", raising=False)
    return __import__("report")


def test_it_keeps_what_it_promises_and_writes_it_down(folder: Path, report) -> None:
    found = json.loads((folder / "study.json").read_text("utf-8"))
    assert found["centres"] == 12
    assert found["gone"] == 3
    assert all(report.promises(found).values())
    assert found["server"]["sums"] >= 12
    assert len(found["private"]["secure sums"]) == len(found["private"]["local noise"]) == 2


def test_the_page_has_its_tables_and_pictures_and_loads_nothing(folder: Path) -> None:
    text = (folder / "report.html").read_text("utf-8")
    assert text.count("<svg") == 4
    assert "hazard ratio" in text
    assert "src=" not in text
    assert 'href="http' not in text
    assert {path.suffix for path in (folder / "plots").iterdir()} == {".svg", ".png"}


def test_what_is_not_as_promised_is_said(folder: Path, report) -> None:
    found = json.loads((folder / "study.json").read_text("utf-8"))
    for part, name in (("exact", "coefficients"), ("exact", "survival")):
        wrong = copy.deepcopy(found)
        wrong[part][name][0] += 2e-4
        assert list(report.promises(wrong).values()).count(False) == 1
    singled = copy.deepcopy(found)
    singled["server"]["smallest"] = 1
    assert list(report.promises(singled).values()).count(False) == 1


def test_noise_that_is_larger_than_chance_is_called_useless(report) -> None:
    import numpy as np

    assert report.judged(np.array([0.9, 1.1]), 1.0, 0.2) == "good"
    assert report.judged(np.array([0.6, 1.4]), 1.0, 0.2) == "usable"
    assert report.judged(np.array([-2.0, 4.0]), 1.0, 0.2) == "useless"


ROOT = EXAMPLE.parent.parent
STORED = ROOT / "benchmarks" / "results" / "study" / "study.json"


def test_the_tutorial_tells_what_was_measured(report) -> None:
    found = json.loads(STORED.read_text("utf-8"))
    assert all(report.promises(found).values())
    assert found["private"]["seeds"] >= 10
    page = (ROOT / "docs" / "tutorial" / "dialysis.md").read_text("utf-8")
    for lines in (report.survivals, report.hazard_ratios, report.curves_off, report.prices):
        assert report.markdown(lines(found)) in page
