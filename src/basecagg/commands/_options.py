"""Options of commands as tables: each field of a class is an option, explained as in `basecagg.options`.

The type of a field says how it is read: its limits, or a function from text. What else click has to know is
noted beside the type: another flag ("--url"), another name of the value ("URL"). A tuple may be given several
times, and what has no default must be given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import click

from basecagg.errors import ParameterError
from basecagg.maths.staleness import StalenessFunction, written
from basecagg.options import REQUIRED, Range, Setting, settings_of

Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
Folder: TypeAlias = Annotated[str, click.Path(path_type=Path, file_okay=False), "DIR"]
File: TypeAlias = Annotated[str, click.Path(path_type=Path, dir_okay=False), "FILE"]
_SYMBOL = re.compile(r"(\S{1,5}): ")
"""How the meaning of a number begins that has one."""


class AnchorOptions:
    """Of every command that has a store."""

    anchors: Folder | None = None
    """Where the counter is kept that shows whether the store is an older copy; leave it out of backups."""


def options(table: type) -> Option:
    """All options of a table as one decorator: first those that must be given."""
    found = settings_of(table)
    found.sort(key=lambda each: each.default is not REQUIRED)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(found):
            function = _option(each)(function)
        return function

    return decorate


def _option(setting: Setting) -> Option:
    flag, said = f"--{setting.name.replace('_', '-')}", f"{setting.meaning} {setting.why}".strip()
    words: dict[str, Any] = {"help": said, "default": setting.default}
    if setting.default is REQUIRED:
        words = {"help": said, "required": True}
    if symbol := _SYMBOL.match(said):
        words["metavar"] = symbol[1]
    for note in _notes(setting.kind):
        match note:
            case str() if note.startswith("--"):
                flag = note
            case str():
                words["metavar"] = note
            case Range():
                words["type"] = _in_range(words.get("type"), note)
            case {"choices": choices}:
                words |= {"type": click.Choice(choices), "metavar": None}
            case dict():
                words |= note
            case _:
                words["type"] = note
    return click.option(flag, setting.name, **words)


def _in_range(kind: object, limits: Range) -> click.IntRange | click.FloatRange:
    """Click says the limits in its help; it has no word for "finite"."""
    least, most = (each if math.isfinite(each) else None for each in limits[:2])
    if kind is int:
        return click.IntRange(least, most)  # type: ignore[arg-type]
    return click.FloatRange(least, most, limits.above, limits.below and most is not None)


def _notes(kind: Any) -> Iterator[Any]:
    """A type and what is noted beside it, the more precise the later."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield {"choices": arguments}
    elif origin is tuple:
        yield {"multiple": True}
        yield from _notes(arguments[0])
    elif origin in (Union, UnionType):
        yield from _notes(next(each for each in arguments if each is not NoneType))
    elif origin is Annotated:
        yield from _notes(arguments[0])
        yield from arguments[1:]
    else:
        yield {"is_flag": True} if kind is bool else kind


# --- how values are read ------------------------------------------------------------------------------


class Portion(NamedTuple):
    """A number of users, or a part of all of them."""

    number: Decimal
    is_part: bool

    def of(self, total: int) -> int:
        """Count them among `total`; a part is rounded up, because to withstand one more is safe."""
        return math.ceil(self.number * total) if self.is_part else int(self.number)


def portion(text: str) -> Portion:
    """Read 30 as a number, 0.3 and 30% as a part."""
    is_part = text.endswith("%") or "." in text
    number = _decimal(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not (0 <= number <= 1 if is_part else number == number.to_integral_value()):
        raise click.BadParameter(f"'{text}' is neither a number (30) nor a part (0.3 or 30%)")
    return Portion(number, is_part)


def size(text: str) -> int:
    """Read 1000000 or 1e6."""
    number = _decimal(text)
    if number != number.to_integral_value():
        raise click.BadParameter(f"'{text}' is not a whole number")
    return int(number)


def span(text: str) -> tuple[int, int]:
    """Read 100:200 as the numbers from 100 up to 200."""
    start, colon, stop = text.partition(":")
    if not colon or not 0 <= size(start) < size(stop):
        raise click.BadParameter(f"'{text}' is not FROM:TO with 0 ≤ FROM < TO, such as 100:200")
    return size(start), size(stop)


def staleness(text: str) -> StalenessFunction:
    """Read constant, polynomial:1 or hinge:10:4."""
    try:
        return written(text)
    except ParameterError as error:
        raise click.BadParameter(str(error)) from error


def moment(text: str) -> int:
    """Read 2026-12-31 or 2026-12-31T18:00, by this machine's clock unless an offset or Z says otherwise."""
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter(f"'{text}' is no moment like 2026-12-31T18:00") from None


def digits(text: str) -> bytes:
    """Read a key or a hash: 64 hexadecimal digits."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise click.BadParameter(f"'{text}' is not a key or hash: 64 hexadecimal digits")
    return found


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise click.BadParameter(f"'{text}' is not a number") from None
    if not number.is_finite():
        raise click.BadParameter(f"'{text}' is not a finite number")
    return number
