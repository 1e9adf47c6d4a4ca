"""Where the long forms of the tests keep what they found, for the page in the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reproduction.machine import describe

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "service-faults.json"


def keep(name: str, found: list[dict[str, Any]]) -> None:
    """Nothing was lost, or the test would have failed before."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept |= {"machine": describe(), name: found}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
