"""One signature for N sealed shares: a hash tree over them, with a short path for each.

Leaves carry their index, and leaves and inner nodes are tagged apart: a path proves one share for one holder.
An odd node moves up unpaired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HEAD, TAIL = 1152, 16
"""Of an envelope: the sender's key of any suite and the nonce lie in its head; its tail is the AEAD's tag."""


def leaf(index: int, envelope: bytes) -> bytes:
    """The leaf of the sealed share for holder `index`.

    Differs from our design: head and tail stand for the whole. Without the key that the head leads to, nobody
    finds another body for the same tag; the holder itself could, and would deceive only itself.
    """
    size = len(envelope)
    ends = envelope if size <= HEAD + TAIL else envelope[:HEAD] + envelope[-TAIL:]
    prefix = b"\x00" + index.to_bytes(4, "big") + size.to_bytes(8, "big")
    return hashlib.sha256(prefix + ends).digest()


def _inner(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """All levels, from the leaves up to the root."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [_inner(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)]
        levels.append(pairs + below[len(pairs) * 2 :])
    return levels


def path(levels: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """The siblings from the leaf to the root."""
    siblings = []
    for level in levels[:-1]:
        if index ^ 1 < len(level):
            siblings.append(level[index ^ 1])
        index //= 2
    return tuple(siblings)


def root_from(index: int, count: int, node: bytes, siblings: Sequence[bytes]) -> bytes | None:
    """The root that this leaf and path lead to, or None when the path has a wrong length."""
    used, known = 0, len(siblings)
    while count > 1:
        if index ^ 1 < count:
            if used == known:
                return None
            sibling = siblings[used]
            used += 1
            node = _inner(sibling, node) if index & 1 else _inner(node, sibling)
        index, count = index // 2, (count + 1) // 2
    return node if used == known else None
