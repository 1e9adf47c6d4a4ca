"""A node's records in one federation, with the ledger of its privacy, which all its federations share.

On Flower every run is a federation of its own. A budget for each would be none: so the ledger lies in a
namespace beside theirs, with an anchor of its own, and is written before anything that it pays for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from basecagg.protocol.effects import Write, writes_of
from basecagg.protocol.ledger import PrivacyLedger
from basecagg.storage.participant import ParticipantStore

_LEDGER = "ledger"
_NAMESPACE = "privacy"


class NodeStore:
    """Two stores in one file that look like one."""

    def __init__(self, path: Path, federation: str, anchors: Path | None) -> None:
        """Open the federation's records; the ledger is opened when it is first asked for."""
        self._place = path, anchors
        self._own = ParticipantStore(path, federation, anchor_folder=anchors)

    @cached_property
    def _ledger(self) -> ParticipantStore:
        """The ledger's records. An older copy does not know what was uploaded since: all counts as spent."""
        path, anchors = self._place
        store = ParticipantStore(path, _NAMESPACE, anchor_folder=anchors)
        if store.rolled_back:
            store.commit(writes_of([PrivacyLedger(store).exhaust()]))
        return store

    @property
    def rolled_back(self) -> bool:
        """Whether the federation's records are an older copy."""
        return self._own.rolled_back

    @property
    def number(self) -> int:
        """The highest number that the federation's records were told to remember."""
        return self._own.number

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        return self._of(kind).read(kind, key)

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return self._of(kind).keys(kind)

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return self._of(kind).scan(kind)

    def commit(self, writes: Sequence[Write]) -> None:
        """The ledger first: a crash in between counts an upload that was never made, and not the reverse."""
        charges = [write for write in writes if write.kind == _LEDGER]
        if charges:
            self._ledger.commit(charges)
        self._own.commit([write for write in writes if write.kind != _LEDGER])

    def close(self) -> None:
        """Close both."""
        self._own.close()
        if "_ledger" in vars(self):
            self._ledger.close()

    def _of(self, kind: str) -> ParticipantStore:
        return self._ledger if kind == _LEDGER else self._own
