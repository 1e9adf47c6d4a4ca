"""The writes of one commit, sorted before the first of them is carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from basecagg.errors import LocalProtocolError
from basecagg.protocol.effects import WRITES, Forget, Persist, Write


@dataclass(frozen=True)
class Batch:
    """What to store and what to delete. Of several writes to one key only the last is in it."""

    stored: list[Persist]
    deleted: list[Forget]
    irreversible: bool
    """Whether undoing this commit, by restoring an older copy, must be noticed."""

    @classmethod
    def of(cls, writes: Sequence[Write]) -> Self:
        """Sort the writes. If the sequence has anything else in it, all of it is refused."""
        stray = {type(write) for write in writes} - WRITES
        if stray:
            raise LocalProtocolError(
                f"a store commits Persist and Forget, not {stray.pop().__name__}: use writes_of"
            )
        last = {(write.kind, write.key): write for write in writes}.values()
        return cls(
            stored=[write for write in last if type(write) is Persist],
            deleted=[write for write in last if type(write) is Forget],
            irreversible=any(type(write) is Persist and write.irreversible for write in writes),
        )

    def __bool__(self) -> bool:
        return bool(self.stored or self.deleted)
