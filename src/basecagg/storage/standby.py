"""A standby server: it follows the marks of the server that has the database, and goes on when that one ends.

An anchor shows whether a database is an older copy of itself, and the standby's machine has no anchor of its
own. But a live server's database is current: as long as that server lives, the standby's anchors follow the
marks in the database. When the server falls silent, the standby takes its last marks for current too, unless it
has lost sight of the database.
"""

import time
from collections.abc import Callable
from pathlib import Path

from basecagg.errors import PassingFault
from basecagg.storage import lease
from basecagg.storage.anchor import Anchor, Mark
from basecagg.storage.database import Database
from basecagg.storage.lease import Lease
from basecagg.storage.server_store import anchor_of, marks

_PAUSE = 0.3
"""Seconds between two looks."""
_SIGHT = 2.0
"""Seconds without a look after which the database may have been replaced."""


class Standby:
    """Waits for a namespace that another server has, and follows the marks of all namespaces meanwhile."""

    def __init__(self, url: str, namespace: str, anchors: Path) -> None:
        self._database = Database(url)
        self._lease = Lease(namespace)
        self._folder = anchors
        self._anchors: dict[str, Anchor] = {}
        self._seen = float("-inf")
        """When another server was last seen to have it."""

    def wait(self, tell: Callable[[str], None]) -> None:
        """Return when the namespace can be taken. `tell` hears at every change who has it or what is wrong."""
        said = ""
        try:
            while news := self._look_patiently():
                if news != said:
                    tell(said := news)
                time.sleep(_PAUSE)
        finally:
            self._database.close()
            for each in self._anchors.values():
                each.close()

    def _look_patiently(self) -> str:
        try:
            return self.look()
        except PassingFault as fault:
            return str(fault)

    def look(self) -> str:
        """Who has the namespace, in words; an empty text if nobody has it any more."""
        with self._database.transaction("look at"):
            if not self._database.has_table(lease.NAME):
                return ""  # nobody has ever been here
            owner, found = self._lease.owner(self._database.execute), marks(self._database)
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
        """Whether the mark belongs to the life of the database that was seen, and is not earlier in it."""
        anchor = self._anchors.get(namespace)
        last = anchor.mark if anchor else None
        return last is not None and last.lineage == mark.lineage and last.counter <= mark.counter

    def _follow(self, found: dict[str, Mark]) -> None:
        for namespace, mark in found.items():
            if namespace not in self._anchors:
                self._anchors[namespace] = anchor_of(namespace, self._folder)
            if self._anchors[namespace].mark != mark:
                self._anchors[namespace].write(mark)
