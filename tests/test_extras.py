"""A missing optional part is answered with its install command; a broken one is not hidden."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

from basecagg.errors import MissingExtraError
from basecagg.extras import require

ROOT = Path(__file__).parent.parent


def test_an_installed_module_is_given() -> None:
    assert require("json", extra="learn", needed_for="training") is json


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inside"])
def test_a_missing_one_names_its_extra(module: str) -> None:
    with pytest.raises(MissingExtraError, match=r"training needs .* pip install '\.\[learn\]'"):
        require(module, extra="learn", needed_for="training")


def test_a_module_that_misses_its_own_parts_is_not_a_missing_extra(tmp_path, monkeypatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("half_installed", extra="learn", needed_for="training")
    assert not isinstance(caught.value, MissingExtraError)
    assert "half_installed" not in sys.modules


def test_the_extras_are_the_documented_ones() -> None:
    assert set(metadata("basecagg").get_all("Provides-Extra") or ()) == {
        "learn",
        "service",
        "flower",
        "ray",
        "tensorboard",
        "postgres",
        "parquet",
        "all",
    }


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_installed_where_the_tests_run(extra: str) -> None:
    """Some tests are skipped without one: this one is not, so a part that is missing cannot hide."""
    for requirement in EXTRAS[extra]:
        name = re.match(r"[a-z-]+", requirement)
        assert name is not None
        assert metadata(name[0])["Version"]


def test_a_job_of_the_workflow_tries_each_extra_alone() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (listed,) = re.findall(r"extra: \[(.*)\]", workflow)
    assert listed.split(", ") == ["alone", *EXTRAS]


def test_the_workflow_runs_what_a_developer_runs() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for command in (".ci/run", "make wheels", "make docs"):
        assert f"run: {command}" in workflow


def test_all_is_every_extra_and_what_the_tests_install() -> None:
    """A part that the tests do not have is a part that nobody has tried."""
    (everything,) = EXTRAS["all"]
    named = re.findall(r"[a-z]+", everything.removeprefix("basecagg"))
    assert {*named, "all"} == set(EXTRAS)
    assert "'.[all]' --group dev" in (ROOT / "Makefile").read_text()


# --- what is said works before a package is published ----------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def texts() -> list[Path]:
    """All that a newcomer reads or that talks to one."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*")]
    written = [path for path in pages if path.suffix in (".md", ".py", ".service", ".yml")]
    return [*written, *ROOT.glob("src/**/*.py"), ROOT / "Makefile"]


def test_every_install_line_is_one_for_a_checkout() -> None:
    """No index has a package of this name from us: who typed it would get nothing, or a stranger's."""
    asked = re.compile(r"""pip install (-\S+ )*['"]?basecagg\b""")
    found = [f"{path.relative_to(ROOT)}" for path in texts() if asked.search(path.read_text())]
    assert found == []
    assert asked.search("pip install 'basecagg[learn]'")
    assert asked.search("pip install --upgrade basecagg")
    assert not asked.search("/opt/basecagg/bin/pip install '.[service]'")


def test_every_extra_in_an_install_line_is_there() -> None:
    lines = re.compile(r"pip install [^\n]*?[./]\[([a-z,]+)\]")
    named = {
        extra
        for path in texts()
        for group in lines.findall(path.read_text())
        for extra in group.split(",")
    }
    assert named >= {"learn", "service"}
    assert named <= set(EXTRAS)


def test_the_study_installs_what_its_next_step_needs() -> None:
    """`examples/dialysis/service.py` is the federation's program with other rows: it needs as much."""

    def installed_by(target: str) -> set[str]:
        commands = subprocess.run(
            ["make", "--dry-run", "VENV=/nowhere", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {
            extra
            for group in re.findall(r"'\.\[([a-z,]+)\]'", commands)
            for extra in group.split(",")
        }

    assert installed_by("federation") == {"learn", "service"}
    assert installed_by("study") >= installed_by("federation")


def test_every_python_that_is_claimed_is_tried_and_the_other_way_round() -> None:
    claimed = {
        words.rpartition(" ")[2]
        for words in PROJECT["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", words)
    }
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert claimed == set(re.findall(r"3\.\d+", matrix)) >= {"3.11", "3.14"}
    (said,) = re.findall(r"Linux, with Python (.*?):", (ROOT / "docs" / "faq.md").read_text())
    assert set(re.findall(r"3\.\d+", said)) == claimed
