"""One signature for N sealed shares: a hash tree over them, with a short path for each.

Leaves carry their index, and leaves and inner nodes are tagged apart: a path proves one share for one holder.
An odd node moves up unpaired.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf(index: int, content: bytes) -> bytes:
    """The leaf of the share for holder `index`."""
    node = hashlib.sha256(b"\x00" + index.to_bytes(4, "big"))
    node.update(content)
    return node.digest()


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
    rest = list(siblings)
    while count > 1:
        if index ^ 1 < count:
            if not rest:
                return None
            sibling = rest.pop(0)
            node = _inner(sibling, node) if index & 1 else _inner(node, sibling)
        index, count = index // 2, (count + 1) // 2
    return None if rest else node
