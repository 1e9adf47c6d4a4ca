"""Twelve centres as processes learn a model of survival, each from its own rows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "dialysis" / "service.py"


@pytest.mark.soak
def test_twelve_centres_learn_together() -> None:
    command = [sys.executable, EXAMPLE, "--made-up", "--versions", "20"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    before, after = map(float, re.findall(r"(-\d+\.\d+) at version", done.stdout))
    assert after > before
