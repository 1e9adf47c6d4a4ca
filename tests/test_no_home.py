"""A user without a home, with a package that belongs to somebody else: nothing that is needed is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import basecagg

SOURCES = Path(basecagg.__file__).parent
CLI = ("-c", "from basecagg.cli import main; main()")
NOWHERE = "/dev/null/home"
"""Nobody can make a folder there, not even root."""
UNKNOWN = "~"
"""What Python says where neither the environment nor the system knows a home."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, where numba cannot put anything beside the sources."""
    folder = tmp_path_factory.mktemp("installed")
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES, folder / "basecagg", ignore=leave_out)
    (folder / "basecagg/maths/kernels/__pycache__").touch()
    return folder


def run(
    installed: Path, here: Path, *words: str, home: str = NOWHERE, **more: str
) -> subprocess.CompletedProcess[str]:
    hidden = ("XDG_", "NUMBA_", "MPLCONFIGDIR")
    rest = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment = rest | {"HOME": home, "PYTHONPATH": str(installed), **more}
    command = [sys.executable, *(words if words[0] == "-c" else (*CLI, *words))]
    return subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("home", [NOWHERE, UNKNOWN])
def test_commands_work_and_leave_nothing_behind(installed: Path, tmp_path: Path, home: str) -> None:
    wish = ("--holders", "10", "--max-dropouts", "0.3", "--model-size", "1e3")
    done = run(installed, tmp_path, "plan", *wish, home=home)
    assert done.returncode == 0, done.stderr
    found = ("--name", "x", "--url", "https://localhost:8443")
    done = run(installed, tmp_path, "operator", "--anchors", "anchors", "init", *found, home=home)
    assert done.returncode == 0, done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"operator", "anchors"}


def test_kernels_without_a_cache_are_compiled_and_one_line_says_so(
    installed: Path, tmp_path: Path
) -> None:
    wish = ("--holders", "10", "--max-dropouts", "0.3", "--model-size", "1e3", "--cpu")
    done = run(installed, tmp_path, "plan", *wish, home=UNKNOWN)
    assert done.returncode == 0, done.stderr
    assert "compiled again at every start: set NUMBA_CACHE_DIR" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_program_keeps_its_kernels_in_the_folder_that_it_was_given(
    installed: Path, tmp_path: Path
) -> None:
    """The server has no certificate, so it ends; its kernels were ready before."""
    (tmp_path / "state").mkdir()
    serve = ("serve", "--state", "state", "--anchors", "anchors")
    done = run(installed, tmp_path, *serve)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert "server.json" in said[-1]["reason"]
    assert not any("NUMBA_CACHE_DIR" in str(line) for line in said)
    kept = set((tmp_path / "state/kernels").rglob("*.nbc"))
    assert kept
    assert run(installed, tmp_path, *serve).returncode == 2
    assert set((tmp_path / "state/kernels").rglob("*.nbc")) == kept  # used as they are


@pytest.mark.parametrize("home", [NOWHERE, UNKNOWN])
def test_without_a_place_for_anchors_one_line_says_what_to_do(
    installed: Path, tmp_path: Path, home: str
) -> None:
    found = ("--name", "x", "--url", "https://localhost:8443")
    done = run(installed, tmp_path, "operator", "init", *found, home=home)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "--anchors" in done.stderr
    assert "XDG_STATE_HOME" in done.stderr
    assert not (tmp_path / "operator/operator.json").exists()
    again = run(installed, tmp_path, "operator", "init", *found, XDG_STATE_HOME=str(tmp_path))
    assert again.returncode == 0, again.stderr
