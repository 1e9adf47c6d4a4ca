"""Mutants: our kinds of change do what they say, and the committed list and results are what they should be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "basecagg"
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "mutants")]

import mutants_page  # noqa: E402


def test_a_kind_of_change_is_what_its_examples_say() -> None:
    pytest.importorskip("cosmic_ray")
    import kinds
    from cosmic_ray.mutating import mutate_code

    for kind in kinds.KINDS.values():
        for example in kind.examples():
            changed = mutate_code(example.pre_mutation_code, kind(), example.occurrence)
            assert changed == example.post_mutation_code


@pytest.mark.parametrize("each", mutants_page.equivalents(), ids=lambda each: each["was"])
def test_what_is_called_equivalent_is_still_there_and_has_a_reason(each: dict) -> None:
    lines = (SOURCE / each["module"]).read_text("utf-8").splitlines()
    assert each["was"] in " ".join(line.strip() for line in lines)
    assert each["now"]
    assert len(each["why"]) > 20


def test_nearly_all_mutants_are_killed_and_few_called_equivalent() -> None:
    _, _, mutants = mutants_page.load()
    assert len(mutants) >= 400
    assert mutants_page.share_killed(mutants) >= mutants_page.LEAST_KILLED
    assert mutants_page.share_equivalent(mutants) <= mutants_page.MOST_EQUIVALENT
