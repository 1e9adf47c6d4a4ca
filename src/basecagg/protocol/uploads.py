"""The masked updates that the server stores: those that wait, and those of the last versions."""

from __future__ import annotations

from collections.abc import Iterable

from basecagg.protocol.effects import Effect, Forget, Persist
from basecagg.protocol.messages import MaskName
from basecagg.protocol.overwritten import Overwritten
from basecagg.protocol.ports import Records
from basecagg.protocol.records import require

_KIND = "upload"


class Uploads:
    """By the names of their masks. A name hides another update only when the one before is gone."""

    def __init__(self, records: Records, needed: Iterable[MaskName]) -> None:
        """Those that are not needed are outdated: the process ended before they were overwritten."""
        self._records = records
        self._stored = set(records.keys(_KIND))
        self._outdated = Overwritten(sorted(self._stored.difference(name.key for name in needed)))

    def __contains__(self, name: MaskName) -> bool:
        return name.key in self._stored

    def read(self, name: MaskName) -> bytes:
        """The update that this mask hides."""
        return require(self._records, _KIND, name.key)

    def store(self, name: MaskName, words: bytes) -> list[Effect]:
        """Another one waits; one that is outdated makes room."""
        self._stored.add(name.key)
        gone = self._outdated.give_way()
        self._stored.difference_update(gone)
        return [Persist(_KIND, name.key, words), *(Forget(_KIND, key) for key in gone)]

    def outdate(self, names: Iterable[MaskName]) -> None:
        """Nobody may ask for these any more. They go when others come: there is much to overwrite."""
        self._outdated.add(name.key for name in names if name in self)

    def forget(self, name: MaskName) -> Effect:
        """This one goes now."""
        self._stored.discard(name.key)
        return Forget(_KIND, name.key)
