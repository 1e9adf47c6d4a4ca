"""Protection 'none': the server sees every update. With this opening the server is FedBuff."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import Malformed, NotEnrolled
from basecagg.protocol.effects import Effect, Forget, Persist
from basecagg.protocol.messages import History, MaskName, PlainUpdate, content_hash
from basecagg.protocol.opening import (
    LAST_VERDICT,
    Ending,
    LastVerdict,
    Opened,
    Opening,
    Step,
    Update,
)
from basecagg.protocol.ports import Records
from basecagg.protocol.records import BufferedUpdate, EndedUpdate, load, require, write
from basecagg.protocol.weighing import Weighing


class PlainOpening(Opening):
    """Sums updates in clear as soon as the buffer is full."""

    def __init__(
        self, model_size: int, weighing: Weighing, records: Records, dtype: str = "<f4"
    ) -> None:
        self._model_size = model_size
        self._weighing = weighing
        self._records = records
        self._dtype = np.dtype(dtype)
        self._values: dict[str, bytes] = {}
        self._ended = load(records, "ended", EndedUpdate)

    def authenticate(self, sender: str, update: Update) -> BufferedUpdate:
        """Refuse an update of another name, length, or with NaN or ±Inf."""
        if not isinstance(update, PlainUpdate):
            raise Malformed("this server takes updates in clear", peer=sender)
        if update.mask.contributor != sender:
            raise NotEnrolled("the update is not the sender's", peer=sender)
        if len(update.values) != self._model_size * self._dtype.itemsize:
            raise Malformed(f"an update has d = {self._model_size} numbers", peer=sender)
        if not np.isfinite(np.frombuffer(update.values, self._dtype)).all():
            raise Malformed("the update holds NaN or ±Inf", peer=sender)
        return BufferedUpdate(
            name=update.mask,
            base_version=update.base_version,
            head=update.head,
            content_hash=content_hash(update.values),
        )

    def last_verdict(self, name: MaskName) -> LastVerdict | None:
        """What became of an update that is over, until it would be too old anyway."""
        ended = self._ended.get(name.key)
        return ended.verdict if ended else None

    def require_openable(self, update: BufferedUpdate, at: int, history: History) -> None:
        """Anything in clear can be summed."""

    def admit(self, update: Update) -> list[Effect]:
        """Store the update."""
        assert isinstance(update, PlainUpdate)
        self._values[update.mask.key] = update.values
        return [Persist("upload", update.mask.key, update.values)]

    def begin(self, history: History, members: Sequence[BufferedUpdate]) -> Step:
        """Σ s(t − t_i)·Δ_i, at once."""
        version = history.last
        weights = tuple(self._weight(version, member) for member in members)
        total = np.zeros(self._model_size)
        for weight, member in zip(weights, members, strict=True):
            total += weight * self._read(member.name)
        return [], Opened(total, weights)

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete the updates; a copy that comes late must not count again."""
        for name in names:
            self._values.pop(name.key, None)
        until = version + self._weighing.max_staleness
        ended = {name.key: EndedUpdate(verdict=LAST_VERDICT[how], until=until) for name in names}
        self._ended |= ended
        return [
            *(Forget("upload", key) for key in ended),
            *(write("ended", key, record) for key, record in ended.items()),
        ]

    def expire(self, version: int) -> list[Effect]:
        """Forget the names of updates that would be too old by now."""
        old = [key for key, ended in self._ended.items() if ended.until < version]
        for key in old:
            del self._ended[key]
        return [Forget("ended", key) for key in old]

    def _weight(self, version: int, member: BufferedUpdate) -> float:
        coin = member.name.key.encode()
        return float(self._weighing.weight(version, member.base_version, coin))

    def _read(self, name: MaskName) -> npt.NDArray[np.floating[Any]]:
        # The last one admitted is summed in the same call, before the driver has stored it.
        values = self._values.get(name.key) or require(self._records, "upload", name.key)
        return np.frombuffer(values, self._dtype)
