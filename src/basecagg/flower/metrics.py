"""Metrics inside the secure sum: a few more numbers at the end of every update, masked like the rest.

A client's loss is a fact about its data. So nobody reports one: each client adds n·loss and n to its update,
both scaled to the clip, and the server learns Σ s·n·loss / Σ s·n of a whole buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, MetricRecord

from basecagg.errors import DataError, ParameterError


@dataclass(frozen=True)
class MetricSlots:
    """Which metrics of one kind (training or evaluation) are averaged, and how large each can be."""

    weight: str
    """The metric that weighs the others: Flower's num-examples."""
    limits: Mapping[str, float]

    @classmethod
    def of(cls, weight: str, limits: Mapping[str, float] | None) -> MetricSlots:
        """Slots for the named metrics; none for None."""
        limits = dict(limits or {})
        if limits and weight not in limits:
            raise ParameterError(
                f"metrics {sorted(limits)} are weighted by '{weight}': say how large it can be as well",
                rule="metrics include their weight",
            )
        wrong = [name for name, limit in limits.items() if not 0 < limit < float("inf")]
        if wrong:
            raise ParameterError(f"the limit of {wrong[0]} must be positive", rule="limits > 0")
        return cls(weight, limits)

    @property
    def names(self) -> list[str]:
        """The averaged metrics, in their order in the vector."""
        return [name for name in self.limits if name != self.weight]

    @property
    def size(self) -> int:
        """Numbers that this takes in every update."""
        return len(self.limits)

    def encode(self, values: Mapping[str, object] | None, clip: float) -> npt.NDArray[np.float64]:
        """The slots of one client: n, then n·metric, each as a part of ±B. Without values all are 0."""
        if values is None or not self.limits:
            return np.zeros(self.size)
        weight = self._part(values, self.weight)
        parts = [weight, *(weight * self._part(values, name) for name in self.names)]
        return clip * np.array(parts)

    def _part(self, values: Mapping[str, object], name: str) -> float:
        value = values.get(name)
        if not isinstance(value, int | float):
            raise DataError(
                f"the client reported no number '{name}': its metrics are {list(values)}"
            )
        return float(np.clip(value / self.limits[name], -1.0, 1.0))

    def decode(self, weighted_sum: npt.NDArray[np.float64]) -> MetricRecord | None:
        """The averages, or None when nobody had an example."""
        if not self.limits or weighted_sum[0] <= 0:
            return None
        means = weighted_sum[1:] / weighted_sum[0]
        named = zip(self.names, means, strict=True)
        return MetricRecord({name: float(mean * self.limits[name]) for name, mean in named})

    # --- on the wire ------------------------------------------------------------------------------

    def write(self, record: ConfigRecord, prefix: str) -> None:
        """Put the slots into an order."""
        record[f"{prefix}-weight"] = self.weight
        record[f"{prefix}-names"] = list(self.limits)
        record[f"{prefix}-limits"] = [float(limit) for limit in self.limits.values()]

    @classmethod
    def read(cls, record: ConfigRecord, prefix: str) -> MetricSlots:
        """Take the slots out of an order."""
        names, limits = record[f"{prefix}-names"], record[f"{prefix}-limits"]
        assert isinstance(names, Sequence)
        assert isinstance(limits, Sequence)
        return cls(str(record[f"{prefix}-weight"]), dict(zip(names, limits, strict=True)))  # type: ignore[arg-type]
