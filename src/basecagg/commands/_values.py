"""Kinds of values that are typed on the command line, for click's `type=`."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import click

from basecagg.maths.staleness import StalenessFunction, forms, of_shape


class Portion(NamedTuple):
    """So many users, or such a part of all of them."""

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
    kind, *numbers = text.split(":")
    try:
        return of_shape(kind, *map(float, numbers))
    except ValueError as error:  # of float, or a broken rule
        raise click.BadParameter(f"'{text}' is not {forms()} with numbers ≥ 0") from error


def moment(text: str) -> int:
    """Read 2026-12-31 or 2026-12-31T18:00, by this machine's clock unless an offset or Z says otherwise."""
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter(f"'{text}' is no moment like 2026-12-31T18:00") from None


def public_key(text: str) -> bytes:
    """Read 64 hexadecimal digits."""
    return _digits(text, "a key")


def digest(text: str) -> bytes:
    """Read 64 hexadecimal digits."""
    return _digits(text, "a hash")


def _digits(text: str, what: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise click.BadParameter(f"'{text}' is not {what}: 64 hexadecimal digits")
    return found


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise click.BadParameter(f"'{text}' is not a number") from None
    if not number.is_finite():
        raise click.BadParameter(f"'{text}' is not a finite number")
    return number
