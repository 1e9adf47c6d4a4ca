"""Updates that wait to be summed: who may wait, and which K go next.

An update is admitted only if it will still be fresh when its turn comes, so what is admitted is not lost to age
while buffers are opened in order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from basecagg.errors import AlreadyBuffered, QuotaExceeded, WrongVersion
from basecagg.protocol.stored import BufferedUpdate
from basecagg.protocol.weighing import Weighing

Kind: TypeAlias = tuple[int, int]
"""Base version and tier of an update."""
Together: TypeAlias = Callable[[Sequence[BufferedUpdate]], list[BufferedUpdate]]
"""Picks, in order, the updates that can be opened in one sum."""

MAX_WAITING_BUFFERS = 8
"""Full buffers that may wait behind the one being opened; beyond that contributors are told to come back."""


class Buffer:
    """The waiting updates, in order of arrival; at most one of each contributor."""

    def __init__(
        self,
        size: int,
        weighing: Weighing,
        min_per_version: int = 1,
        waiting: Iterable[BufferedUpdate] = (),
        together: int = 1,
    ) -> None:
        self.size = size
        self._weighing = weighing
        self._min_per_version = max(min_per_version, together)
        self._together = together
        """Those of one version come in multiples of this: b, where each bucket has one version."""
        self.waiting = list(waiting)
        self.parked: list[BufferedUpdate] = []
        """Updates whose shares too few holders have confirmed yet. They take up room like those that wait."""

    @property
    def stored(self) -> list[BufferedUpdate]:
        """All that take up room: at most one update of each contributor."""
        return [*self.waiting, *self.parked]

    def require_admissible(self, update: BufferedUpdate, version: int, *, opening: bool) -> int:
        """The version by which the update's buffer opens; refuse it if it is not fresh when its turn comes."""
        if update.base_version > version:
            raise WrongVersion(f"trained from version {update.base_version}, not published yet")
        self._weighing.require_told(version, update)
        stored = self.stored
        opens_at = version + opening + len(stored) // self.size
        self._weighing.require_fresh(opens_at, update.base_version)
        if any(other.name.contributor == update.name.contributor for other in stored):
            raise AlreadyBuffered(
                f"an update of {update.name.contributor} is waiting: train from the next version"
            )
        if len(stored) >= self.size * MAX_WAITING_BUFFERS:
            raise QuotaExceeded(f"{len(stored)} updates are waiting: come back later")
        if self._min_per_version == 1:
            return opens_at
        return update.base_version + self._weighing.max_staleness  # it may wait for its like

    def take(self, together: Together) -> list[BufferedUpdate] | None:
        """The next K updates that may be summed, or None while there are none.

        An update that cannot be opened with the others waits; it does not keep them from being opened.
        """
        for first in range(len(self.waiting) - self.size + 1):
            chosen = self._choose(together(self.waiting[first:]))
            if chosen is not None:
                self.waiting = [update for update in self.waiting if update not in chosen]
                return chosen
        return None

    def evict_lonely(self, at_work: Collection[int]) -> list[BufferedUpdate]:
        """If K or more wait and no K of them fit by their versions, take out those that nobody can join.

        `at_work` are the versions from which others train at present. An update goes if nobody trains from its
        version and fewer of its kind wait than a sum needs. If nobody trains at all, those of the oldest models
        go, and K − 1 stay: who waits does not train, so there is nobody left to join them.
        """
        surplus = len(self.waiting) - self.size + 1
        if surplus <= 0 or self._choose(self.waiting) is not None:
            return []
        if not at_work:
            return [update for _ in range(surplus) for update in self.evict_oldest()]
        kinds = self._weighing.kinds(self.waiting)
        # Where K < 2m a sum is of one version.
        m, count = self._min_per_version, Counter(kinds)
        least = self.size if self.size < 2 * m else m
        lonely = [
            update
            for update, kind in zip(self.waiting, kinds, strict=True)
            if update.base_version not in at_work and count[kind] < least
        ]
        self.waiting = [update for update in self.waiting if update not in lonely]
        return lonely

    def evict_oldest(self, own: str | None = None) -> list[BufferedUpdate]:
        """Take out the update of the oldest model if K or more wait: it is in the way of the others.

        `own` names a contributor: then it is the one of this contributor, if one waits.
        """
        among = [u for u in self.waiting if own is None or u.name.contributor == own]
        if len(self.waiting) < self.size or not among:
            return []
        oldest = min(among, key=lambda update: update.base_version)
        self.waiting.remove(oldest)
        return [oldest]

    def evict_stale(self, version: int) -> list[BufferedUpdate]:
        """Take out what is too old at this version, because it could not be summed with the others."""
        oldest = version - self._weighing.max_staleness
        stale = [update for update in self.stored if update.base_version < oldest]
        self.waiting = [update for update in self.waiting if update.base_version >= oldest]
        self.parked = [update for update in self.parked if update.base_version >= oldest]
        return stale

    def _choose(self, candidates: list[BufferedUpdate]) -> list[BufferedUpdate] | None:
        if len(candidates) < self.size:
            return None
        if self._min_per_version == 1:
            return candidates[: self.size]
        groups: dict[Kind, list[BufferedUpdate]] = {}
        for kind, update in zip(self._weighing.kinds(candidates), candidates, strict=True):
            groups.setdefault(kind, []).append(update)
        counts = self._fill({kind: len(groups[kind]) for kind in sorted(groups)})
        if counts is None:
            return None
        return [update for kind, count in counts.items() for update in groups[kind][:count]]

    def _fill(self, available: Mapping[Kind, int]) -> Mapping[Kind, int] | None:
        """How many of each kind make exactly K, at least m of each and one tier of a version; oldest first."""
        kinds = list(available)

        @cache
        def fill(index: int, room: int) -> Mapping[Kind, int] | None:
            if room == 0:
                return {}
            if index == len(kinds):
                return None
            kind = kinds[index]
            others = (at for at in range(index, len(kinds)) if kinds[at][0] != kind[0])
            next_version = next(others, len(kinds))
            most = min(available[kind], room)
            most -= most % self._together
            for count in range(most, self._min_per_version - 1, -self._together):
                rest = fill(next_version, room - count)
                if rest is not None:
                    return {kind: count, **rest}
            return fill(index + 1, room)

        return fill(0, self.size)
