"""Mutants: our kinds of change do what they say, and the committed list and results are what they should be."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = spec_from_file_location(Path(name).stem, ROOT / "scripts" / name)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # where a dataclass looks for itself
    spec.loader.exec_module(module)
    return module


page = script("mutants_page.py")


def test_a_kind_of_change_is_what_its_examples_say() -> None:
    pytest.importorskip("cosmic_ray")
    from cosmic_ray.mutating import mutate_code

    for kind in script("mutants/kinds.py").KINDS.values():
        for example in kind.examples():
            changed = mutate_code(example.pre_mutation_code, kind(), example.occurrence)
            assert changed == example.post_mutation_code


@pytest.mark.parametrize("each", page.equivalents(), ids=lambda each: each["was"])
def test_what_is_called_equivalent_is_still_there_and_has_a_reason(each: dict) -> None:
    lines = (ROOT / "src" / "basecagg" / each["module"]).read_text("utf-8").splitlines()
    assert each.get("reads_now", each["was"]) in " ".join(line.strip() for line in lines)
    assert each["now"]
    assert len(each["why"]) > 20


def test_nearly_all_mutants_are_killed_and_few_called_equivalent() -> None:
    _, _, mutants = page.load()
    assert len(mutants) >= 400
    assert page.share_killed(mutants) >= page.LEAST_KILLED
    assert page.share_equivalent(mutants) <= page.MOST_EQUIVALENT


def test_the_page_says_which_files_are_no_longer_there() -> None:
    """The sample is of one commit. A file that was renamed since must not look like one of today."""
    text = page.page("")
    listed = set(re.findall(r"^\| `([\w/]+\.py)`([^|]*)\|", text, re.M))
    source = ROOT / "src" / "basecagg"
    assert {name for name, mark in listed if not mark.strip()} == {
        name for name, _ in listed if (source / name).exists()
    }
    assert all("gone since" in mark for name, mark in listed if not (source / name).exists())


# --- mutants with a name --------------------------------------------------------------------------

NAMED = script("mutants/named.py").NAMED


@pytest.mark.parametrize("each", NAMED, ids=lambda each: each.name)
def test_a_named_mutant_changes_one_place_and_its_tests_are_there(each: Any) -> None:
    text = (ROOT / "src" / "basecagg" / each.module).read_text("utf-8")
    assert text.count(each.was) == 1
    compile(each.code, each.module, "exec")
    assert each.code != text
    assert all((ROOT / path).exists() for path in each.tests)


def test_named_mutants_have_names_of_their_own() -> None:
    assert len({each.name for each in NAMED}) == len(NAMED)
