"""Results survive a stop, a crash in the middle of a line, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from basecagg.errors import DataError
from reproduction.ledger import Ledger


def test_results_are_there_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new" / "results.jsonl")
    ledger.add("a", {"x": 1})
    again = Ledger(tmp_path / "new" / "results.jsonl")
    assert "a" in again
    assert "b" not in again
    assert again.results == {"a": {"x": 1}}
    assert again.machines == ledger.machines
    assert again.machines[0]["cores"]


def test_a_line_cut_off_by_a_crash_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Ledger(path).add("a", 1)
    path.write_text(path.read_text() + '{"key": "b", "res')
    ledger = Ledger(path)
    assert ledger.results == {"a": 1}
    ledger.add("b", 2)
    assert Ledger(path).results == {"a": 1, "b": 2}


def test_reading_writes_nothing(tmp_path: Path) -> None:
    """A page may be drawn while an experiment adds to the same file."""
    path = tmp_path / "results.jsonl"
    running = Ledger(path)
    running.add("a", 1)
    path.write_text(path.read_text() + '{"key": "b", "res')
    before = path.read_bytes()
    assert Ledger(path).results == {"a": 1}
    assert path.read_bytes() == before
    Ledger(tmp_path / "nothing" / "results.jsonl")
    assert not (tmp_path / "nothing").exists()


def test_every_machine_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    for day, processor in enumerate(["old", "old", "new"], 1):
        there = {"processor": processor, "date": f"2026-01-0{day}"}
        monkeypatch.setattr("reproduction.machine.describe", lambda there=there: there)
        Ledger(path).add(f"run {day}", day)
    ledger = Ledger(path)
    assert [each["processor"] for each in ledger.machines] == ["old", "new"]
    assert len(ledger.results) == 3


def test_a_spoiled_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('nonsense\n{"key": "a", "result": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        Ledger(path)
