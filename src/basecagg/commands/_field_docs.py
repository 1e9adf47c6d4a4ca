"""The strings that stand below fields and names in the source: one text for readers, pages and `--settings`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType


def field_docs(kind: type) -> dict[str, str]:
    """The string below each field of a class that has one."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return dict(_documented(definition.body))


def name_docs(module: ModuleType) -> dict[str, str]:
    """The string below each name of a module that has one."""
    return dict(_documented(ast.parse(inspect.getsource(module)).body))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                yield name, " ".join(doc.split())
