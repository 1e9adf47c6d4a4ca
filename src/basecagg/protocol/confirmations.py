"""Who keeps its shares of which dealing, as the server knows it: one record for each receipt that said so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from basecagg.protocol.effects import Effect, Forget
from basecagg.protocol.ports import Records
from basecagg.protocol.records import Kept, load, write

_KIND = "kept"


class Confirmations:
    """The holders that confirmed each live dealing. A record goes when the last of its dealings is over."""

    def __init__(self, records: Records, live: Iterable[str]) -> None:
        self._holders: dict[str, set[int]] = {dealing: set() for dealing in live}
        self._records_of: defaultdict[str, list[str]] = defaultdict(list)
        self._still_needed: Counter[str] = Counter()
        self._next = 0
        for key, kept in load(records, _KIND, Kept).items():
            self._note(key, kept.holder, [each for each in kept.dealings if each in self._holders])
            self._next = int(key) + 1

    def _note(self, key: str, holder: int, dealings: list[str]) -> None:
        self._still_needed[key] = len(dealings)
        for dealing in dealings:
            self._holders[dealing].add(holder)
            self._records_of[dealing].append(key)

    def begin(self, dealing: str) -> None:
        """A new dealing, which nobody has confirmed."""
        self._holders[dealing] = set()

    def of(self, dealing: str) -> set[int]:
        """The holders that confirmed a live dealing."""
        return self._holders[dealing]

    def lacks(self, holder: int, dealing: str) -> bool:
        """Whether the dealing lives and the holder has not confirmed it."""
        return holder not in self._holders.get(dealing, {holder})

    def lacked_by(self, holder: int) -> list[str]:
        """The live dealings that a holder has not confirmed, in order."""
        return sorted(each for each, holders in self._holders.items() if holder not in holders)

    def add(self, holder: int, dealings: Iterable[str]) -> list[Effect]:
        """A holder confirms live dealings; those that it confirmed before are no news."""
        new = [dealing for dealing in dealings if self.lacks(holder, dealing)]
        if not new:
            return []
        key = f"{self._next:016d}"
        self._next += 1
        self._note(key, holder, new)
        return [write(_KIND, key, Kept(holder=holder, dealings=tuple(new)))]

    def end(self, dealing: str) -> list[Effect]:
        """The dealing lives no more."""
        del self._holders[dealing]
        keys = self._records_of.pop(dealing, [])
        self._still_needed.subtract(keys)
        over = [key for key in keys if not self._still_needed[key]]
        for key in over:
            del self._still_needed[key]
        return [Forget(_KIND, key) for key in over]
