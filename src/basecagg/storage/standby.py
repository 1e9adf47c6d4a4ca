"""A server that stands by: it follows the marks of the one that has the database, to go on where that ends.

An anchor shows whether a database is an older copy of itself, and the standby's machine has none of its own.
But what a server writes while it is alive is current: so long the standby's anchors follow the marks in the
database. When that server falls silent the standby takes its last marks for current too, unless it lost sight
of the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import inspect

from basecagg.errors import PassingFault
from basecagg.storage import lease
from basecagg.storage.anchor import Anchor, Mark
from basecagg.storage.lease import Lease
from basecagg.storage.server import anchor_of, connect, executing, marks, transaction

_PAUSE = 0.3
"""Seconds between two looks."""
_SIGHT = 2.0
"""Seconds without a look after which anything may have happened to the database."""


class Standby:
    """Waits for a namespace that somebody else has, and follows all anchors meanwhile."""

    def __init__(self, url: str, namespace: str, anchors: Path) -> None:
        self._engine = connect(url)
        self._lease = Lease(namespace)
        self._folder = anchors
        self._anchors: dict[str, Anchor] = {}
        self._seen = float("-inf")
        """When somebody was last seen to have it."""

    def wait(self, tell: Callable[[str], None]) -> None:
        """Return when the namespace can be taken; `tell` hears who has it, or what is wrong."""
        said = ""
        try:
            while news := self._look_patiently():
                if news != said:
                    tell(said := news)
                time.sleep(_PAUSE)
        finally:
            self._engine.dispose()
            for each in self._anchors.values():
                each.close()

    def _look_patiently(self) -> str:
        try:
            return self.look()
        except PassingFault as fault:
            return str(fault)

    def look(self) -> str:
        """Who has the namespace; nothing if nobody has it any more."""
        with transaction(self._engine, "look at") as connection:
            if not inspect(connection).has_table(lease.NAME):
                return ""  # nobody has ever been here
            owner, found = self._lease.owner(executing(connection)), marks(connection)
        now = time.monotonic()
        if owner:
            self._follow(found)
            self._seen = now
        elif now - self._seen <= _SIGHT:
            self._follow(
                {name: mark for name, mark in found.items() if self._continues(name, mark)}
            )
        return owner

    def _continues(self, namespace: str, mark: Mark) -> bool:
        """Whether this is the life that was seen, and not earlier in it."""
        anchor = self._anchors.get(namespace)
        last = anchor.mark if anchor else None
        return last is not None and last.lineage == mark.lineage and last.counter <= mark.counter

    def _follow(self, found: dict[str, Mark]) -> None:
        for namespace, mark in found.items():
            if namespace not in self._anchors:
                self._anchors[namespace] = anchor_of(namespace, self._folder)
            if self._anchors[namespace].mark != mark:
                self._anchors[namespace].write(mark)
