"""The example is short, runs, and is what the README prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "secure_sum.py"


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_it_opens_the_mean():
    """Three updates, rounded to multiples of 2⁻¹⁶: their mean is off by less than one such step."""
    run = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    said = re.fullmatch(
        r"version 1: the mean of 3 masked updates, off by (\S+) at most\n", run.stdout
    )
    assert said, run.stdout
    assert 0 < float(said[1]) < 2**-16


def test_it_is_the_library_example_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert f"```python\n{EXAMPLE.read_text()}```\n" in readme
