"""One signature for N sealed shares: a hash tree over them, with a short path for each that needs one.

Leaves carry their index, and leaves and inner nodes are tagged apart: a path proves one share for one holder.
A node has up to four children, for time is spent per level; one without siblings moves up as it is.

Where an envelope proves by itself who sealed it, a holder needs no path. It is so with X25519: all envelopes of
a dealing are sealed with one short-lived key of the dealer, at the beginning of each, and only that key's owner
and the holder itself can make one that opens there. So the root that is signed is a hash of that key and of the
tree's top, and the top is all of a parcel's path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from basecagg.protocol.messages import Suite

HEAD, TAIL = 1184, 16
"""Of an envelope: what leads to its key, in any suite, and the nonce lie in the head; the tail is the tag."""
CHILDREN = 4
_SENDER = 32
"""Bytes of the sender's key, in the suite where it proves who sealed an envelope."""


def sender_of(envelope: bytes, suite: Suite) -> bytes:
    """The key that proves who sealed the envelope; empty in a suite where anybody can seal."""
    return envelope[:_SENDER] if suite == "x25519" else b""


def root_of(leaves: Sequence[bytes], sender: bytes) -> bytes:
    """What the dealer signs for all its envelopes."""
    return _bound(sender, tree(leaves)[-1][0])


def proof(levels: Sequence[Sequence[bytes]], index: int, root: bytes) -> tuple[bytes, ...]:
    """What leads one envelope to the signed root: the path to the top, or the top."""
    top = levels[-1][0]
    return path(levels, index) if top == root else (top,)


def root_by(
    proof: Sequence[bytes], index: int, count: int, envelope: bytes, suite: Suite
) -> bytes | None:
    """The root that an envelope and its proof lead to, or None when the proof has a wrong length."""
    sender = sender_of(envelope, suite)
    if not sender:
        return root_from(index, count, leaf(index, envelope), proof)
    return _bound(sender, proof[0]) if len(proof) == 1 else None


def _bound(sender: bytes, top: bytes) -> bytes:
    return hashlib.sha256(b"\x02" + sender + top).digest() if sender else top


def leaf(index: int, envelope: bytes) -> bytes:
    """The leaf of the sealed share for holder `index`.

    Differs from our design: head and tail stand for the whole. Without the key that the head leads to, nobody
    finds another body for the same tag; the holder itself could, and would deceive only itself.
    """
    size = len(envelope)
    ends = envelope if size <= HEAD + TAIL else envelope[:HEAD] + envelope[-TAIL:]
    prefix = b"\x00" + index.to_bytes(4, "big") + size.to_bytes(8, "big")
    return hashlib.sha256(prefix + ends).digest()


def _inner(children: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + children).digest()


def tree(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """All levels, from the leaves up to the root."""
    levels = [list(leaves)]
    while len(below := levels[-1]) > 1:
        families = [below[first : first + CHILDREN] for first in range(0, len(below), CHILDREN)]
        levels.append([_inner(b"".join(f)) if len(f) > 1 else f[0] for f in families])
    return levels


def path(levels: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """The siblings from the leaf to the root."""
    siblings: list[bytes] = []
    for level in levels[:-1]:
        first = index - index % CHILDREN
        siblings += level[first:index]
        siblings += level[index + 1 : first + CHILDREN]
        index //= CHILDREN
    return tuple(siblings)


def root_from(index: int, count: int, node: bytes, siblings: Sequence[bytes]) -> bytes | None:
    """The root that this leaf and path lead to, or None when the path has a wrong length."""
    used = 0
    while count > 1:
        place = index % CHILDREN
        others = min(CHILDREN, count - index + place) - 1
        family = [*siblings[used : used + others]]
        if len(family) < others:
            return None
        if others:
            family.insert(place, node)
            node = _inner(b"".join(family))
        used, index, count = used + others, index // CHILDREN, -(-count // CHILDREN)
    return node if used == len(siblings) else None
