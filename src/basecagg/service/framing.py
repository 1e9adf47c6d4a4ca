"""HTTP bodies: several frames in one, each with its number and length in front; large ones in portions."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from basecagg.errors import ChannelError

_HEAD = struct.Struct(">QI")
PORTION = 512 * 2**10
"""Bytes that are handed on at one time: letters that are fetched together, or most models, in one go."""
Body: TypeAlias = bytes | Sequence[bytes]
"""A body, or the pieces of which it consists: to join large ones would copy them."""


class Numbered(NamedTuple):
    """A frame with its number in a mailbox."""

    number: int
    frame: bytes


def join(letters: Iterable[Numbered]) -> Iterator[bytes]:
    """The pieces of a body; no frame is copied."""
    for number, frame in letters:
        yield _HEAD.pack(number, len(frame))
        yield frame


def split(body: bytes) -> list[Numbered]:
    """The frames in a body, or `ChannelError`."""
    letters, at = list[Numbered](), 0
    while at < len(body):
        if len(body) - at < _HEAD.size:
            raise ChannelError("the body ends within the head of a frame")
        number, length = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        if len(body) - at < length:
            raise ChannelError(f"the body ends within a frame of {length} bytes")
        letters.append(Numbered(number, body[at : at + length]))
        at += length
    return letters


def length_of(body: Body) -> int:
    """How many bytes it has."""
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


def portions(body: Body) -> Iterator[bytes | memoryview]:
    """A body without a copy of it: as a whole if it is short, else one portion after the other."""
    pieces = (body,) if isinstance(body, bytes) else body
    if length_of(body) <= PORTION:
        yield b"".join(pieces)
        return
    for piece in pieces:
        view = memoryview(piece)
        yield from (view[at : at + PORTION] for at in range(0, len(view), PORTION))
