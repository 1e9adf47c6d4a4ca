"""The wheel, built and installed alone in a new environment, works without any extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from basecagg import __version__

ROOT = Path(__file__).parent.parent
OPTIONAL = ("torch", "sklearn", "flwr", "ray", "starlette", "uvicorn", "httpx")


ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""What is installed must not be hidden by a checkout on the path."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it, however it ends."""
    return subprocess.run(command, cwd=cwd, env=ALONE, capture_output=True, text=True, check=False)


def call(*command: str | Path, cwd: Path) -> str:
    """Run it; what it printed, or all it said if it failed."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The `bin` of an environment that holds the wheel and what it asks for."""
    place = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, ROOT)
    call(*build, cwd=place)
    (wheel,) = place.glob("basecagg-*.whl")
    venv.create(place / "env", with_pip=True)
    programs = place / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    call(programs / "python", "-m", "pip", "install", "--quiet", wheel, cwd=place)
    return programs


def test_it_says_its_version(installed: Path) -> None:
    assert call(installed / "basecagg", "--version", cwd=installed).split()[-1] == __version__


def test_it_plans(installed: Path) -> None:
    wishes = ["--users", "100", "--dropouts", "0.3", "--model-size", "1e6", "--no-cpu"]
    assert "No sum wraps around" in call(installed / "basecagg", "plan", *wishes, cwd=installed)


def test_it_opens_a_sum_exactly(installed: Path) -> None:
    """The tutorial's code, which ends in asserts: all of the arithmetic, compiled afresh."""
    page = (ROOT / "docs" / "tutorial" / "first-sum.md").read_text("utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    assert "assert np.array_equal" in code
    call(installed / "python", "-c", code, cwd=installed)


def test_no_extra_is_installed(installed: Path) -> None:
    script = f"from importlib.util import find_spec; print([m for m in {OPTIONAL} if find_spec(m)])"
    assert call(installed / "python", "-c", script, cwd=installed).strip() == "[]"


def test_it_carries_types_and_licence(installed: Path) -> None:
    script = (
        "from importlib.metadata import files;"
        "print(*[f for f in files('basecagg') if f.name in ('py.typed', 'LICENSE')])"
    )
    names = call(installed / "python", "-c", script, cwd=installed).split()
    assert {Path(name).name for name in names} == {"py.typed", "LICENSE"}


def test_the_experiments_are_beside_it(installed: Path) -> None:
    done = run(installed / "basecagg", "reproduce", "theorem", cwd=installed)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "in a checkout of basecagg" in done.stderr
    assert "accuracy-mnist" in call(installed / "basecagg", "reproduce", "--help", cwd=ROOT)
