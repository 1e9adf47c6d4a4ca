"""The examples are short and run: the README's dozen lines, and the same by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "secure_sum.py"
SHORT = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)


def test_they_are_short():
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 60
    assert all(len(code.splitlines()) <= 15 for code in SHORT)


@pytest.mark.parametrize("code", [SHORT[-1], EXAMPLE.read_text("utf-8")], ids=["README", "by hand"])
def test_it_opens_the_mean(code):
    """Three updates, rounded to multiples of 2⁻¹⁶ or finer: their mean is off by less than one such step."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    said = re.fullmatch(
        r"(?:version 1: )?the mean of 3 masked updates, off by (\S+) at most\n", run.stdout
    )
    assert said, run.stdout
    assert 0 < float(said[1]) < 2**-16


def test_the_one_by_hand_is_on_its_page():
    page = (ROOT / "docs" / "tutorial" / "by-hand.md").read_text("utf-8")
    assert f"```python\n{EXAMPLE.read_text('utf-8')}```\n" in page
