"""A missing optional part is answered with its install command; a broken one is not hidden."""

from __future__ import annotations

import json
import re
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
    with pytest.raises(
        MissingExtraError, match=r"training needs .* pip install 'basecagg\[learn\]'"
    ):
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
