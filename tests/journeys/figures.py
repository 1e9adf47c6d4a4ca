"""What long journeys measured, and when: scripts/journeys_page.py makes a page of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reproduction.machine import describe

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "journeys.json"


def keep(name: str, seconds: float, measured: Mapping[str, Any]) -> None:
    """Put a journey's figures beside those of the others."""
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {"journeys": {}}
    hour = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    entry = {"arrived": hour, "seconds": round(seconds, 1), **measured}
    journeys = kept["journeys"] | {name: entry}
    ordered = dict(sorted(journeys.items()))
    text = json.dumps({"machine": describe(), "journeys": ordered}, indent=1, ensure_ascii=False)
    KEPT.write_text(f"{text}\n", "utf-8")
