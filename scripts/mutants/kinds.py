"""Kinds of change that Cosmic Ray does not know: words, statements, entries, exceptions.

Our tables are made of words, our checks are calls that raise, and what is signed is a tuple. Cosmic Ray's own
operators change numbers, comparisons, conditions, loops and decorators; so four kinds are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import cosmic_ray.plugins
import parso
from cosmic_ray.operators.operator import Example, Operator
from parso.tree import BaseNode, Leaf, NodeOrLeaf

Span = tuple[tuple[int, int], tuple[int, int]]


class ChangeWord(Operator):  # type: ignore[misc]
    """A string becomes another one. Docstrings stay, and so do sentences that are raised: people read them."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        """Strings, and the fixed parts of formatted ones."""
        if node.type in {"string", "fstring_string"} and not _for_people(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Leaf, index: int) -> Leaf:
        """Put XX before the first character."""
        begin = 0
        if node.type == "string":
            quote = node.value.lstrip("rRbBuU")
            begin = len(node.value) - len(quote) + (3 if quote.startswith(('"""', "'''")) else 1)
        node.value = f"{node.value[:begin]}XX{node.value[begin:]}"
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """For Cosmic Ray."""
        return (
            Example('x = "word"', 'x = "XXword"'),
            Example('x = b"word"', 'x = b"XXword"'),
            Example('x = f"word {y}"', 'x = f"XXword {y}"'),
        )


class LeaveOutStatement(Operator):  # type: ignore[misc]
    """A call, a raise, a deletion or an assignment to a part of something does not happen."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        """Statements that stand alone and define no name."""
        if node.type == "simple_stmt" and _does_something(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Put `pass` in its place."""
        node.children[0] = parso.parse(f"{node.children[0].get_first_leaf().prefix}pass")
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """For Cosmic Ray."""
        return (
            Example("check(x)\n", "pass\n"),
            Example("raise Error(x)\n", "pass\n"),
            Example("self.x = 1\n", "pass\n"),
            Example("x += 1\n", "pass\n"),
        )


class LeaveOutEntry(Operator):  # type: ignore[misc]
    """One entry of a dictionary, tuple, list or set that is written down is missing."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterable[Span]:
        """The entries, if there are two or more: all at once, for the node changes while they are counted."""
        places = node.children if _entries(node) else ()
        return [(places[first].start_pos, places[last].end_pos) for first, last in _entries(node)]

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Take out the entry and the comma after it."""
        first, last = _entries(node)[index]
        del node.children[first : last + 2]
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """For Cosmic Ray."""
        return (
            Example("x = {1: 2, 3: 4}", "x = { 3: 4}"),
            Example("x = (a, b, c)", "x = (a, c)", occurrence=1),
            Example("x = {'a', 'b'}", "x = {'a',}", occurrence=1),
        )


class MissException(Operator):  # type: ignore[misc]
    """A handler does not know one of its exceptions."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterable[Span]:
        """The names after `except`, dotted ones too."""
        return [(name.start_pos, name.end_pos) for _, name in _caught(node)]

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Put there an exception that nobody raises."""
        holder, name = _caught(node)[index]
        place = holder.children.index(name)
        holder.children[place] = parso.parse(f"{name.get_first_leaf().prefix}ZeroDivisionError")
        return node

    @classmethod
    def examples(cls) -> Iterable[Example]:
        """For Cosmic Ray."""
        code = "try: pass\nexcept (a.B, C): pass"
        return (
            Example(code, "try: pass\nexcept (ZeroDivisionError, C): pass"),
            Example(code, "try: pass\nexcept (a.B, ZeroDivisionError): pass", occurrence=1),
            Example(
                "try: pass\nexcept A as e: pass", "try: pass\nexcept ZeroDivisionError as e: pass"
            ),
        )


_ALL = (ChangeWord, LeaveOutEntry, LeaveOutStatement, MissException)
KINDS = {kind.__name__: kind for kind in _ALL}


class Provider:
    """These kinds, as Cosmic Ray asks for them."""

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(KINDS)

    def __getitem__(self, name: str) -> type[Operator]:
        """One of them."""
        return KINDS[name]


def register() -> None:
    """Let Cosmic Ray find them, as if they were an installed plugin of the name `basecagg`."""
    cosmic_ray.plugins.OPERATOR_PROVIDERS["basecagg"] = Provider()


def _for_people(leaf: NodeOrLeaf) -> bool:
    whole = leaf.parent if leaf.type == "fstring_string" else leaf
    if whole.parent.type in {"simple_stmt", "strings"} and _stands_alone(whole):
        return True
    return _inside(leaf, "raise_stmt") and (leaf.type == "fstring_string" or " " in leaf.value)


def _stands_alone(node: NodeOrLeaf) -> bool:
    outer = node.parent if node.parent.type == "strings" else node
    return bool(outer.parent.type == "simple_stmt")


def _inside(node: NodeOrLeaf, kind: str) -> bool:
    while node.parent is not None:
        node = node.parent
        if node.type == kind:
            return True
    return False


def _does_something(statement: NodeOrLeaf) -> bool:
    if statement.type in {"raise_stmt", "del_stmt"}:
        return True
    if statement.type in {"atom_expr", "power"}:
        return bool(statement.children[-1].type == "trailer")
    if statement.type != "expr_stmt":
        return False
    target, sign = statement.children[:2]
    return target.type in {"atom_expr", "power"} or getattr(sign, "value", "=") != "="


def _entries(node: NodeOrLeaf) -> list[tuple[int, int]]:
    """First and last child of every entry."""
    if node.type not in {"dictorsetmaker", "testlist_comp"}:
        return []
    if any(child.type in {"sync_comp_for", "comp_for"} for child in node.children):
        return []
    commas = [i for i, child in enumerate(node.children) if getattr(child, "value", "") == ","]
    begins, ends = [0, *(i + 1 for i in commas)], [*(i - 1 for i in commas), len(node.children) - 1]
    found = [(first, last) for first, last in zip(begins, ends, strict=True) if first <= last]
    return found if len(found) > 1 else []


def _caught(node: NodeOrLeaf) -> list[tuple[BaseNode, NodeOrLeaf]]:
    """The exceptions of a handler, each with the node that holds it."""
    if node.type != "except_clause":
        return []
    several = node.children[1]
    if several.type != "atom":
        return [(node, several)]
    names = several.children[1]
    return [(names, name) for name in names.children[::2]] if names.type == "testlist_comp" else []
