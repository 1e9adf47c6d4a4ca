"""One word for one thing, and a place for each: class names, and the rooms of the house."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "basecagg"
SAME_THING: set[str] = set()
"""Names that stand twice on purpose, because they are the same thing in two places."""


def doubled(root: Path) -> dict[str, list[str]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_class_name_stands_twice() -> None:
    found = doubled(SOURCE)
    assert not {name: places for name, places in found.items() if name not in SAME_THING}
    assert found.keys() >= SAME_THING  # what is no longer doubled leaves the list


def test_a_name_that_stands_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("class Thing: ...\n")
    (tmp_path / "there.py").write_text("def make():\n    class Thing: ...\n")
    assert doubled(tmp_path) == {"Thing": ["here.py:1", "there.py:2"]}


def test_no_file_of_tests_has_the_name_of_another() -> None:
    """pytest knows them by their names alone, and would run none of them."""
    found = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert not [name for name, count in found.items() if count > 1]


def test_the_table_of_rooms_has_every_room() -> None:
    guide = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    modules = {path.stem for path in SOURCE.glob("[!_]*.py")}
    missing = {room for room in (rooms - {"."}) | modules if f"`{room}`" not in guide}
    assert not missing - INNER


INNER = {"maths/kernels"}
"""Rooms within a room that nobody outside it needs to know."""


# --- texts about the code, beside it -----------------------------------------------------------------


def lost_words(root: Path) -> list[str]:
    """Classes that the text above a file names, and that the file has nothing to do with."""
    found = []
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        said = ast.get_docstring(ast.parse(source)) or ""
        below = source.split('"""', 2)[-1]
        for name in re.findall(r"`([A-Z][a-z]+\w*)`", said):
            if path.name != "__init__.py" and not re.search(rf"\b{name}\b", below):
                found.append(f"{path.relative_to(root)}: {name}")
    return found


def test_the_text_above_a_file_names_what_is_in_it() -> None:
    assert lost_words(SOURCE) == []


def test_a_class_that_was_renamed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text('"""`Thing` does it."""\n\nclass Other: ...\n')
    assert lost_words(tmp_path) == ["here.py: Thing"]


def test_the_kernels_room_lists_its_files() -> None:
    room = SOURCE / "maths" / "kernels"
    text = (room / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+\.py)` \|", text, re.M)
    assert sorted(listed) == sorted(
        path.name for path in room.glob("*.py") if path.name != "__init__.py"
    )
