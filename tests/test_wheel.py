"""The wheel in a new environment, alone and with each extra alone: it works, or names what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from basecagg import __version__
from basecagg.maths.primes import PAPER_MODULUS as Q

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "maths"))
import oracle  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = list(PROJECT["optional-dependencies"])
DEVELOPERS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


def code_of(page: str) -> str:
    return "\n".join(blocks_of(page))


class Trial(NamedTuple):
    """What a user does first, and the extras without which it cannot work."""

    words: tuple[str, ...]
    needs: frozenset[str] = frozenset()


def python(code: str, *needs: str) -> Trial:
    return Trial(("python", "-W", "error", "-c", code), frozenset(needs))


def program(line: str, *needs: str) -> Trial:
    return Trial(("basecagg", *line.split()), frozenset(needs))


RUN = "run --versions 2 --set users=8 --set buffer_size=4 --set model=logistic --method basecagg"
SIMULATE = """
from basecagg import SimulationConfig, simulate
result = simulate(SimulationConfig(users=8, buffer_size=4, model="logistic", versions=2{}))
assert result.versions[-1].version == 2
"""
TRIALS = {
    "plan": program("plan --holders 100 --max-dropouts 0.3 --model-size 1e6"),
    "README, a federation": python(blocks_of("README.md")[0], "learn"),
    "README, a sum": python(blocks_of("README.md")[1]),
    # All of the arithmetic, compiled afresh.
    "first sum": python(code_of("docs/tutorial/first-sum.md")),
    "audit": python(code_of("docs/how-to/audit.md")),
    "verify": python(code_of("docs/how-to/verify.md")),
    "run": program(RUN, "learn"),
    "simulate": python(SIMULATE.format(""), "learn"),
    "ray": python(SIMULATE.format(", executor='ray'"), "learn", "ray"),
    "tensorboard": program(f"{RUN} --tensorboard", "learn", "tensorboard"),
    "operator": program("operator init --name trial --url https://localhost:8443", "service"),
    "postgres": python(
        "from basecagg.storage.database import Database; Database('postgresql+psycopg://user@host/name')",
        "postgres",
    ),
    "flower": Trial(  # warnings are not errors here: flwr has some of its own
        ("python", "-c", "from basecagg.flower import BufferedSecAgg, basecagg_mod"),
        frozenset({"flower"}),
    ),
}


# Loads and compiles every kernel; then shares of a mask: nothing is left to be compiled for them.
FIRST_USE = """
import json, sys
import numpy as np
from numba.core.event import install_recorder
from basecagg.maths.kernels import warm_up
from basecagg.maths.mds_code import MaskCode

with install_recorder("numba:compile") as recorder:
    assert 0 < warm_up()
    print(len(recorder.buffer))
    mask, noise = (np.array(json.loads(text), np.uint32) for text in sys.argv[2:])
    print(json.dumps(MaskCode(*json.loads(sys.argv[1])).encode(mask, noise).tolist()))
    print(len(recorder.buffer))
"""
MASK, NOISE = list(range(8)), [[Q - 1, 5], [6, Q // 2]]


class Installed(NamedTuple):
    """An environment that holds the wheel and what it asks for."""

    programs: Path
    extras: frozenset[str]
    uses: list[list[str]]
    """What the first use said, and what the second."""

    def call(self, program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return run(self.programs / program, *words, cwd=cwd)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it with what is installed, and nothing that a developer's shell adds."""
    own = {name: value for name, value in os.environ.items() if name not in DEVELOPERS}
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, check=False)


def checked(*command: str | Path, cwd: Path) -> None:
    """Run it; all it said if it failed."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, ROOT)
    checked(*build, cwd=place)
    (built,) = place.glob("basecagg-*.whl")
    return built


@pytest.fixture(
    scope="module",
    params=["alone", *(pytest.param(extra, marks=pytest.mark.soak) for extra in EXTRAS)],
)
def installed(request, wheel: Path, tmp_path_factory) -> Installed:
    """Alone in `make test`; `make wheels` has one environment for each extra as well."""
    place = tmp_path_factory.mktemp("env")
    venv.create(place)
    extra = "" if request.param == "alone" else f"[{request.param}]"
    pip = (sys.executable, "-m", "pip", "--python", place / "bin/python")
    checked(*pip, "install", "--quiet", "--no-compile", f"{wheel}{extra}", cwd=place)
    has = set(EXTRAS) if request.param == "all" else {request.param} & set(EXTRAS)
    made = Installed(place / "bin", frozenset(has), [])
    for _ in range(2):
        done = made.call("python", "-c", FIRST_USE, "[12, 6, 2]", str(MASK), str(NOISE), cwd=place)
        assert done.returncode == 0, done.stderr
        made.uses.append(done.stdout.splitlines())
    return made


def test_kernels_compile_once_and_a_cold_start_computes_right(installed: Installed) -> None:
    expected = oracle.encode(MASK, NOISE, oracle.points(12, Q), 4, Q)
    for compiles, (in_warm_up, shares, in_all) in zip((True, False), installed.uses, strict=True):
        assert shares == str(expected)
        assert (int(in_warm_up) > 0) is compiles
        assert in_all == in_warm_up  # nothing is left for later


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_it_works_or_names_the_missing_extra(installed: Installed, trial: Trial, tmp_path) -> None:
    done = installed.call(*trial.words, cwd=tmp_path)
    missing = trial.needs - installed.extras
    if not missing or (
        installed.extras and done.returncode == 0
    ):  # an extra may bring another's part
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode != 0
        last = done.stderr.rstrip().splitlines()[-1]
        assert any(f"pip install '.[{extra}]'" in last for extra in missing), done.stderr


def test_it_says_its_version(installed: Installed, tmp_path) -> None:
    assert installed.call("basecagg", "--version", cwd=tmp_path).stdout.split()[-1] == __version__


def test_it_carries_types_and_licence(installed: Installed, tmp_path) -> None:
    script = (
        "from importlib.metadata import files;"
        "print(*[f for f in files('basecagg') if f.name in ('py.typed', 'LICENSE')])"
    )
    names = installed.call("python", "-c", script, cwd=tmp_path).stdout.split()
    assert {Path(name).name for name in names} == {"py.typed", "LICENSE"}


def test_the_experiments_are_beside_it(installed: Installed, tmp_path) -> None:
    done = installed.call("basecagg", "reproduce", "theorem", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "in a checkout of basecagg" in done.stderr
