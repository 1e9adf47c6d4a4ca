"""A missing optional part is answered with its install command; a broken one is not hidden."""

from __future__ import annotations

import json
import sys
from importlib.metadata import metadata

import pytest

from basecagg.errors import MissingExtraError
from basecagg.extras import require


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
