"""Metrics inside the secure sum: a few more numbers at the end of every update, masked like the rest.

A client's loss is a fact about its data. So nobody reports one: each client adds its metrics to its update,
scaled to the clip, and the server learns Σ s·metric / Σ s of a whole buffer. They are not weighted by the
number of examples: that never changes, so from enough sums the server could solve for each client's.

Names and limits are bound by the epoch's id: with limits of its own for one client, a server would open that
client's metrics alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import MetricRecord, RecordDict

from basecagg.errors import DataError, ParameterError, WrongEpoch


def numbers(content: RecordDict) -> dict[str, Any]:
    """All metrics in the app's answer."""
    return {name: v for record in content.metric_records.values() for name, v in record.items()}


@dataclass(frozen=True)
class MetricSlots:
    """Which metrics of one kind (training or evaluation) are averaged, and how large each can be."""

    limits: Mapping[str, float]

    @classmethod
    def of(cls, weight: str, limits: Mapping[str, float] | None) -> MetricSlots:
        """Slots for the named metrics; none for None."""
        limits = dict(limits or {})
        if weight in limits:
            raise ParameterError(
                f"'{weight}' cannot be averaged inside the sum: it never changes, so the server could solve"
                " for every client's. Leave it out; every member of a buffer counts alike",
                rule="no metric is constant",
            )
        wrong = [name for name, limit in limits.items() if not 0 < limit < float("inf")]
        if wrong:
            raise ParameterError(f"the limit of {wrong[0]} must be positive", rule="limits > 0")
        return cls({name: float(limit) for name, limit in limits.items()})

    @property
    def size(self) -> int:
        """Numbers that this takes in every update."""
        return len(self.limits)

    def parts(self, values: Mapping[str, object] | None) -> npt.NDArray[np.float64]:
        """Each metric as a part of its limit; all have to be there, for a sum of some tells of them alone."""
        return np.array([self._part(values or {}, name) for name in self.limits])

    def _part(self, values: Mapping[str, object], name: str) -> float:
        value = values.get(name)
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(
                f"the client reported no finite number '{name}': its metrics are {list(values)}"
            )
        return value / self.limits[name]

    def decode(self, means: npt.NDArray[np.float64]) -> MetricRecord | None:
        """The averages, from the mean parts."""
        named = zip(self.limits.items(), means, strict=True)
        return MetricRecord({name: float(m * limit) for (name, limit), m in named}) or None


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    train: dict[str, float]
    evaluate: dict[str, float]
    examples: float
    weight: str
    tells_cuts: bool


@dataclass(frozen=True)
class Charge:
    """What every node is charged to put behind its update; the epoch binds it."""

    train: MetricSlots
    evaluate: MetricSlots
    examples: float = 0.0
    """An update counts n_i / examples times; 0 if all count alike."""
    weight: str = "num-examples"
    """What the app calls n_i."""
    tells_cuts: bool = True
    """Whether one more number says if anything had to be cut; with privacy that is nobody's business."""

    def factor(self, values: Mapping[str, object]) -> float:
        """How often this client's update counts. Its n_i goes no further than into the product."""
        if not self.examples:
            return 1.0
        count = values.get(self.weight)
        if not isinstance(count, int | float) or not 0 < count < float("inf"):
            raise DataError(
                f"updates are weighted by '{self.weight}', and the client reported {list(values)}"
            )
        return count / self.examples

    @property
    def size(self) -> int:
        """Numbers behind the model's own: the metrics, and whether anything had to be cut."""
        return self.train.size + self.evaluate.size + self.tells_cuts

    def encode(
        self,
        update: npt.NDArray[np.floating],
        trained: Mapping[str, object],
        evaluated: Mapping[str, object] | None,
        clip: float,
    ) -> npt.NDArray[np.float64]:
        """The numbers of one client, each as a part of ±B. The last may tell if something was cut."""
        parts = np.concatenate([self.train.parts(trained), self.evaluate.parts(evaluated)])
        cut = bool(np.abs(update).max(initial=0.0) > clip or np.abs(parts).max(initial=0.0) > 1)
        told = np.append(parts, float(cut)) if self.tells_cuts else parts
        numbers: npt.NDArray[np.float64] = np.clip(told, -1.0, 1.0)
        return clip * numbers

    def decode(
        self, means: npt.NDArray[np.float64], clip: float
    ) -> tuple[MetricRecord | None, MetricRecord | None, float]:
        """Training and evaluation metrics of a buffer, and which part of it was cut."""
        parts, first, end = means / clip, self.train.size, self.train.size + self.evaluate.size
        cut = float(parts[end]) if self.tells_cuts else 0.0
        return self.train.decode(parts[:first]), self.evaluate.decode(parts[first:end]), cut

    # --- on the wire ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The charge as it is sent; the epoch has the hash of these bytes."""
        return msgspec.json.encode(
            _Written(
                dict(self.train.limits),
                dict(self.evaluate.limits),
                self.examples,
                self.weight,
                self.tells_cuts,
            )
        )

    @staticmethod
    def digest_of(written: bytes) -> bytes:
        """What the epoch binds."""
        return hashlib.sha256(b"basecagg/flower/charge/v1" + written).digest()

    @classmethod
    def from_bytes(cls, written: bytes, bound: bytes) -> Charge:
        """The charge that the epoch binds; any other is refused."""
        if cls.digest_of(written) != bound:
            raise WrongEpoch("the metrics that were asked for are not those that the epoch binds")
        found = msgspec.json.decode(written, type=_Written)
        slots = MetricSlots(found.train), MetricSlots(found.evaluate)
        return cls(*slots, found.examples, found.weight, found.tells_cuts)
