"""A store in memory, for simulations and tests: it outlives its machine, but not its process."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from basecagg.protocol.effects import Write
from basecagg.storage.batch import Batch

Snapshot: TypeAlias = Mapping[str, Mapping[str, bytes]]


class MemoryStore:
    """Behaves as the durable stores do, without a disk."""

    rolled_back = False

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Start empty, or with what another store held."""
        self._kinds: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        for kind, records in (snapshot or {}).items():
            self._kinds[kind].update(records)

    def snapshot(self) -> Snapshot:
        """A copy of everything."""
        return {kind: dict(records) for kind, records in self._kinds.items() if records}

    @property
    def number(self) -> int:
        """The highest number that it was told to remember."""
        return int(self.read("highest", "") or 0)

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        return self._kinds[kind].get(key)

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return sorted(self._kinds[kind])

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return sorted(self._kinds[kind].items())

    def commit(self, writes: Sequence[Write]) -> None:
        """Carry out all the writes. What could fail fails in `Batch.of`, before the first."""
        batch = Batch.of(writes)
        for write in batch.stored:
            self._kinds[write.kind][write.key] = write.value
        for gone in batch.deleted:
            self._kinds[gone.kind].pop(gone.key, None)

    def __repr__(self) -> str:
        """Show how much there is, never what."""
        return f"MemoryStore({sum(map(len, self._kinds.values()))} records)"
