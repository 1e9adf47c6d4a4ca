"""What the nodes' stores say about answers, read while the nodes use them."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from basecagg.protocol.stored import HeldShare, Progress, parse

_RECORDS = "SELECT key, value FROM records WHERE kind = ?"


def held_shares(state_folder: Path) -> dict[str, HeldShare]:
    """Every mask that a node knows as a holder. One with a digest was answered for that request."""
    return {key: parse(value, HeldShare) for key, value in _records(state_folder, "held")}


def holder_version(state_folder: Path) -> int:
    """The highest version of a request that the node has answered, or -1."""
    found = [parse(value, Progress).version for _, value in _records(state_folder, "progress")]
    return max(found, default=-1)


OUTLIVING = {"name", "operator", "key", "highest", "membership", "salt", "sent"}
"""What a node keeps of a run that is over: who it was, that it was there, and fingerprints of its updates."""


def kinds_of_records(folder: Path) -> set[str]:
    """The kinds of all records that are kept below a folder."""
    kinds: set[str] = set()
    for path in folder.rglob("state.db"):
        with closing(sqlite3.connect(path)) as connection:
            kinds |= {kind for (kind,) in connection.execute("SELECT kind FROM records")}
    return kinds


def _records(state_folder: Path, kind: str) -> Iterator[tuple[str, bytes]]:
    for path in state_folder.glob("state.db"):
        # A store that is just being made cannot be read yet: the next look finds it.
        with suppress(sqlite3.OperationalError):
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                found = connection.execute(_RECORDS, (kind,)).fetchall()
            yield from found


class AnswerBook:
    """Every answer that was seen in any store at any time: a later look does not forget an earlier one."""

    def __init__(self) -> None:
        self.requests: dict[str, set[bytes]] = defaultdict(set)
        """The requests that a mask was answered for, by the mask's name."""
        self.masks: dict[bytes, set[str]] = defaultdict(set)
        """The masks that were answered for a request."""
        self.answers: dict[tuple[int, bytes], set[str]] = defaultdict(set)
        """The masks that one node answered for a request."""

    def look(self, node: int, held: dict[str, HeldShare]) -> None:
        """Note what one node's store says now."""
        for mask, share in held.items():
            if share.digest:
                self.requests[mask].add(share.digest)
                self.masks[share.digest].add(mask)
                self.answers[node, share.digest].add(mask)

    def violations(self, buffer_size: int) -> list[str]:
        """Everything that must not be: a mask in two sums, a sum of another size, a part of a sum."""
        twice = [
            f"{mask} was answered for {len(digests)} requests"
            for mask, digests in self.requests.items()
            if len(digests) > 1
        ]
        sizes = [
            f"a request has {len(masks)} masks"
            for masks in self.masks.values()
            if len(masks) != buffer_size
        ]
        parts = [
            f"node {node} answered for {len(masks)} masks of a request of {len(self.masks[digest])}"
            for (node, digest), masks in self.answers.items()
            if masks != self.masks[digest]
        ]
        return twice + sizes + parts
