"""Every way to change one thing in a message."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

_GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
_OTHER = {
    "opened": "burned",
    "burned": "opened",
    "x25519": "mlkem768-x25519",
    "certified": "honest-server",
    "stochastic": "nearest",
    "momentum": "sgd",
}


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Each change with where it is, such as `.tickets[1].mask.serial`."""
    if isinstance(value, msgspec.Struct):
        yield from _of_struct(value)
    elif dataclasses.is_dataclass(value):
        yield from _of_dataclass(value)
    elif isinstance(value, tuple):
        yield from _of_tuple(value)
    else:
        yield from (("", other) for other in _others(value) if other != value)


def _of_struct(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(type(value))
    for field in value.__struct_fields__:
        old = getattr(value, field)
        new = list(changes(old))
        if type(None) in get_args(hints[field]):
            new.append((" = 32 bytes", bytes(32)) if old is None else (" = None", None))
        if field == "signature":
            new.append((" + group order", _malleable(old)))
        for where, other in new:
            changed = copy.copy(value)  # past its own rules: the signature alone must hold
            msgspec.structs.force_setattr(changed, field, other)
            yield f".{field}{where}", changed


def _of_dataclass(value: Any) -> Iterator[tuple[str, Any]]:
    """Past its own rules: the signature alone must hold."""
    for field in dataclasses.fields(value):
        for where, other in changes(getattr(value, field.name)):
            changed = copy.copy(value)
            object.__setattr__(changed, field.name, other)
            yield f".{field.name}{where}", changed


def _of_tuple(value: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for index, old in enumerate(value):
        for where, new in changes(old):
            yield f"[{index}]{where}", (*value[:index], new, *value[index + 1 :])
    yield " shorter", value[:-1]
    yield " longer", (*value, *value[-1:])
    if value[::-1] != value:
        yield " reversed", value[::-1]


def _others(value: Any) -> list[Any]:
    if isinstance(value, bytes):
        flips = [_flip(value, place) for place in (0, len(value) // 2, -1)] if value else []
        return [*flips, value[:-1], value + b"\0", b""]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [math.nextafter(value, math.inf)]
    if isinstance(value, str):
        return [_OTHER.get(value, f"{value}x")]
    assert value is None, f"say how to change a {type(value).__name__}"
    return []


def _flip(value: bytes, place: int) -> bytes:
    flipped = bytearray(value)
    flipped[place] ^= 1
    return bytes(flipped)


def _malleable(signature: bytes) -> bytes:
    """Another signature of the same statement, if a verifier does not insist on the smallest S."""
    number = int.from_bytes(signature[32:], "little") + _GROUP_ORDER
    return signature[:32] + number.to_bytes(32, "little")
