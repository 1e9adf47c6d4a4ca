"""Options of commands as tables: each field of a class is an option, and the string below it is its help.

A field's annotation may say, besides what is typed: how that is read (whatever click takes for a type), how
the option is called if not like the field ("--url"), what its value is called in the help ("URL"), and what
else click has to know (a dict). A tuple may be given several times, and what has no default must be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import click

from basecagg.commands._field_docs import field_docs

Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
POSITIVE = click.FloatRange(min=0, min_open=True)
Folder: TypeAlias = Annotated[str, click.Path(path_type=Path, file_okay=False), "DIR"]
File: TypeAlias = Annotated[str, click.Path(path_type=Path, dir_okay=False), "FILE"]
Count: TypeAlias = Annotated[int, click.IntRange(min=1)]
Part: TypeAlias = Annotated[float, click.FloatRange(0, 1, min_open=True)]
Delta: TypeAlias = Annotated[float, click.FloatRange(0, 1, min_open=True, max_open=True), "δ"]
_OLDER = "Where the counter is kept that shows whether {store} is an older copy; leave it out of backups."
Anchors: TypeAlias = Annotated[Folder | None, {"help": _OLDER}]
Seconds: TypeAlias = Annotated[float, click.FloatRange(min=0), "SECONDS"]


def options(table: type, **words: object) -> Option:
    """All options of a table as one decorator, in its order; `words` stand in braces in its strings."""
    helps, defaults = field_docs(table), vars(table)
    rows = []
    for name, hint in get_type_hints(table, include_extras=True).items():
        default = {"default": defaults[name]} if name in defaults else {"required": True}
        rows.append(_option(name, hint, words, {"help": helps.get(name), **default}))
    return stacked(*rows)


def stacked(*rows: Option) -> Option:
    """Several options as one decorator, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for row in reversed(rows):
            function = row(function)
        return function

    return decorate


def _option(name: str, hint: Any, words: dict[str, object], settings: dict[str, Any]) -> Option:
    flag = f"--{name.replace('_', '-')}"
    for said in _said(hint):
        match said:
            case str() if said.startswith("--"):
                flag = said
            case str():
                settings["metavar"] = said
            case dict():
                settings |= said
            case _:
                settings["type"] = said
    settings["help"] = settings["help"].format(**words)
    return click.option(flag, name, **settings)


def _said(hint: Any) -> Iterator[Any]:
    """The type in an annotation and what is said about it, the more precise the later."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield click.Choice(arguments)
    elif origin is tuple:
        yield {"multiple": True}
        yield from _said(arguments[0])
    elif origin in (Union, UnionType):
        yield from _said(next(each for each in arguments if each is not NoneType))
    elif origin is Annotated:
        yield from _said(arguments[0])
        yield from arguments[1:]
    else:
        yield {"is_flag": True} if hint is bool else hint
