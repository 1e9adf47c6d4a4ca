"""Protection 'none': the server sees every update. With this opening the server is FedBuff."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from basecagg.errors import Malformed, NotEnrolled
from basecagg.protocol.effects import Effect, Forget, Persist
from basecagg.protocol.messages import MaskName, Message, PlainUpdate
from basecagg.protocol.opening import Ending, Opened, Step, Update
from basecagg.protocol.ports import Records
from basecagg.protocol.records import BufferedUpdate, require
from basecagg.protocol.weighing import Weighing


class PlainOpening:
    """Sums updates in clear as soon as the buffer is full."""

    def __init__(
        self, model_size: int, weighing: Weighing, records: Records, dtype: str = "<f4"
    ) -> None:
        """Take updates of d numbers of this type."""
        self._model_size = model_size
        self._weighing = weighing
        self._records = records
        self._dtype = np.dtype(dtype)

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
            model_hash=update.model_hash,
            content_hash=hashlib.sha256(update.values).digest(),
        )

    def require_openable(
        self, update: BufferedUpdate, waiting: Sequence[MaskName], at: int
    ) -> None:
        """Anything in clear can be summed."""

    def admit(self, update: Update) -> list[Effect]:
        """Store the update."""
        assert isinstance(update, PlainUpdate)
        return [Persist("upload", update.mask.key, update.values)]

    def begin(self, version: int, members: Sequence[BufferedUpdate]) -> Step:
        """Σ s(t − t_i)·Δ_i, at once."""
        weights = tuple(self._weight(version, member) for member in members)
        total = np.zeros(self._model_size)
        for weight, member in zip(weights, members, strict=True):
            total += weight * self._values(member.name)
        return [], Opened(total, weights)

    def outstanding(self) -> tuple[MaskName, ...]:
        """A sum in clear is never left half open."""
        return ()

    def receive(self, sender: str, message: Message, version: int) -> Step:
        """Nobody has anything else to say."""
        raise Malformed(f"this server does not take a {type(message).__name__}", peer=sender)

    def deadline(self) -> Step:
        """Nothing is ever waited for."""
        return [], None

    def end(self, version: int, names: Sequence[MaskName], how: Ending) -> list[Effect]:
        """Delete the updates."""
        return [Forget("upload", name.key) for name in names]

    def expire(self, version: int) -> list[Effect]:
        """Nothing expires."""
        return []

    def unanswered(self, holder: str) -> list[Message]:
        """There are no holders."""
        return []

    def _weight(self, version: int, member: BufferedUpdate) -> float:
        coin = member.name.key.encode()
        return float(self._weighing.weight(version, member.base_version, coin))

    def _values(self, name: MaskName) -> npt.NDArray[np.floating[Any]]:
        return np.frombuffer(require(self._records, "upload", name.key), self._dtype)
