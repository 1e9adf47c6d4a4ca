"""One transaction for the writes of several messages: readable at once, durable after `flush`.

Nothing may be sent or answered before `flush` returns.
"""

import os
from collections.abc import Sequence

from basecagg.protocol.effects import Forget, Persist, Store, Write


class GroupCommit:
    """A store in front of the real one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[tuple[str, str], Write] = {}
        self._owed = 0
        """Bytes of the last flush, if it failed."""

    @property
    def rolled_back(self) -> bool:
        """Whether the real store is an older copy."""
        return self._store.rolled_back

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None when there is none."""
        pending = self._pending.get((kind, key))
        if pending is None:
            return self._store.read(kind, key)
        return pending.value if isinstance(pending, Persist) else None

    def keys(self, kind: str) -> list[str]:
        """Return all keys of a kind, in order."""
        return sorted(self._overlaid(kind, dict.fromkeys(self._store.keys(kind), b"")))

    def scan(self, kind: str) -> list[tuple[str, bytes]]:
        """Return all (key, value) of a kind, ordered by key."""
        return sorted(self._overlaid(kind, dict(self._store.scan(kind))).items())

    def _overlaid(self, kind: str, found: dict[str, bytes]) -> dict[str, bytes]:
        for write in self._pending.values():
            if write.kind == kind and isinstance(write, Persist):
                found[write.key] = write.value
            elif write.kind == kind:
                found.pop(write.key, None)
        return found

    def commit(self, writes: Sequence[Write]) -> None:
        """Let the writes wait for the next `flush`."""
        for write in writes:
            self._pending[write.kind, write.key] = write

    def flush(self) -> None:
        """Make everything durable that was committed since the last time."""
        pending, self._pending = list(self._pending.values()), {}
        if pending:
            self._owed = sum(len(write.value) for write in pending if isinstance(write, Persist))
            self._store.commit(pending)
            self._owed = 0

    def prove(self) -> None:
        """After a failure: try to write as much as could not be written. A full disk still takes a little."""
        if self._owed:
            self._store.commit([Persist("proof", "", os.urandom(self._owed))])
            self._store.commit([Forget("proof", "")])
            self._owed = 0

    def discard(self) -> None:
        """Forget what is not durable: the machine is rebuilt from the store."""
        self._pending = {}
