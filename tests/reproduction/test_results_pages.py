"""The result pages are what the committed figures say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

from reproduction.catalogue import EXPERIMENTS, find
from reproduction.command import command
from reproduction.comparison import COMMITTED
from reproduction.ledger import Ledger

ROOT = Path(__file__).parents[2]


def test_the_pages_fit_the_figures() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "results.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_picture_of_a_page_is_there() -> None:
    for page in (ROOT / "docs" / "results").glob("*.md"):
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("!["):
                assert (page.parent / line.partition("](")[2].rstrip(")")).exists(), line


def test_a_test_that_the_page_of_claims_names_exists() -> None:
    page = (ROOT / "docs" / "results" / "paper.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 5
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), test


def test_headings_of_claims_are_short_and_differ() -> None:
    page = (ROOT / "docs" / "results" / "paper.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", page, re.M)
    assert len(headings) == len(set(headings)) > 30
    assert max(map(len, headings)) <= 72, max(headings, key=len)


# --- verdicts follow the committed figures --------------------------------------------------------


def _worse(result: dict[str, Any]) -> None:
    result["curve"] = [[*point[:3], 0.1] for point in result["curve"]]


def _longer(result: dict[str, Any]) -> None:
    result["measured"] = 1e6


def _coarser(result: dict[str, Any]) -> None:
    result["rounding"] *= 2


def _wrong(result: dict[str, Any]) -> None:
    result["basecagg_wrong"] = 1.0


def _slower(result: dict[str, Any]) -> None:
    result["curve"] = [[1000 * at, score] for at, score in result["curve"]]


def _perfect(result: dict[str, Any]) -> None:
    result["curve"] = [[*point[:3], 1.0] for point in result["curve"]]


def _busier(result: dict[str, Any]) -> None:
    for phases in result["repeats"]:
        phases["recovery"]["server_seconds"] *= 1000


def _told(result: dict[str, Any]) -> None:
    result["worst"] = [0.9, 0.2]


def _accused(result: dict[str, Any]) -> None:
    result["most honest"][-1] = 0.6


def _reweighed(result: dict[str, Any]) -> None:
    result["pairs"].append([0, 1, 100])


def _seen(result: dict[str, Any]) -> None:
    result["bound"] = 2 * result["claim"]


CHANGES = [
    ("protocols", "secagg/200/0.1/", _busier),
    ("accuracy-mnist", "basecagg/polynomial/1", _worse),
    ("accuracy-mnist", "keys/polynomial/1", _worse),
    ("accuracy-cifar10", "basecagg/polynomial/1", _worse),
    ("accuracy-cifar10-large", "basecagg/polynomial/1", _worse),
    ("levels-mnist", "2^16/", _worse),
    ("levels-cifar10", "2^16/", _worse),
    ("sweep-mnist", "3/1/0.01/0.0005/1/", _perfect),
    ("sweep-cifar10", "1/1/0.1/0.0005/1/", _worse),
    ("privacy-users", "sums/", _worse),
    ("privacy-records", "sums/", _worse),
    ("privacy-audit", "arithmetic/honest/", _seen),
    ("residues", "own/usual/", _told),
    ("told-ages", "default run/", _reweighed),
    ("bounded-sums", "z0/-100/", _worse),
    ("attacks", "iid/0.05/ipm/centred-clipping/", _worse),
    ("attacks", "found/iid/21", _accused),
    ("autotune", "2^0/tuned/1", _worse),
    ("theorem", "sweep/quadratic/buffer_size/1", _longer),
    ("theorem", "lemma/", _coarser),
    ("incompatibility", "1", _wrong),
    ("beyond", "dropout/basecagg/0.1/1", _worse),
    ("schedules", "basecagg/", _slower),
]


@pytest.mark.parametrize(("name", "keys", "change"), CHANGES)
def test_another_figure_in_a_ledger_is_another_verdict(
    name: str, keys: str, change: Callable[[dict[str, Any]], None]
) -> None:
    experiment, results = find(name), Ledger(COMMITTED / f"{name}.jsonl").results
    before = [claim.verdict for claim in experiment.report(results, "full").claims]
    changed = [key for key in results if key.startswith(keys)]
    assert changed
    for key in changed:
        change(results[key])
    assert [claim.verdict for claim in experiment.report(results, "full").claims] != before


def test_no_verdict_is_left_out_above() -> None:
    """Flower's page has no claims, and that of optimisers only measures."""
    assert {name for name, _, _ in CHANGES} == EXPERIMENTS.keys() - {"flower", "optimisers"}


# --- a fresh run beside the committed one ---------------------------------------------------------


def check(name: str, out: Path) -> Any:
    return CliRunner().invoke(command, ["--check", name, "--out", str(out)])


def test_a_run_that_is_the_committed_one_agrees(tmp_path: Path) -> None:
    name = "accuracy-mnist"
    (tmp_path / f"{name}.jsonl").write_bytes((COMMITTED / f"{name}.jsonl").read_bytes())
    done = check(name, tmp_path)
    assert done.exit_code == 0, done.output
    assert "agree with the committed run" in done.output


def test_a_run_that_found_something_else_does_not(tmp_path: Path) -> None:
    name, lines = "accuracy-mnist", []
    for line in (COMMITTED / "accuracy-mnist.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("key", "").startswith("basecagg/polynomial/"):
            _worse(entry["result"])
        lines.append(json.dumps(entry))
    (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    done = check(name, tmp_path)
    assert done.exit_code == 1
    assert "differ from the committed run" in done.output


@pytest.mark.filterwarnings("default")  # what Flower warns of is not ours to fix
def test_times_cannot_be_checked_and_quick_runs_are_not(tmp_path: Path) -> None:
    done = check("flower", tmp_path)
    assert done.exit_code == 1
    assert "measures times" in str(done.exception)
    assert not list(tmp_path.iterdir())  # said before anything was run
    done = CliRunner().invoke(command, ["--check", "theorem", "--quick"])
    assert done.exit_code == 2
    assert "--check compares full runs" in done.output
