"""Bulk that is over and goes when more of its kind comes, so that the store writes the new over the old.

Deleted by itself it would be written twice: as zeros now, and as what comes next in its place.
"""

from __future__ import annotations

from collections.abc import Iterable


class Overwritten:
    """The records of one kind that nobody needs any more, oldest first."""

    def __init__(self, over: Iterable[str]) -> None:
        self._over = dict.fromkeys(over)

    def add(self, keys: Iterable[str]) -> None:
        """These are over."""
        self._over |= dict.fromkeys(keys)

    def discard(self, key: str) -> None:
        """This one goes by itself."""
        self._over.pop(key, None)

    def give_way(self) -> list[str]:
        """What goes with a record that comes now: one for one, so that each finds a place of its size."""
        if not self._over:
            return []
        oldest = next(iter(self._over))
        del self._over[oldest]
        return [oldest]
