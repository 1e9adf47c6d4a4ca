"""Telemetry off before anything of Flower is imported."""

from __future__ import annotations

import os
import warnings

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

with warnings.catch_warnings():
    # Flower's command line asks click for names that a later click will not have: theirs to mend.
    warnings.simplefilter("ignore", DeprecationWarning)
    from basecagg.flower import node_view

from basecagg.storage import disk


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for nodes to rest nor for the disk: tests/storage has what a power cut may not break."""
    monkeypatch.setattr(node_view, "FIRST_REST", 0.01)
    monkeypatch.setattr(node_view, "LONGEST_REST", 0.05)
    monkeypatch.setattr(disk, "PRAGMAS", ("journal_mode = WAL", "synchronous = OFF"))
    monkeypatch.setattr(disk, "sync", lambda descriptor: None)
    monkeypatch.setattr(disk, "sync_folder", lambda folder: None)
