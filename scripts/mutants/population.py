"""All the ways to change the files in scope, and a sample of them."""

from __future__ import annotations

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from parso.tree import NodeOrLeaf


@dataclass(frozen=True)
class Change:
    """A way to change a file: the kind, and how many places of this kind come before."""

    module: str
    """The file, below the source folder."""
    place: tuple[int, int]
    """Line and column."""
    where: str
    """The function or class; '' for the file itself."""
    kind: str
    occurrence: int


@dataclass(frozen=True)
class Mutant:
    """A change that was made, and the code it gives."""

    change: Change
    was: str
    now: str
    code: str

    @property
    def module(self) -> str:
        """The file that is changed."""
        return self.change.module

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        line, column = self.change.place
        return f"{self.module}:{line}:{column} {self.change.kind}: {self.was} → {self.now}"


VALUES = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
LEFT_OUT = (
    "/ExceptionReplacer",
    *(f"_{value}_{same}" for value in VALUES for same in ("Is", "IsNot")),
)
"""Cosmic Ray's handler operator fails on dotted names: ours takes its place. `==` to `is` and the like are left
out, for whether equal values are one object is the interpreter's choice, not ours."""

Places = dict[tuple[str, tuple[int, int]], list[Change]]


def places_of(source: Path, modules: Iterable[str]) -> Places:
    """Every place in these files that can be changed, and how."""
    places: Places = defaultdict(list)
    for module in modules:
        for change in _changes(module, (source / module).read_text("utf-8")):
            places[module, change.place].append(change)
    return places


def sample(source: Path, places: Places, seed: int, size: int) -> list[Mutant]:
    """Places drawn from all, and one mutant of each: an operator with many rivals is not drawn more often."""
    dice = random.Random(seed)
    drawn = dice.sample(sorted(places), len(places))
    ways = (dice.sample(places[place], len(places[place])) for place in drawn)
    firsts = (next(filter(None, (mutate(source, way) for way in some)), None) for some in ways)
    return list(islice(filter(None, firsts), size))


def mutate(source: Path, change: Change) -> Mutant | None:
    """Make the change; None if the code does not compile, or is the same."""
    before = (source / change.module).read_text("utf-8")
    operator = cosmic_ray.plugins.get_operator(change.kind)()
    after = mutate_code(before, operator, change.occurrence)
    if after is None or _meaning(after) in {None, _meaning(before)}:
        return None
    return Mutant(change, *_difference(before, after), after)


def _changes(module: str, code: str) -> Iterator[Change]:
    nodes = list(ast_nodes(get_ast(code)))
    for kind in sorted(cosmic_ray.plugins.operator_names()):
        operator = cosmic_ray.plugins.get_operator(kind)
        if operator.arguments() or kind.endswith(LEFT_OUT):
            continue
        spots = (
            (node, start) for node in nodes for start, _ in operator().mutation_positions(node)
        )
        for occurrence, (node, start) in enumerate(spots):
            if not _never_run(node):
                where = ASTQuery(node).get_definition_name() or ""
                yield Change(module, start, where, kind, occurrence)


def _never_run(node: NodeOrLeaf) -> bool:
    """Whether this is the annotation of a parameter, a result or a local name, or the `*` of a signature."""
    if node.parent is not None and node.parent.type == "parameters":
        return True
    while node.parent is not None:
        parent = node.parent
        if parent.type == "tfpdef" and node is not parent.children[0]:
            return True
        if parent.type == "funcdef" and node is parent.annotation:
            return True
        if parent.type == "annassign" and node is parent.children[1]:
            return not _in_class(parent)
        node = parent
    return False


def _in_class(node: NodeOrLeaf) -> bool:
    """Whether the innermost definition around it is a class: messages are checked by their annotations."""
    while node.parent is not None and node.parent.type not in {"funcdef", "classdef"}:
        node = node.parent
    return node.parent is not None and bool(node.parent.type == "classdef")


@lru_cache(maxsize=64)
def _meaning(code: str) -> str | None:
    try:
        compile(code, "mutant", "exec")
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _difference(source: str, code: str) -> tuple[str, str]:
    """The changed lines before and after."""
    lines = difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm="")
    changed: dict[str, list[str]] = {"-": [], "+": []}
    for line in list(lines)[2:]:
        if line[0] in changed:
            changed[line[0]].append(line[1:].strip())
    return " ".join(changed["-"]), " ".join(changed["+"])
