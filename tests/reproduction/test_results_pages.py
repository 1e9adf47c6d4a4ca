"""The result pages are what the committed figures say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

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
