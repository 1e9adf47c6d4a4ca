"""Several frames in one HTTP body: each with its number and length in front."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from basecagg.errors import ChannelError

_HEAD = struct.Struct(">QI")


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
